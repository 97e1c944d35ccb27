"""What a model, a task, a recipe and a run are: frozen dataclasses, and their JSON.

    Run = model + task + recipe + seed        everything needed to repeat a number

Models, tasks and lifts are open: whoever subclasses `ModelConfig`, `TaskConfig` or `LiftConfig` has added a kind, which
JSON names by its class. Those of the paper are here; a new one stands beside its code.

No torch here: the command line reads these before anything heavy is imported. The symbols in comments
are the paper's (docs/math.md has the glossary).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from koopsim.errors import KoopsimError, did_you_mean
from koopsim.registry import LIFTS, MODELS, SOLVERS, TASKS, Registry, plugin_hint


def _require(ok: bool, message: Callable[[], str]) -> None:
    """Refuse what is not ok. The sentence is made only then: configurations are read by the thousand."""
    if not ok:
        raise KoopsimError(message())


def _each(config: Any, names: Iterable[str], ok: Callable[[Any], bool], must: str) -> None:
    """Refuse the first of the named entries that is not ok; `must` has places for its name and its value."""
    for name in names:
        value = getattr(config, name)
        if not ok(value):
            raise KoopsimError(must.format(name, value))


SEEDS = 2**40  # a picture's or a trial's own seed is a multiple of one, and still fits in 64 bits
MOST = 2**31 - 1  # of any whole number: beyond it nothing here has a meaning
SMALLEST = 1e-30  # of Adam's eps: float32 rounds smaller ones to zero in the end, and then divides by it


def _sane(config: Any, where: str) -> None:
    """What holds for every entry, a plugin's too: numbers are finite and no monsters, words can be printed."""
    for field_ in dataclasses.fields(config):
        name, value = f"{where}{field_.name}", getattr(config, field_.name)
        if dataclasses.is_dataclass(value):
            _sane(value, f"{name}.")
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, float) and not math.isfinite(part):
                raise KoopsimError(f"{name} is {part}; expected a finite number.")
            if isinstance(part, int) and field_.name == "seed" and not 0 <= part < SEEDS:
                raise KoopsimError(f"{name} is {part}; a seed lies between 0 and {SEEDS - 1}.")
            if isinstance(part, int) and field_.name != "seed" and abs(part) > MOST:
                raise KoopsimError(f"{name} is {part}; no such number goes beyond {MOST}.")
            if isinstance(part, str) and (not part.isprintable() or len(part) > 4096):
                raise KoopsimError(f"{name} is {part[:100]!r}; expected a short text without control characters.")


def largest_number(config: Any) -> int:
    """The largest whole number of a configuration, at any depth: what its memory may grow with."""
    found = [0]
    for field_ in dataclasses.fields(config):
        value = getattr(config, field_.name)
        for part in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(part):
                found.append(largest_number(part))
            elif isinstance(part, int) and field_.name != "seed":
                found.append(part)
    return max(found)


def _shown(data: Any) -> str:
    """A value in an error: its beginning is enough."""
    text = repr(data)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _positive(count: int) -> bool:
    return count >= 1


def _positive_or_none(count: int | None) -> bool:
    return count is None or count >= 1


# ---------------------------------------------------------------- what is open


class _Open:
    """The subclasses of such a class are the kinds that JSON may name, the plugins' among them."""

    kinds: ClassVar[dict[str, Any]]
    registry: ClassVar[Registry[Any]]

    def __init_subclass__(cls) -> None:
        if _Open in cls.__bases__:
            cls.kinds = {}
            return
        before = cls.kinds.get(cls.__name__)
        if before is not None and (before.__module__, before.__qualname__) != (cls.__module__, cls.__qualname__):
            raise KoopsimError(
                f"{cls.__module__} defines {cls.__name__}, which {before.__module__} does too; give it another name, "
                "for files know it by that."
            )
        cls.kinds[cls.__name__] = cls


@dataclass(frozen=True)
class LiftConfig(_Open):
    """mu: from what a model is given to its features. Subclass it, and register a `LiftKind` (kinds.py)."""

    registry: ClassVar = LIFTS
    alone: ClassVar[bool] = True  # False: it is nothing without Fourier features

    def features(self, lift_dim: int) -> int:
        """N, the number of features that psi or U V are given."""
        return lift_dim


@dataclass(frozen=True)
class ModelConfig(_Open):
    """The shape of a model. Subclass it, and register a `ModelKind` (kinds.py)."""

    registry: ClassVar = MODELS


@dataclass(frozen=True)
class TaskConfig(_Open):
    """What is to be learnt, from which data. Subclass it, and register a `TaskKind` (kinds.py)."""

    registry: ClassVar = TASKS
    precisions: ClassVar[tuple[str, ...]] = ("float32", "float64", "tf32", "bf16")  # a run of it may have


# ---------------------------------------------------------------- lifts: mu


@dataclass(frozen=True)
class TCNConfig(LiftConfig):
    """mu for sequences: a temporal convolutional network."""

    levels: int = 8
    channels: int = 10
    kernel: int = 8
    input_channels: int = 1

    def __post_init__(self) -> None:
        names = ("levels", "channels", "kernel", "input_channels")
        _each(self, names, _positive, "TCN {} is {}; it must be at least 1.")


@dataclass(frozen=True)
class VGGConfig(LiftConfig):
    """mu for images: two stages of two 3x3 convolutions and a max pooling."""

    channels: int = 38
    image: tuple[int, int, int] = (3, 32, 32)  # channels, height, width

    def __post_init__(self) -> None:
        _require(self.channels >= 1, lambda: f"VGG channels is {self.channels}; it must be at least 1.")
        _require(min(self.image[1:]) >= 4, lambda: f"VGG needs images of at least 4 x 4 pixels, got {self.image[1:]}.")


@dataclass(frozen=True)
class MLPConfig(LiftConfig):
    """mu for points: two hidden layers with ReLU."""

    inputs: int = 2
    width: int = 256
    layers: int = 2
    gain: float = 1.0  # of the matrices it starts with: 1 is PyTorch's own, sqrt(6) He's

    def __post_init__(self) -> None:
        _each(self, ("inputs", "width", "layers"), _positive, "MLP {} is {}; it must be at least 1.")
        _require(self.gain > 0, lambda: f"MLP gain is {self.gain}; it must be positive.")


@dataclass(frozen=True)
class IdentityConfig(LiftConfig):
    """mu = identity: the RFF-only model lifts its input by psi alone."""

    alone: ClassVar[bool] = False
    inputs: int = 2

    def features(self, lift_dim: int) -> int:
        return self.inputs


# ---------------------------------------------------------------- models


@dataclass(frozen=True)
class FourierConfig:
    """psi: random Fourier features of a shift-invariant kernel."""

    features: int = 32  # M
    bandwidth: float = 1.0  # b, a length scale
    kernel: Literal["gaussian", "laplace"] = "gaussian"
    normalise: bool = False  # measure distances in the lift's own scale: b = 1 is about that of two inputs
    spread: Literal["random", "even"] = "random"  # frequencies drawn one by one, or evenly over the plane

    def __post_init__(self) -> None:
        _require(
            self.spread == "random" or (self.kernel == "gaussian" and not self.normalise),
            lambda: (
                "Evenly spread frequencies are those of the Gaussian kernel in given units; leave "
                "--model.fourier.kernel at gaussian and --model.fourier.normalise off."
            ),
        )
        _require(
            self.features >= 2 and self.features % 2 == 0,
            lambda: f"The number of Fourier features M is {self.features}; it must be even (a sine and a cosine each).",
        )
        _require(
            self.bandwidth > 0, lambda: f"The bandwidth is {self.bandwidth}; it is a length scale and must be positive."
        )


@dataclass(frozen=True)
class SIMConfig(ModelConfig):
    """A stable invariant model: z = nu(U V phi), y = h(z)."""

    lift: LiftConfig = field(default_factory=TCNConfig)
    lift_dim: int = 32  # N
    fourier: FourierConfig | None = None  # set: two-tier (with lift) or RFF only (identity lift)
    rank: int | None = None  # K; None is the paper's half of the lifted dimension
    projector: bool = False  # enforce V U = I
    hidden: int = 32  # H, the width of nu
    outputs: int = 10

    def __post_init__(self) -> None:
        _each(self, ("lift_dim", "hidden", "outputs"), _positive, "{} is {}; it must be at least 1.")
        _require(
            self.lift.alone or self.fourier is not None,
            lambda: "An identity lift needs Fourier features (the RFF-only model).",
        )
        inputs = self.lift.features(self.lift_dim)
        even = self.fourier is not None and self.fourier.spread == "even"
        _require(
            not even or inputs == 2,
            lambda: (
                f"Evenly spread frequencies are for points of the plane; here psi is given {inputs} numbers. "
                "Leave --model.fourier.spread at random."
            ),
        )
        n = self.lifted
        if self.rank is None:
            _require(n >= 2, lambda: f"The lifted dimension is {n}; the paper's rank K = N/2 needs at least 2.")
        else:
            _require(
                1 <= self.rank <= n,
                lambda: f"The rank K is {self.rank}; it lies between 1 and the lifted dimension {n}.",
            )

    @property
    def lifted(self) -> int:
        """The dimension the limit operator acts on: M with Fourier features, else N."""
        return self.fourier.features if self.fourier else self.lift_dim


_SOLVERS = ("anderson", "broyden", "picard")  # the common ones, so that a configuration is read without torch


@dataclass(frozen=True)
class SolverConfig:
    """How a fixed point is found."""

    method: str = "anderson"  # anderson, broyden, newton, picard, relaxed, or one of your own
    max_steps: int = 30
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        if self.method not in _SOLVERS:
            SOLVERS[self.method]  # looks through the plugins, and says which one was probably meant
        _require(self.max_steps >= 1, lambda: f"The solver's max_steps is {self.max_steps}; it must be at least 1.")
        _require(self.tolerance > 0, lambda: f"The solver's tolerance is {self.tolerance}; it must be positive.")


@dataclass(frozen=True)
class DEQConfig(ModelConfig):
    """The deep equilibrium model of the copy memory task: a Universal Transformer cell."""

    heads: int = 8
    head_dim: int = 5
    model_dim: int = 40
    inner_dim: int = 40
    vocabulary: int = 10
    forward: SolverConfig = field(default_factory=SolverConfig)
    backward: SolverConfig = field(default_factory=SolverConfig)
    memory: int | None = None  # how many past steps the solvers keep; None is each one's own default
    gradient: Literal["implicit", "jacobian-free", "phantom", "neumann", "reversible"] = "implicit"

    def __post_init__(self) -> None:
        names = ("heads", "head_dim", "model_dim", "inner_dim", "vocabulary")
        _each(self, names, _positive, "DEQ {} is {}; it must be at least 1.")
        _require(
            self.model_dim % 2 == 0,
            lambda: f"DEQ model_dim is {self.model_dim}; sinusoidal positions need an even one.",
        )
        _require(
            self.memory is None or self.memory >= 1, lambda: f"DEQ memory is {self.memory}; it must be at least 1."
        )


@dataclass(frozen=True)
class MonDEQConfig(ModelConfig):
    """A monotone operator equilibrium network: z = relu(W z + U x + b) with sym(I - W) >= m I."""

    image: tuple[int, int, int] = (3, 32, 32)  # channels, height, width
    tiers: tuple[int, ...] = (81,)  # channels of each tier, each half as wide as the one before; or units
    connected: bool = False  # fully connected: one tier of that many units
    splitting: Literal["peaceman-rachford", "forward-backward"] = "peaceman-rachford"
    monotonicity: float = 1.0  # m
    alpha: float = 1.0  # the splitting's step size, where the tuning starts
    tune_alpha: bool = True  # at the start of an epoch try halves of alpha and keep what needs the fewest steps
    tolerance: float = 1e-2
    max_steps: int = 300
    outputs: int = 10
    mirrored: bool = False  # images are turned by 180 degrees: so the published multi-tier weights fit

    def __post_init__(self) -> None:
        _require(
            len(self.tiers) >= 1 and min(self.tiers) >= 1,
            lambda: f"monDEQ tiers is {self.tiers}; give a positive width.",
        )
        _require(not self.connected or len(self.tiers) == 1, lambda: "A fully connected monDEQ has one tier.")
        _require(self.monotonicity > 0, lambda: f"monDEQ monotonicity m is {self.monotonicity}; it must be positive.")
        _require(self.alpha > 0, lambda: f"monDEQ alpha is {self.alpha}; it must be positive.")
        _require(self.tolerance > 0, lambda: f"monDEQ tolerance is {self.tolerance}; it must be positive.")
        _require(self.max_steps >= 1, lambda: f"monDEQ max_steps is {self.max_steps}; it must be at least 1.")
        _require(self.outputs >= 1, lambda: f"monDEQ outputs is {self.outputs}; it must be at least 1.")


@dataclass(frozen=True)
class FourierNetworkConfig(ModelConfig):
    """The Gaussian Fourier-feature network of Tancik et al.: a perceptron on features, ended by a sigmoid."""

    inputs: int = 2
    features: int = 512
    sigma: float = 10.0  # the frequencies' standard deviation, in cycles; a bandwidth b of 1 / (2 pi sigma)
    width: int = 256
    layers: int = 3
    outputs: int = 3

    def __post_init__(self) -> None:
        even = self.features >= 2 and self.features % 2 == 0
        _require(even, lambda: f"The number of features is {self.features}; it must be even.")
        _require(self.sigma > 0, lambda: f"sigma is {self.sigma}; it must be positive.")
        _each(self, ("inputs", "width", "layers", "outputs"), _positive, "{} is {}; it must be at least 1.")


# ---------------------------------------------------------------- tasks


@dataclass(frozen=True)
class CopyMemoryConfig(TaskConfig):
    """Remember ten digits over T blanks."""

    horizon: int = 500  # T
    train: int = 4500
    valid: int = 500
    test: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.horizon >= 1, lambda: f"The horizon T is {self.horizon}; it must be at least 1.")
        must = "The number of {} sequences is {}; it must be at least 1."
        _each(self, ("train", "valid", "test"), _positive, must)


@dataclass(frozen=True)
class ClassificationConfig(TaskConfig):
    """Name what is in the picture."""

    dataset: str = "cifar10"  # a name of `koopsim data list`, a folder of class/name.png, or an .npz
    valid: float = 0.1  # the share of the training images that choices are made on
    seed: int = 0  # of the split
    train: int | None = None  # use only so many images of train+valid, and of test: for quick looks
    test: int | None = None
    size: tuple[int, int] | None = None  # width, height: pictures are scaled to cover it and cropped around the centre

    def __post_init__(self) -> None:
        _require(0 < self.valid < 1, lambda: f"The validation share is {self.valid}; it lies between 0 and 1.")
        small = self.size is not None and min(self.size) < 4
        _require(not small, lambda: f"The pictures' size is {self.size}; each side has at least 4 pixels.")
        must = "The number of {} images is {}; it must be at least 2."
        _each(self, ("train", "test"), lambda count: count is None or count >= 2, must)


@dataclass(frozen=True)
class ImageRegressionConfig(TaskConfig):
    """Be the picture: from a pixel's place to its colour, one network a picture."""

    precisions: ClassVar[tuple[str, ...]] = (*TaskConfig.precisions, "fp16")
    pictures: str = "photographs"  # two photographs of scikit-learn, "text" made here, a folder of pictures, or an .npz
    size: int = 512  # pictures are cropped to a square of so many pixels
    count: int | None = None  # use only the first so many
    only: str | None = None  # use only the picture of this name
    seed: int = 0  # of the text pictures
    steps_an_epoch: int = 100  # the batch is full, so a line of metrics every so many steps
    at_once: int | None = None  # pictures trained together; None is as many as memory allows

    def __post_init__(self) -> None:
        _require(
            self.size >= 4 and self.size % 2 == 0,
            lambda: f"The picture size is {self.size}; it must be even and at least 4.",
        )
        _each(self, ("count", "at_once"), _positive_or_none, "{} is {}; it must be at least 1.")
        _require(self.steps_an_epoch >= 1, lambda: f"steps_an_epoch is {self.steps_an_epoch}; it must be at least 1.")


# ---------------------------------------------------------------- recipe and run


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: Adam, its schedule, and what is reported on the way."""

    batch_size: int = 20
    epochs: int = 20
    learning_rate: float = 1e-3
    schedule: Literal["constant", "step", "onecycle", "cosine"] = "constant"
    step_size: int = 10  # epochs between drops of the step schedule
    warm_up: int = 0  # steps over which the learning rate first rises
    eps: float = 1e-8
    clip_norm: float | None = None
    weight_decay: float = 0.0  # decoupled from the gradient, as in AdamW
    label_smoothing: float = 0.0
    average: float = 0.0  # evaluate an exponential average of the weights with this decay; 0: the last weights
    flip: bool = False  # augmentation, on the device: mirror left and right,
    shift: int = 0  # move by up to so many pixels,
    rotate: float = 0.0  # turn by up to so many degrees either way,
    zoom: float = 0.0  # grow or shrink by up to this share,
    cutout: int = 0  # and blank a square of so many pixels

    @property
    def augments(self) -> bool:
        """Whether the images of an epoch differ from those of the last."""
        return bool(self.flip or self.shift or self.rotate or self.zoom or self.cutout)

    def __post_init__(self) -> None:
        _each(self, ("batch_size", "epochs", "step_size"), _positive, "{} is {}; it must be at least 1.")
        names = ("shift", "rotate", "cutout", "weight_decay", "warm_up")
        _each(self, names, lambda value: value >= 0, "{} is {}; it must not be negative.")
        _each(self, ("label_smoothing", "average", "zoom"), lambda v: 0 <= v < 1, "{} is {}; it lies in [0, 1).")
        _require(self.learning_rate > 0, lambda: f"The learning rate is {self.learning_rate}; it must be positive.")
        _require(self.eps >= SMALLEST, lambda: f"Adam's eps is {self.eps}; it must be at least {SMALLEST}.")
        _require(
            self.clip_norm is None or self.clip_norm > 0, lambda: f"clip_norm is {self.clip_norm}; it must be positive."
        )


@dataclass(frozen=True)
class Run:
    """Everything that decides a number."""

    model: ModelConfig
    task: TaskConfig
    recipe: Recipe
    seed: int = 0
    train_on: Literal["train", "train+valid"] = "train+valid"  # the paper retrains on both after the search
    precision: Literal["float32", "float64", "tf32", "bf16", "fp16"] = "float32"

    def __post_init__(self) -> None:
        _sane(self, "")
        _require(
            self.precision in self.task.precisions,
            lambda: f"precision is {self.precision!r}, which is for pictures; use bf16 or tf32.",
        )


def resolve_precision(precision: str, device: str) -> str:
    """The precision a run really has on a kind of device: short products are a GPU's.

    A processor emulates bfloat16 and is ten times slower with it; tf32 and fp16 it does not have at all.
    """
    return precision if device == "cuda" or precision in ("float32", "float64") else "float32"


# ---------------------------------------------------------------- JSON


def to_dict(config: Any) -> Any:
    """A dataclass as plain JSON values; each one carries its class name under "kind"."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        fields = {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
        return {"kind": type(config).__name__, **fields}
    if isinstance(config, tuple):
        return [to_dict(v) for v in config]
    return config


def from_dict(cls: Any, data: Any, where: str = "config") -> Any:
    """The inverse of `to_dict`, strict: an unknown key, a wrong kind or a wrong type is refused by name."""
    if type(data) is cls:  # a number, a word: most entries
        return data
    if get_origin(cls) in (Union, types.UnionType):
        return _from_union(get_args(cls), data, where)
    if get_origin(cls) is Literal:
        known = any(type(data) is type(value) and data == value for value in get_args(cls))
        _require(known, lambda: f"{where} is {_shown(data)}; expected one of {get_args(cls)}.")
        return data
    if get_origin(cls) is tuple:
        _require(isinstance(data, list), lambda: f"{where} is {_shown(data)}; expected a list.")
        kinds = get_args(cls)
        if kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(data)
        _require(len(kinds) == len(data), lambda: f"{where} is {_shown(data)}; expected {len(kinds)} entries.")
        return tuple(from_dict(t, v, where) for t, v in zip(kinds, data, strict=True))
    if isinstance(cls, type) and _Open in cls.__bases__:
        return _from_open(cls, data, where)
    if dataclasses.is_dataclass(cls):
        return _from_fields(cls, data, where)
    if cls is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)  # at most 20 digits where it comes from a file
    raise KoopsimError(f"{where} is {_shown(data)}; expected {getattr(cls, '__name__', cls)}.")


def _from_open(base: Any, data: Any, where: str) -> Any:
    """The kind that `data` names; the rooms and the plugins are looked through before it is called unknown."""
    known = base.kinds
    kinds = ", ".join(known)
    _require(isinstance(data, dict), lambda: f"{where} is {_shown(data)}; expected an object of kind {kinds}.")
    kind = str(data.get("kind", ""))
    if kind not in known:
        base.registry.find(kind)
    _require(
        kind in known,
        lambda: f"{where} has the unknown kind {_shown(kind)}." + did_you_mean(kind, known) + plugin_hint(),
    )
    return from_dict(known[kind], data, where)


def _from_union(options: tuple, data: Any, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    if isinstance(data, dict):
        known = {t.__name__: t for t in options if isinstance(t, type) and dataclasses.is_dataclass(t)}
        kind = str(data.get("kind", ""))
        _require(kind in known, lambda: f"{where} has the unknown kind {_shown(kind)}." + did_you_mean(kind, known))
        return from_dict(known[kind], data, where)
    plain = [t for t in options if t is not type(None) and not dataclasses.is_dataclass(t)]
    names = ", ".join(t.__name__ for t in options if dataclasses.is_dataclass(t) and isinstance(t, type))
    _require(len(plain) == 1, lambda: f"{where} is {_shown(data)}; expected an object of kind {names}.")
    return from_dict(plain[0], data, where)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _from_fields(cls: Any, data: Any, where: str) -> Any:
    _require(isinstance(data, dict), lambda: f"{where} is {_shown(data)}; expected an object.")
    hints = _hints(cls)
    given = {k: v for k, v in data.items() if k != "kind"}
    for key in (key for key in given if key not in hints):
        raise KoopsimError(f"{where} has the unknown entry {_shown(key)}." + did_you_mean(key, hints))
    return cls(**{k: from_dict(hints[k], v, f"{where}.{k}") for k, v in given.items()})
