"""What torch.func is doing to a tensor: hand-written kernels know only part of it."""

import torch
from torch import Tensor


def differentiated(*tensors: Tensor) -> bool:
    """Whether torch.func.grad is at work on one of them.

    Its backward pass runs inside the function, where a vmap around it would hand a kernel an axis that it does not
    know. The other way round, vmap inside and the gradient outside, is what the kernels' own vmap rules are for.
    """
    known = torch._C._functorch.is_gradtrackingtensor  # pyright: ignore[reportAttributeAccessIssue]
    return any(known(t) for t in tensors)
