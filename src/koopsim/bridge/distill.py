"""A SIM taught by a trained DEQ, or by any cell: its state map is fitted to where the iteration goes.

    settles       min mean || nu(U V mu(x)) - z*(x) ||^2,    z* = f(z*, x)      paper, eq. (9) and (11)
    keeps moving  min mean || U' V' psi(mu(x)) - E[psi(z)] ||^2                  eq. (10), `measures.py`

The iteration is looked at first (`settling.py`). An equilibrium that a solver found but that repels is where nothing
ever goes: where the iteration settles elsewhere, that is the target; where it does not settle at all, the target is
its invariant measure and the SIM is two-tier. What is left out is counted, and said.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from koopsim.bridge.hidden import Implicit, check_inputs, hidden_map
from koopsim.bridge.measures import (
    MeasureReport,
    Measures,
    bandwidth_of,
    judge_measures,
    late_states,
    long_run,
    teach_measures,
)
from koopsim.bridge.settling import Settling, settling
from koopsim.bridge.student import Lessons, Student, teach, untaught
from koopsim.errors import KoopsimError
from koopsim.implicit import TransformerDEQ
from koopsim.nn import SIM
from koopsim.tasks import Task

Target = Literal["equilibrium", "invariant-set"]
USUAL_STUDENT, USUAL_LESSONS = Student(), Lessons()
FEW = 0.05  # share of inputs that may keep moving and be left out of a SIM of equilibria
CONSTANT = 0.9  # of a constant's error on held-out inputs: a SIM that is no further below it has hardly learnt anything


class DistillWarning(UserWarning):
    """Some inputs do not do what the SIM was taught, or it has learnt no more than a constant."""


@dataclass(frozen=True)
class DistillReport:
    """How close the SIM's state is to its target, on what it was fitted to and on what was held out; and the task's
    figures of both models. The target is z*, or E[z] where the cell keeps moving: `measure` has the rest."""

    target: Target
    train_error: float  # || z_sim - z || / || z ||; for an invariant set over the size of its states
    heldout_error: float
    heldout_centred: float  # over how far z spreads around its mean: 1 is what a constant would reach
    inputs: int
    heldout: int
    unconverged: int  # inputs whose target was not reached: the iteration grows, or does not end; left out
    repelling: int  # inputs where the solver's equilibrium repels
    replaced: int  # inputs whose target is where the plain iteration from z_0 settles, not the solver's answer
    branches: float  # share of the inputs tried on which other starts settle at other points than z_0
    notes: tuple[str, ...] = ()
    measure: MeasureReport | None = None
    task_deq: dict[str, float] | None = None
    task_sim: dict[str, float] | None = None

    def __str__(self) -> str:
        lines = [f"target {self.target}: error {self.heldout_error:.2%} on {self.heldout} held-out inputs, "
                 f"{self.heldout_centred:.2%} of their spread"]  # fmt: skip
        if (m := self.measure) is not None:
            lines += [
                f"  MMD {m.mmd:.4f}; floor {m.floor:.4f}, a constant {m.mmd_mean:.4f}, "
                f"the solver's point {m.mmd_equilibrium:.4f}",
                f"  long-time averages, over the states' spread: E[z] {m.averages:.2%}, E[z^2] {m.second_moments:.2%}",
            ]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def distill(
    deq: Implicit,
    inputs: Tensor,
    student: Student = USUAL_STUDENT,
    lessons: Lessons = USUAL_LESSONS,
    target: Target | None = None,
    task: Task | None = None,
) -> tuple[SIM, DistillReport]:
    """A SIM whose `state(x)` is close to where z <- f(z, x) goes, and how close.

    student   what the SIM is made of: Student(lift_dim=32)
    lessons   how it is taught, and which share of the inputs is held out: Lessons(epochs=30, heldout=0.1)
    target    "equilibrium" or "invariant-set"; None: what the iteration does on all but a twentieth of the inputs
    task      its test split is evaluated with both models
    """
    check_inputs(inputs)
    held = round(lessons.heldout * len(inputs))
    if not 0 < lessons.heldout < 1 or held < 1 or held >= len(inputs):
        raise KoopsimError(
            f"{len(inputs)} inputs with heldout={lessons.heldout} leave {held} to test on; need at least 1."
        )
    if target not in (None, "equilibrium", "invariant-set"):
        raise KoopsimError(f"target={target!r}; expected 'equilibrium', 'invariant-set', or None to look first.")
    seen = settling(deq, inputs, seed=lessons.seed)
    chosen, usable, points = targets_of(seen, target)
    fitted = int(usable[: len(inputs) - held].sum())
    x = inputs[usable.to(inputs.device)]
    if fitted < 1 or fitted >= len(x):
        raise KoopsimError(
            f"{int((~usable).sum())} of {len(inputs)} inputs reach no {chosen} ({_counts(seen)}); none are left to fit."
        )
    notes = _notes(seen, chosen, usable, target is not None)
    for note in notes:
        warnings.warn(note, DistillWarning, stacklevel=2)
    torch.manual_seed(lessons.seed)
    points = points[usable].to(_precision(deq, inputs))
    if chosen == "equilibrium":
        sim, z, measure = untaught(deq, x, points, student).to(points), points, None
        _teach_states(sim, x[:fitted], z[:fitted], lessons)
        size, spread = (_rms(t[fitted:]) for t in (z, z - z[:fitted].mean(dim=0)))
    else:
        sim, truth, measure = _of_measures(deq, x, points, fitted, student, lessons)
        z, size, spread = truth.mean.to(points), _rms(truth.square[fitted:].sqrt()), truth.deviation
    errors = [_rms(sim_error(sim, x[s], z[s])) for s in (slice(None, fitted), slice(fitted, None))]
    poor = _no_better(errors[1] / size, spread / size, measure)
    for note in poor:
        warnings.warn(note, DistillWarning, stacklevel=2)
    notes += poor
    figures = [task.evaluate(m, "test") if task is not None else None for m in (deq, sim)]  # type: ignore[arg-type]
    replaced = int((seen.repelling | ~seen.converged)[usable].sum()) if chosen == "equilibrium" and not target else 0
    report = DistillReport(
        chosen, errors[0] / size, errors[1] / size, errors[1] / spread, fitted, len(x) - fitted, int((~usable).sum()),
        int(seen.repelling.sum()), replaced, float((seen.branches > 1).double().mean()), notes, measure, *figures,
    )  # fmt: skip
    return sim, report


def targets_of(seen: Settling, target: Target | None) -> tuple[Target, Tensor, Tensor]:
    """(what is learnt, which inputs have it, the points): the solver's answer where it attracts, else the plain end."""
    rest, moving = seen.where("fixed-point"), seen.where("invariant-set")
    shape = (-1, *[1] * (seen.ends.dim() - 1))
    good = seen.converged & ~seen.repelling
    if target == "equilibrium":
        return target, seen.converged | rest, torch.where(seen.converged.view(shape), seen.equilibria, seen.ends)
    if target is None and int(moving.sum()) <= FEW * max(1, int((rest | moving | good).sum())):
        return "equilibrium", good | rest, torch.where(good.view(shape), seen.equilibria, seen.ends)
    return "invariant-set", rest | moving, seen.equilibria


def _counts(seen: Settling) -> str:
    return ", ".join(f"{case} on {seen.cases.count(case)}" for case in sorted(set(seen.cases)))


def _notes(seen: Settling, chosen: Target, usable: Tensor, asked: bool) -> tuple[str, ...]:
    """What a person should know before using the SIM, a sentence each."""
    n, notes = len(usable), []
    repels, other = seen.repelling & usable, seen.elsewhere & usable  # never both: the second ones attract
    out, moving, repelling, elsewhere, many = (
        int(t.sum()) for t in (~usable, seen.where("invariant-set"), repels, other, seen.branches > 1)
    )
    if out:
        notes.append(f"{out} of {n} inputs were left out: they reach no {chosen} (the iteration: {_counts(seen)}).")
    if chosen == "invariant-set" and moving:
        notes.append(f"The iteration keeps moving on {moving} of {n} inputs: the target is its invariant measure.")
    if chosen == "equilibrium" and repelling:
        instead = "the SIM learns it all the same, as target= asks" if asked else "there z_0's branch is the target"
        notes.append(f"The solver's equilibrium repels on {repelling} of {n} inputs; {instead}.")
    if chosen == "equilibrium" and elsewhere:
        others = "other " if repelling and not asked else ""
        notes.append(
            f"On {elsewhere} {others}inputs of {n} the solver's equilibrium attracts and is the target; "
            "z_0's branch goes to another."
        )
    elif many:
        notes.append(f"Other starts than z_0 settle elsewhere on {many} of {len(seen.branches)} inputs tried.")
    return tuple(notes)


def _no_better(error: float, constant: float, measure: MeasureReport | None) -> tuple[str, ...]:
    """What to say of a SIM that does on held-out inputs what a constant does: of states, or of measures."""
    what = "relative error"
    if measure is not None:
        what, error, constant = "MMD", measure.mmd, measure.mmd_mean
    if error < CONSTANT * constant:
        return ()
    return (
        f"The SIM is hardly better than a constant on held-out inputs, whose {what} is {constant:.3g}: its own is "
        f"{error:.3g}. More inputs or epochs, or another Student, may help.",
    )


def _teach_states(sim: SIM, x: Tensor, z: Tensor, lessons: Lessons) -> None:
    with torch.no_grad():
        target = z.reshape(len(z), *sim.state(x[:1]).shape[1:])
    scale = float(target.std()) or 1.0
    teach(sim, lambda x: sim.state(x) / scale, (x, target / scale), lessons)


def _of_measures(
    deq: Implicit, x: Tensor, points: Tensor, fitted: int, student: Student, lessons: Lessons
) -> tuple[SIM, Measures, MeasureReport]:
    """(the two-tier SIM, the averages of every input, its report)."""
    states = late_states(deq, x[:fitted])
    wide = states if isinstance(deq, TransformerDEQ) else states.flatten(2)
    bandwidth = bandwidth_of(wide, lessons.seed)
    sim = untaught(deq, x, wide[0], student, bandwidth).to(points)
    size = wide.shape[-1]
    if sim.psi.frequencies.shape[1] < size:  # type: ignore[union-attr, operator]
        raise KoopsimError(f"lift_dim={student.lift_dim} is below the state's size {size}; psi takes states too.")
    with torch.no_grad():  # mu begins at the scale that psi tells apart
        last = [m for m in sim.mu.modules() if isinstance(m, nn.Linear)]
        if student.lift is None and last:
            last[-1].weight.mul_(bandwidth / float(sim.mu(x[:fitted]).std().clamp_min(1e-12)))
    truth = long_run(deq, x, sim)
    known, held = truth.part(slice(None, fitted)), (x[fitted:], truth.part(slice(fitted, None)))
    teach_measures(sim, x[:fitted], known, lessons)
    return sim, truth, judge_measures(sim, known, held, points[fitted:], wide)


@torch.no_grad()
def sim_error(sim: SIM, x: Tensor, z: Tensor) -> Tensor:
    return sim.state(x).reshape(z.shape) - z


def _rms(t: Tensor) -> float:
    return float(t.double().square().mean().sqrt().clamp_min(1e-12))


def _precision(deq: Implicit, inputs: Tensor) -> torch.dtype:
    """Of the SIM: the inputs' own, or of tokens the state's."""
    return inputs.dtype if inputs.is_floating_point() else hidden_map(deq, inputs[:1])[1].dtype


def equilibria(deq: Implicit, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """(z*, whether there is one that attracts), an input each: the solver's, or where the iteration settles."""
    seen = settling(deq, inputs, starts=1, tried=1)
    good = seen.converged & ~seen.repelling
    points = torch.where(good.view(-1, *[1] * (seen.ends.dim() - 1)), seen.equilibria, seen.ends)
    return points.to(_precision(deq, inputs)), good | seen.where("fixed-point")
