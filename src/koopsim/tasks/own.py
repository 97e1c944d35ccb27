"""A module and data of your own, as a task the engine can train.

    loss( model(*inputs), target )        a batch is a tuple of tensors, the last of them the target

Tensors (and NumPy arrays, and a TensorDataset) lie on the device; any other Dataset is asked for its samples at every
step, as a DataLoader asks, or read once (`stream=False`). The files of such a run say what class the module is of and
what its tensors are, never how to build it: that is your code.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from koopsim.config import SEEDS, Recipe, Run, TaskConfig
from koopsim.errors import KoopsimError
from koopsim.files.masks import require_unmasked
from koopsim.kinds import TaskKind, register
from koopsim.tasks.base import Answers, Figures, ModelAnswers, Split, Task
from koopsim.tasks.rows import Rows, Stream, collated
from koopsim.words import LOSS

Data = Dataset | TensorDataset | Sequence[Any]  # a torch Dataset, or (inputs, ..., target) as tensors or arrays
Function = Callable[..., Any]


@dataclass(frozen=True)
class Learning:
    """How a module of your own learns; None is chosen from the data.

    loss      of (outputs, target): None is cross-entropy where the target is whole numbers, else the mean square
    metrics   more figures of (outputs, target), by name: each the mean over batches, weighted by their size
    valid     data to be judged on after every epoch, or a share of the training data set aside; 0 is none
    test      data to be judged on once, at the end
    stream    ask a Dataset for its samples at every step; None: unless it is one of tensors
    workers   processes that do so
    capture   replay steps from CUDA graphs; None: where there is CUDA.   compile   let torch.compile fuse kernels
    """

    recipe: Recipe = field(default_factory=Recipe)
    loss: Function | None = None
    metrics: Mapping[str, Function] = field(default_factory=dict)
    valid: Data | float = 0.1
    test: Data | None = None
    seed: int = 0
    stream: bool | None = None
    workers: int = 0
    capture: bool | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        functions = {"loss": self.loss} | dict(self.metrics if isinstance(self.metrics, Mapping) else {"metrics": 0})
        for name, function in functions.items():
            if function is not None and not callable(function):
                raise KoopsimError(f"{name} is {function!r}; expected a function of (outputs, target) by that name.")
        if isinstance(self.valid, str) or (isinstance(self.valid, (int, float)) and not 0 <= self.valid < 1):
            raise KoopsimError(f"valid is {self.valid!r}; expected data, or a share of at least 0 and below 1.")
        if not isinstance(self.recipe, Recipe):
            raise KoopsimError(f"recipe is {self.recipe!r}; expected koopsim.Recipe(...).")
        if not isinstance(self.seed, int) or not 0 <= self.seed < SEEDS:
            raise KoopsimError(f"seed is {self.seed!r}; it lies between 0 and {SEEDS - 1}.")


@dataclass(frozen=True)
class OwnDataConfig(TaskConfig):
    """Data that was given in Python."""

    loss: str = ""  # the function's name
    valid: float = 0.0  # the share of the training data that was set aside
    samples: int = 0


def rows_of(
    data: Data, what: str, device: torch.device | str, stream: bool | None = None, workers: int = 0
) -> Rows | Stream:
    """Any data as what the engine takes; whatever it cannot take is said in one sentence."""
    if isinstance(data, IterableDataset):
        raise KoopsimError(f"The {what} data is an IterableDataset; give one that knows its length and n-th sample.")
    if isinstance(data, Subset) and isinstance(data.dataset, TensorDataset):
        data = tuple(t[torch.as_tensor(list(data.indices))] for t in data.dataset.tensors)
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, (tuple, list)):
        return Rows(tuple(_tensor(part, what, device) for part in data), what)
    if not isinstance(data, Dataset) or not hasattr(data, "__len__"):
        raise KoopsimError(
            f"The {what} data is {type(data).__name__}; expected a torch Dataset, or a tuple (inputs, target)."
        )
    if len(data) == 0:  # pyright: ignore[reportArgumentType]
        raise KoopsimError(f"The {what} data is empty.")
    if stream is False:
        whole = next(iter(DataLoader(data, batch_size=len(data), collate_fn=collated)))  # pyright: ignore
        return Rows(tuple(t.to(device) for t in whole), what)
    return Stream(data, workers)


def _tensor(part: Any, what: str, device: torch.device | str) -> Tensor:
    if isinstance(part, np.ndarray):
        require_unmasked(part, f"The {what} data")
        part = torch.from_numpy(np.ascontiguousarray(part))
    if not isinstance(part, Tensor):
        raise KoopsimError(f"The {what} data has a {type(part).__name__} in it; expected tensors or NumPy arrays.")
    if part.is_floating_point() and part.dtype == torch.float64:
        part = part.float()  # a model is in float32 unless its run says otherwise
    return part.detach().to(device)


class OwnTask(Task):
    """A module and its data on a device."""

    metric = "loss"
    lower_is_better = True
    checks_itself = True

    def __init__(self, model: nn.Module, data: Data, learning: Learning, device: torch.device | str = "cpu"):
        self.prototype, self.learning, self.device = model, learning, torch.device(device)
        share = learning.valid if isinstance(learning.valid, (int, float)) else 0.0
        if not 0 <= share < 1:
            raise KoopsimError(f"valid is {share}; give a share below 1, or data.")
        how = device, learning.stream, learning.workers
        whole = rows_of(data, "training", *how)
        self.parts: dict[str, Rows | Stream] = {"train": whole, "train+valid": whole}
        if share:
            self.parts["train"], self.parts["valid"] = self._cut(whole, float(share))
        elif not isinstance(learning.valid, (int, float)):
            self.parts["valid"] = rows_of(learning.valid, "validation", *how)
        if learning.test is not None:
            self.parts["test"] = rows_of(learning.test, "test", *how)
        target = self.batches("train", 2)
        self.own_loss = learning.loss or (F.mse_loss if next(target)[-1].is_floating_point() else F.cross_entropy)
        named = getattr(self.own_loss, "__name__", type(self.own_loss).__name__)
        self.config = OwnDataConfig(str(named)[:200], float(share), len(whole))

    def _cut(self, whole: Rows | Stream, share: float) -> tuple[Rows | Stream, Rows | Stream]:
        """(train, valid): a seeded share set aside."""
        n = len(whole)
        if n < 2:
            raise KoopsimError(f"There is {n} training sample; setting some aside needs two at least (or valid=0).")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.learning.seed))
        cut = min(max(1, round(n * share)), n - 1)
        return whole.some(order[cut:]), whole.some(order[:cut])

    # ------------------------------------------------------------ what the engine asks

    def model(self, run: Run) -> nn.Module:
        return copy.deepcopy(self.prototype).train()

    def data(self, run: Run, which: Sequence[int]) -> Rows | Stream:
        return self.parts[run.train_on]

    def epoch_steps(self, run: Run) -> int:
        n = len(self.parts[run.train_on])
        return -(-n // min(run.recipe.batch_size, n))

    def member_loss(self, run: Run) -> Callable[..., Tensor]:
        return lambda model, *batch: self.own_loss(model(*batch[:-1]), batch[-1])

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return self.own_loss(outputs, targets)

    def split(self, name: str) -> Split:
        part = self.parts.get(name)
        if not isinstance(part, Rows) or len(part.tensors) != 2:
            raise KoopsimError(f"There is no split {name!r} of two tensors; there is {', '.join(self.parts)}.")
        return part.tensors[0], part.tensors[1]

    def reported(self, run: Run) -> tuple[str, ...]:
        return tuple(name for name in ("valid", "test") if name in self.parts)

    def fingerprint(self) -> str:
        """Of tensors all they hold; of a Dataset that may draw its samples anew only its class and length."""
        found = hashlib.sha256()
        for name in sorted(self.parts):
            found.update(f"{name}\0{self.parts[name].identity()}\0".encode())
        return found.hexdigest()

    # ------------------------------------------------------------ judgement

    def batches(self, split: str, size: int | None = None) -> Iterator[tuple[Tensor, ...]]:
        """The batches of a split in its own order, on the device."""
        part, size = self.parts[split], size or self.learning.recipe.batch_size
        if isinstance(part, Rows):
            yield from zip(*(t.split(size) for t in part.tensors), strict=True)
            return
        loader = DataLoader(part.dataset, size, collate_fn=collated, num_workers=0)
        for batch in loader:
            yield tuple(t.to(self.device) for t in batch)

    @torch.no_grad()
    def judge(self, answers: Answers, split: str, which: Sequence[int]) -> list[Figures]:
        """Loss and metrics: the mean over batches, weighted by their size."""
        if not isinstance(answers, ModelAnswers):
            raise KoopsimError("A module of one's own is judged by itself, not in a stack.")
        functions = {"loss": self.own_loss, **self.learning.metrics}
        found = []
        for model in answers.models:
            totals, seen = dict.fromkeys(functions, 0.0), 0
            for batch in self.batches(split):
                outputs, target = model(*batch[:-1]), batch[-1]
                for name, function in functions.items():
                    totals[name] += float(function(outputs, target)) * len(target)
                seen += len(target)
            found.append({name: total / seen for name, total in totals.items()})
        return found

    def refuse_misfits(self) -> None:
        """A batch of each size that will come, through the module and its loss, before anything is written."""
        if not any(p.requires_grad for p in self.prototype.parameters()):
            raise KoopsimError(f"{type(self.prototype).__name__} has no parameters that could learn.")
        n, size = len(self.parts["train"]), self.learning.recipe.batch_size
        for count in sorted({min(n, size), n % size or min(n, size)}):
            batch = next(self.batches("train", count))
            try:
                with torch.random.fork_rng():
                    tried = copy.deepcopy(self.prototype).to(self.device).train()
                    loss = self.own_loss(tried(*batch[:-1]), batch[-1])
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                first = (str(error).splitlines() or [type(error).__name__])[0]
                raise KoopsimError(
                    f"The model and its loss cannot be given {count} of these samples: {first.rstrip('.')}."
                ) from error
            if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.grad_fn is None:
                shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
                raise KoopsimError(f"The loss gave {shape}; expected one number that depends on the parameters.")


@register
class OwnTaskKind(TaskKind):
    """What the report says of such runs."""

    config, task = OwnDataConfig, OwnTask
    from_files = False
    judged = LOSS

    @property
    def title(self) -> str:
        return "Modules and data of one's own"

    def build(self, config: OwnDataConfig, device: torch.device | str = "cpu") -> Any:
        raise KoopsimError(
            "This run learnt from data that was given in Python, which no file holds: give model and data to "
            "koopsim.train(model, data, folder) again."
        )

    def slug(self, task: dict[str, Any]) -> str:
        return "own"

    def place(self, result: dict[str, Any]) -> str:
        task = result["run"]["task"]
        return f"{task['samples']:,} samples, {task['loss']}"
