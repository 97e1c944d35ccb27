"""Whether cuDNN tries out its kernels for convolutions of a new shape.

A step that is taken a thousand times is worth it. A single pass over a split, or the last and smaller batch of an
epoch, is not: to load and time a dozen kernels of each convolution takes a second or two, a pass with cuDNN's own first
guess a few milliseconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_trials(really: bool = True) -> Iterator[None]:
    """cuDNN's first guess for what is new in here."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before and not really
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
