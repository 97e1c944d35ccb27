"""How models and tasks are called, coloured and judged where people read of them: tables, charts, cards."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """What a model is judged by."""

    key: str  # in a result's "test" and "valid"
    title: str
    form: str
    short: str
    lower: bool = False  # is better

    def best(self, values: dict[str, float]) -> str:
        """The name of the best value."""
        return (min if self.lower else max)(values, key=lambda name: values[name])


LOSS = Figure("loss", "loss", "{:.2e}", "{:.1e}", lower=True)
ACCURACY = Figure("accuracy", "accuracy", "{:.2%}", "{:.2%}")
PSNR = Figure("psnr", "PSNR", "{:.2f} dB", "{:.2f} dB")


@dataclass(frozen=True)
class Curve:
    """What a learning curve shows: an entry of the lines of metrics."""

    key: str = "train_loss"
    title: str = "training loss"
    log: bool = True


@dataclass(frozen=True)
class Look:
    """A model in words and in colour: a place in the page's palette, and a colour for figures."""

    title: str
    slot: int = 9  # of whoever has none of their own
    colour: str = "#7c3aed"
