"""For code written with torchdeq: its names, signatures and return values, over our solvers and gradients.

    from torchdeq import get_deq, apply_norm, jac_reg
    from koopsim.implicit.torchdeq import get_deq, apply_norm, jac_reg          the changed import

torchdeq itself is neither needed nor imported. What is gained: the gradient is the implicit one unless `grad` or
`ift=False` asks for another, an unconverged solve says so, an unknown option is an error, nothing is to be reset. What
has no counterpart is refused in a sentence that names our way; docs/coming-from-torchdeq.md has both call by call.
"""

from typing import Any

from koopsim.errors import KoopsimError
from koopsim.implicit.torchdeq.beside import mem_gc, mixed_init
from koopsim.implicit.torchdeq.layer import Equilibrium, get_deq
from koopsim.implicit.torchdeq.losses import fp_correction, jac_reg, power_method, register_weight_func
from koopsim.implicit.torchdeq.modules import (
    VariationalDropout,
    VariationalDropout1d,
    VariationalDropout2d,
    VariationalDropout3d,
    VariationalDropToken1d,
    VariationalDropToken2d,
    VariationalDropToken3d,
    apply_norm,
    remove_norm,
    reset_deq,
    reset_dropout,
    reset_norm,
)
from koopsim.implicit.torchdeq.options import add_deq_args

__all__ = [
    "Equilibrium",
    "VariationalDropToken1d",
    "VariationalDropToken2d",
    "VariationalDropToken3d",
    "VariationalDropout",
    "VariationalDropout1d",
    "VariationalDropout2d",
    "VariationalDropout3d",
    "add_deq_args",
    "apply_norm",
    "fp_correction",
    "get_deq",
    "jac_reg",
    "mem_gc",
    "mixed_init",
    "power_method",
    "register_weight_func",
    "remove_norm",
    "reset_deq",
    "reset_dropout",
    "reset_norm",
]

_REFUSED = {
    "register_deq": "there is one kind of DEQ, koopsim.implicit.DEQ, and a gradient of your own is a function of it",
    "register_solver": "decorate (f, z0, max_steps=, tol=) -> (z, Info) with koopsim.implicit.SOLVERS.register, or "
    "give the function as f_solver",
    "get_solver": "solvers are in koopsim.implicit.SOLVERS, by name",
    "solver_stat_from_final_step": "koopsim.implicit.iterate keeps a solver's books",
    "register_norm": "a norm of your own is a parametrization (torch.nn.utils.parametrize) on any layer of the cell",
    "register_norm_module": "a norm of your own is a parametrization (torch.nn.utils.parametrize) on any layer",
}


def __getattr__(name: str) -> Any:
    if name in _REFUSED:
        raise KoopsimError(f"torchdeq's {name} has no counterpart here: {_REFUSED[name]}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
