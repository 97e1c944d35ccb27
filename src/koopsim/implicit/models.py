"""What the house asks of the models with a solver: the DEQ of copy memory, the monDEQs of the image sets."""

from dataclasses import replace
from typing import Any

from koopsim.config import DEQConfig, MonDEQConfig, Run, SolverConfig
from koopsim.errors import KoopsimError
from koopsim.implicit.monotone import MonDEQ
from koopsim.implicit.transformer import TransformerDEQ
from koopsim.kinds import ModelKind, Shape, register
from koopsim.words import Look


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
            solver=config.forward.method,
            max_steps=config.forward.max_steps,
            tol=config.forward.tolerance,
            memory=config.memory,
            gradient=config.gradient,
            backward_solver=config.backward.method,
            backward_max_steps=config.backward.max_steps,
            backward_tol=config.backward.tolerance,
        )

    def look(self, config: DEQConfig, best: bool = False) -> Look:
        return Look(self.title(config), 1, "#6b7280")

    def smoke(self, run: Run) -> Run:
        """Few sequences are enough to learn from, if the solver takes the steps it needs."""
        model = replace(run.model, forward=SolverConfig(), backward=SolverConfig())  # pyright: ignore[reportCallIssue]
        recipe = replace(run.recipe, batch_size=5, epochs=4, learning_rate=3e-3, warm_up=100)
        return replace(run, model=model, recipe=recipe)


@register
class MonDEQKind(SolverKind):
    """The monotone operator equilibrium network."""

    config = MonDEQConfig

    def build(self, config: MonDEQConfig) -> MonDEQ:
        return MonDEQ(
            image=config.image,
            tiers=config.tiers,
            connected=config.connected,
            splitting=config.splitting,
            monotonicity=config.monotonicity,
            alpha=config.alpha,
            tune=config.tune_alpha,
            max_steps=config.max_steps,
            tol=config.tolerance,
            outputs=config.outputs,
        )

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
