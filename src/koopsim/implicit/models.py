"""What the house asks of the models with a solver: the DEQ of copy memory, the monDEQs of the image sets."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from koopsim.config import DEQConfig, MonDEQConfig, Run, SolverConfig
from koopsim.errors import KoopsimError
from koopsim.implicit.deq import DEQ, Backward
from koopsim.implicit.monotone import MonDEQ, Splitting
from koopsim.implicit.solvers import Solver
from koopsim.implicit.transformer import TransformerDEQ
from koopsim.kinds import ModelKind, Shape, register
from koopsim.registry import SOLVERS
from koopsim.words import Look


def deq_maker(
    forward: SolverConfig, backward: SolverConfig | None = None, gradient: str = "implicit", memory: int | None = None
) -> Callable[[Callable[..., Any]], DEQ]:
    """What puts a DEQ of these settings round a cell. `memory` is for the solvers that have one."""

    def solver(config: SolverConfig) -> str | Solver:
        function = SOLVERS[config.method]
        if memory is None or "memory" not in inspect.signature(function).parameters:
            return config.method
        return functools.partial(function, memory=memory)

    back = backward or forward
    return functools.partial(
        DEQ,
        solver=solver(forward),
        max_steps=forward.max_steps,
        tol=forward.tolerance,
        gradient=gradient,
        backward=Backward(solver(back), back.max_steps, back.tolerance),
    )


class SolverKind(ModelKind):
    """A model that iterates until it has converged."""

    has_solver = True
    order = 1

    def example(self, config: Any, batch: int, length: int, random: Any) -> Any:
        raise KoopsimError(
            f"A {self.title(config).split(' ')[0]} does not export: its solver runs until it has converged, which is "
            "no graph. Export a SIM, or distil this one into a SIM first (koopsim.bridge.distill)."
        )


@register
class DEQKind(SolverKind):
    """The Universal-Transformer DEQ."""

    config = DEQConfig

    def build(self, config: DEQConfig) -> TransformerDEQ:
        return TransformerDEQ(
            vocabulary=config.vocabulary,
            heads=config.heads,
            head_dim=config.head_dim,
            model_dim=config.model_dim,
            inner_dim=config.inner_dim,
            deq=deq_maker(config.forward, config.backward, config.gradient, config.memory),
        )

    def look(self, config: DEQConfig, best: bool = False) -> Look:
        return Look(self.title(config), 1, "#6b7280")

    def smoke(self, run: Run) -> Run:
        """Few sequences are enough to learn from, if the solver takes the steps it needs."""
        if run.model.gradient == "reversible":  # pyright: ignore[reportAttributeAccessIssue]  more could not be undone
            return run
        model = replace(run.model, forward=SolverConfig(), backward=SolverConfig())  # pyright: ignore[reportCallIssue]
        recipe = replace(run.recipe, batch_size=5, epochs=4, learning_rate=3e-3, warm_up=100)
        return replace(run, model=model, recipe=recipe)


@register
class MonDEQKind(SolverKind):
    """The monotone operator equilibrium network."""

    config = MonDEQConfig

    def build(self, config: MonDEQConfig) -> MonDEQ:
        solving = Splitting(config.splitting, config.alpha, config.tune_alpha, config.max_steps, config.tolerance)
        image, tiers, m = config.image, config.tiers, config.monotonicity
        model = MonDEQ(image, tiers, config.connected, config.outputs, m, solving, config.scale)
        model.mirrored = config.mirrored
        return model

    def _form(self, config: MonDEQConfig) -> str:
        return "connected" if config.connected else "multi" if len(config.tiers) > 1 else "single"

    def slug(self, config: MonDEQConfig) -> str:
        return f"mondeq-{self._form(config)}"

    def title(self, config: MonDEQConfig) -> str:
        return f"monDEQ ({self._form(config)})"

    def look(self, config: MonDEQConfig, best: bool = False) -> Look:
        colours = {"single": (1, "#6b7280"), "multi": (2, "#111827"), "connected": (3, "#a16207")}
        return Look(self.title(config), *colours[self._form(config)])

    def for_images(self, config: MonDEQConfig, shape: Shape, outputs: int) -> MonDEQConfig:
        return replace(config, image=shape, outputs=outputs)
