"""From a preset's name, or a configuration, to a module.

koopsim.build("copy/sim-single")        koopsim.build(SIMConfig(...))
"""

from torch import nn

from koopsim.config import DEQConfig, FourierNetworkConfig, Model, MonDEQConfig, SIMConfig
from koopsim.implicit.monotone import MonDEQ
from koopsim.implicit.transformer import TransformerDEQ
from koopsim.nn import build_sim
from koopsim.nn.tancik import FourierNetwork
from koopsim.presets import preset


def build(what: str | Model) -> nn.Module:
    """The untrained module of a preset ("copy/deq") or of a model's configuration."""
    if isinstance(what, str):
        what = preset(what).model
    match what:
        case SIMConfig():
            return build_sim(what)
        case DEQConfig():
            return build_deq(what)
        case MonDEQConfig():
            return build_mondeq(what)
        case FourierNetworkConfig(inputs, features, sigma, width, layers, outputs):
            return FourierNetwork(inputs, features, sigma, width, outputs, layers)


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


def build_mondeq(mondeq: MonDEQConfig) -> MonDEQ:
    """The module of a monDEQ's configuration."""
    return MonDEQ(
        image=mondeq.image,
        tiers=mondeq.tiers,
        connected=mondeq.connected,
        splitting=mondeq.splitting,
        monotonicity=mondeq.monotonicity,
        alpha=mondeq.alpha,
        tune=mondeq.tune_alpha,
        max_steps=mondeq.max_steps,
        tol=mondeq.tolerance,
        outputs=mondeq.outputs,
    )
