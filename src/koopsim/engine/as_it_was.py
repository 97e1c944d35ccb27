"""What a training sets for the whole process is given back when it ends.

TF32 for float32 products and cuDNN's trials (stacked.py, ../fitting.py) are right for the steps they were chosen for.
Whoever called us from a program of their own wants their own products as they were.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_as_it_was() -> Iterator[None]:
    """The precision of float32 products and cuDNN's trials, afterwards as before; also for functions, as @...()."""
    products, trials = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.benchmark = trials
