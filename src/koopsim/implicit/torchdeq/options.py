"""The options of torchdeq's `get_deq`, spelt out: their names and meaning are torchdeq's, so are the values but three.

    f_*, eval_*       the forward solve            grad, tau, ift                the gradient
    b_*               the backward one             n_states, indexing, core      which states are returned

Differing: `grad` and `ift` are unset, which is the implicit gradient (torchdeq: one step); `b_solver` is Anderson (as
it comes torchdeq runs none); and `b_tol` is relative in both modes, since dL/dz has the scale of the loss: an absolute
1e-6 ends the solve of a mean over a large batch before it has begun.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from koopsim.errors import KoopsimError, did_you_mean
from koopsim.implicit.gradient import Phantom
from koopsim.implicit.iteration import Tolerance
from koopsim.implicit.solvers import Solver

STOP_MODES = {"abs": "absolute", "rel": "relative"}
CORES = ("sliced", "indexing")
CLOSE = 0.9  # a name of a script's own arguments that is this like an option's is taken for a slip


@dataclass(frozen=True)
class Options:
    """What `get_deq` was asked for."""

    f_solver: str | Solver = "fixed_point_iter"
    b_solver: str | Solver = "anderson"
    f_max_iter: int = 40
    b_max_iter: int = 40
    f_tol: float = 1e-3
    b_tol: float = 1e-6
    f_stop_mode: str = "abs"
    b_stop_mode: str = "abs"
    eval_factor: float = 1.0
    eval_f_max_iter: int = 0
    core: str = "sliced"
    ift: bool | None = None
    hook_ift: bool = False
    n_states: int = 1
    indexing: Sequence[int] = ()
    grad: int | Sequence[int] | None = None
    tau: float = 1.0
    sup_gap: int = -1
    sup_loc: Sequence[int] = ()
    no_stat: bool | None = None

    def __post_init__(self) -> None:
        if self.sup_gap > 0 or self.sup_loc:
            raise KoopsimError(
                f"sup_gap={self.sup_gap}, sup_loc={self.sup_loc}: the steps of a phantom gradient are not returned; "
                "expected neither: states on the way to the fixed point are n_states= or indexing=."
            )
        if self.core not in CORES:
            raise KoopsimError(f"There is no core {self.core!r}.{did_you_mean(str(self.core), CORES)}")
        for mode in (self.f_stop_mode, self.b_stop_mode):
            if mode not in STOP_MODES:
                raise KoopsimError(f"There is no stop mode {mode!r}.{did_you_mean(str(mode), STOP_MODES)}")
        steps = self.phantom_steps
        if not all(isinstance(k, int) and k >= 1 for k in steps):
            raise KoopsimError(f"grad={self.grad!r}: expected steps of the phantom gradient, whole numbers from 1 on.")
        for k in steps:
            Phantom(k, self.tau)  # says what it expects
        if len(steps) not in (1, len(self.stops(self.f_max_iter))):
            raise KoopsimError(
                f"grad has {len(steps)} numbers for {len(self.stops(self.f_max_iter))} states; expected one, or one "
                "for each state."
            )

    @property
    def implicit(self) -> bool:
        """Whether the fixed point has the implicit gradient: unless the steps, or no ift, were asked for."""
        return bool(self.ift or self.hook_ift) or (self.ift is None and self.grad is None)

    @property
    def phantom_steps(self) -> tuple[int, ...]:
        if self.grad is None:
            return (1,)
        return (self.grad,) if isinstance(self.grad, int) else tuple(self.grad)

    @property
    def f_tolerance(self) -> Tolerance:
        return Tolerance(self.f_tol, STOP_MODES[self.f_stop_mode])

    @property
    def b_tolerance(self) -> Tolerance:
        return Tolerance(self.b_tol)

    @property
    def eval_steps(self) -> int:
        return self.eval_f_max_iter if self.eval_f_max_iter > 0 else int(self.f_max_iter * self.eval_factor)

    def stops(self, max_steps: int) -> list[int]:
        """The steps after which a state is returned; the last is `max_steps`."""
        if self.n_states > 1:
            n = min(self.n_states, max_steps)
            return [max_steps - (n - 1 - k) * (max_steps // n) for k in range(n)]
        stops = [*self.indexing, max_steps]
        if any(late <= early for early, late in zip([0, *stops], stops, strict=False)):
            raise KoopsimError(f"indexing={list(self.indexing)}: expected rising steps from 1 to below {max_steps}.")
        return stops


NAMES = tuple(field.name for field in fields(Options))
DEFAULTS = {name: getattr(Options, name) for name in NAMES}
LISTS = ("indexing", "grad", "sup_loc")
FLAGS = ("ift", "hook_ift")
KINDS: dict[str, Callable[[str], Any]] = {"sup_gap": int, "grad": int, "sup_loc": int, "indexing": int}
HELP = {
    "f_solver": "forward solver: fixed_point_iter, simple_fixed_point_iter, anderson, broyden, newton",
    "b_solver": "solver of the implicit gradient, of the same names",
    "f_max_iter": "the most steps of the forward solve",
    "b_max_iter": "the most steps of the backward solve",
    "f_tol": "residual at which a sample's forward solve is done",
    "b_tol": "relative residual at which a sample's backward solve is done",
    "f_stop_mode": "whether f_tol is an absolute residual or a relative one: abs, rel",
    "b_stop_mode": "abs or rel; b_tol is relative in both",
    "eval_factor": "times f_max_iter: the most steps in eval mode",
    "eval_f_max_iter": "the most steps in eval mode, if positive",
    "core": "several states: a solve each, from the last one's state (sliced), or points of one solve (indexing)",
    "ift": "the implicit gradient, which is the default",
    "hook_ift": "the same",
    "n_states": "how many states on the way are returned, evenly spaced, the fixed point being the last",
    "indexing": "the steps whose states are returned besides the fixed point",
    "grad": "steps of the phantom gradient in the place of the implicit one; 1 is the one-step gradient",
    "tau": "damping of the phantom gradient's steps",
    "sup_gap": "refused",
    "sup_loc": "refused",
}
# Arguments of torchdeq's parser that are not get_deq's: its other calls take them, or the script does.
OTHERS: dict[str, tuple[Any, str]] = {
    "norm_type": ("weight_norm", "for apply_norm: weight_norm, spectral_norm, none"),
    "norm_no_scale": (False, "for apply_norm: no learned scale"),
    "norm_target_norm": (1.0, "for apply_norm: the norm where no scale is learned"),
    "norm_clip": (False, "for apply_norm: refused"),
    "norm_clip_value": (1.0, "for apply_norm: refused with norm_clip"),
    "sn_n_power_iters": (1, "for apply_norm: 1"),
    "gamma": (0.8, "for fp_correction, by the script: how much less an earlier state counts"),
    "jac_loss_weight": (0.0, "for jac_reg, by the script: its weight in the loss"),
    "jac_loss_freq": (0.0, "for jac_reg, by the script: the share of the steps that have it"),
    "jac_incremental": (0, "for jac_reg, by the script: steps after which its weight grows"),
    "sradius_mode": (False, "for the call, by the script: measure the spectral radius in eval mode"),
}


def mapping_of(args: Any) -> Mapping[str, Any]:
    """Options in any of the forms that torchdeq takes: a dict, a Namespace, an object with attributes."""
    if args is None:
        return {}
    if isinstance(args, Mapping):
        return args
    inside = vars(args)
    return inside["config"] if set(inside) == {"config"} else inside  # torchdeq's own DEQConfig


def options_of(args: Any, given: Mapping[str, Any]) -> Options:
    """Those of `args`, a script's whole configuration perhaps, and over them those that were `given` by name."""
    for name in given:
        if name not in NAMES and name not in OTHERS:
            raise KoopsimError(f"get_deq has no option {name!r}.{did_you_mean(name, NAMES)}")
    whole = mapping_of(args)
    for name in whole:
        close = difflib.get_close_matches(str(name), NAMES, n=1, cutoff=CLOSE)
        if name not in NAMES and name not in OTHERS and close and close[0][:2] == str(name)[:2]:
            raise KoopsimError(f"get_deq was given {name!r}, which it does not have. Did you mean {close[0]!r}?")
    asked = {name: value for name, value in {**whole, **given}.items() if name in NAMES and value is not None}
    return Options(**asked)


def add_deq_args(parser: argparse.ArgumentParser) -> None:
    """Add the options, with torchdeq's names, to a parser; `get_deq(parser.parse_args())` takes them."""
    for name, said in HELP.items():
        default = DEFAULTS[name]
        if name in FLAGS:
            parser.add_argument(f"--{name}", action="store_true", default=default, help=said)
        elif name in LISTS:
            parser.add_argument(f"--{name}", type=KINDS[name], nargs="+", default=default, help=said)
        else:
            parser.add_argument(f"--{name}", type=KINDS.get(name, type(default)), default=default, help=said)
    for name, (default, said) in OTHERS.items():
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true", default=default, help=said)
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default, help=said)
