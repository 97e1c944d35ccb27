"""From a preset's name, or a configuration, to a module.

koopsim.build("copy/sim-single")        koopsim.build(SIMConfig(...))
"""

from torch import nn

from koopsim.config import DEQConfig, Model, SIMConfig
from koopsim.errors import KoopsimError
from koopsim.implicit.transformer import TransformerDEQ
from koopsim.nn import build_sim
from koopsim.presets import preset


def build(what: str | Model) -> nn.Module:
    """The untrained module of a preset ("copy/deq") or of a model's configuration."""
    if isinstance(what, str):
        found = preset(what)
        if found.model is None:
            raise KoopsimError(f"{what} is {found.note}.")
        what = found.model
    match what:
        case SIMConfig():
            return build_sim(what)
        case DEQConfig():
            return build_deq(what)


def build_deq(deq: DEQConfig) -> TransformerDEQ:
    """The module of a DEQ's configuration."""
    return TransformerDEQ(
        vocabulary=deq.vocabulary,
        heads=deq.heads,
        head_dim=deq.head_dim,
        model_dim=deq.model_dim,
        inner_dim=deq.inner_dim,
        solver=deq.forward.method,
        max_steps=deq.forward.max_steps,
        tol=deq.forward.tolerance,
        memory=deq.memory,
        gradient=deq.gradient,
        backward_solver=deq.backward.method,
        backward_max_steps=deq.backward.max_steps,
        backward_tol=deq.backward.tolerance,
    )
