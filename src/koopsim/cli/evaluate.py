"""koopsim eval: the figures of a trained run on one split."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from koopsim.cli import parse, table_rows
from koopsim.cli.table_rows import learnt_a_table
from koopsim.cli.written import noted_look, say_figures, say_looks
from koopsim.errors import KoopsimError
from koopsim.files.json import json_text

MISTAKES = ("confusion.png", "mistakes.png", "mistakes.json")


@dataclass(frozen=True)
class Arguments:
    """Evaluate a trained run: loss, accuracy, and what a classifier mistakes for what."""

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory, or a model of the zoo, such as zoo:mnist/sim-two."""
    split: Literal["train", "valid", "train+valid", "test"] = "test"
    """Which part of the data."""
    data: str | None = None
    """Of a table's run or of sequences another file, to be answered for; of pictures where they are now."""
    out: Path | None = None
    """With --data of a table's run or of sequences: a .csv of all answers. Of pictures: a folder for its mistakes."""
    overwrite: bool = False
    """With --out: also replace files of the same names that koopsim did not write."""
    other_data: bool = False
    """Evaluate although the data is not what the run was trained on: new pictures, whose classes are matched by name.
    That is no look at the run's test split, and not counted as one."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto takes a GPU where there is one."""
    json: bool = False
    """Print the figures as JSON on standard output."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "eval")
    from koopsim import zoo
    from koopsim.engine.drive import pick_device
    from koopsim.runs import RunDirectory
    from koopsim.tasks import Classification

    if (arguments.data or arguments.out) and learnt_a_table(arguments.what):
        _refuse_split(arguments)
        return table_rows.evaluate_rows(arguments)
    of_zoo = arguments.what.startswith(zoo.PREFIX)
    if of_zoo:
        name, run = arguments.what.removeprefix(zoo.PREFIX), zoo.run_of_card(arguments.what)
    else:
        name, run = RunDirectory(arguments.what).read_config()
    if arguments.data is not None:
        from koopsim.cli.sequences import evaluate_sequences, takes_sequences

        if takes_sequences(arguments.what) is not None:
            _refuse_split(arguments)
            return evaluate_sequences(arguments, name)
    device = pick_device(arguments.device)
    model = zoo.load(arguments.what, device)
    task, other = _task_of(arguments, run.task, name, model, device)
    if arguments.out:
        refuse_no_classes(task, name)
    figures = task.evaluate(model, arguments.split)
    values = {"name": name, "split": arguments.split, **figures}
    if other and isinstance(task, Classification):
        values["pictures"] = len(task.example(arguments.split)[1])  # of a folder without test/ a fifth
    json_text(values, f"the figures of {arguments.what}")  # NaN is no figure: said before anything is drawn
    looks = 0
    if arguments.split == "test" and not other and not of_zoo:
        looks = noted_look(RunDirectory(arguments.what), name, figures)
    files = _drawn(arguments, task, model, name)
    if arguments.json:
        print(json_text(values | {"files": [str(f) for f in files]}))
    else:
        _show(arguments, values, looks, files)
    return 0


def _refuse_split(arguments: Arguments) -> None:
    """A file that is answered for whole has no splits."""
    if arguments.data is not None and arguments.split != "test":
        raise KoopsimError(
            f"--split {arguments.split} is a part of what the run was trained on, and {arguments.data} is judged "
            "whole; leave --split or --data out."
        )


def _task_of(arguments: Arguments, config: Any, name: str, model: Any, device: Any) -> tuple[Any, bool]:
    """(the task to judge, whether its data is other than what the run was trained on)."""
    from koopsim import zoo
    from koopsim.cli.other_pictures import as_trained, is_other
    from koopsim.runs import RunDirectory
    from koopsim.tasks import build_task
    from koopsim.tasks.fingerprint import fingerprint_of

    task = build_task(relocated(config, arguments.data, name), device)
    if arguments.what.startswith(zoo.PREFIX):
        other = arguments.data is not None  # of the zoo, whose models have no folder that knows their data
    elif arguments.other_data:
        other = is_other(RunDirectory(arguments.what), task)
    else:
        RunDirectory(arguments.what).check_data(fingerprint_of(task))
        other = False
    return (as_trained(task, getattr(model, "takes", None), arguments.what) if other else task), other


def _drawn(arguments: Arguments, task: Any, model: Any, name: str) -> list[Path]:
    """The pictures of --out, if it was asked for."""
    from koopsim.files import folders

    if not arguments.out:
        return []
    with folders.held(arguments.out):
        folders.claim(arguments.out, "mistakes", MISTAKES, arguments.overwrite)
        return mistakes(task, model, name, arguments.split, arguments.out)


def _show(arguments: Arguments, values: dict[str, Any], looks: int, files: list[Path]) -> None:
    print(f"{values['name']} on {values['split']}")
    say_figures({key: value for key, value in values.items() if key not in ("name", "split")})
    say_looks(looks)
    if files:
        print(f"  {', '.join(f.name for f in files)} are in {arguments.out}/")


def relocated(task, data: str | None, name: str):
    """The task on the pictures at `data`."""
    if data is None:
        was = getattr(task, "dataset", "")
        if "/" in was and not Path(was).exists():
            raise KoopsimError(
                f"The pictures of {name} are no longer at {was}; say where they are now: --data DIR. To name new "
                "pictures none of them are needed: koopsim predict."
            )
        return task
    if not hasattr(task, "dataset"):
        raise KoopsimError(f"--data says where the pictures of a classifier are; {name} is none.")
    return replace(task, dataset=str(Path(data).resolve()) if Path(data).exists() else data)


def refuse_no_classes(task, name: str) -> None:
    """Before anything is judged: only a classifier's mistakes can be drawn."""
    from koopsim.tasks import Classification

    if not isinstance(task, Classification):
        raise KoopsimError(f"--out draws what a classifier mistakes; {name} is none.")


def mistakes(task, model, name: str, split: str, folder: Path) -> list[Path]:
    """The confusion matrix and the worst mistakes of a classifier, drawn into `folder`."""
    import numpy as np

    from koopsim.report.mistakes import confusion_matrix, draw_confusion, draw_mistakes, worst_mistakes
    from koopsim.runs import write_json
    from koopsim.tasks.base import ModelAnswers

    images, labels = (t.cpu().numpy() for t in task.split(split))
    logits = task.predictions(ModelAnswers([model]), split)[0].cpu().numpy()
    named = logits.argmax(1)
    confusion = confusion_matrix(labels, named, len(task.classes))
    worst, sure = worst_mistakes(logits, labels)
    files = [folder / name for name in MISTAKES]
    title = f"{name} on {task.name}, {split}: {np.mean(named == labels):.2%} right"
    draw_confusion(confusion, task.classes, title, files[0])
    true, called = ([task.classes[i] for i in which[worst]] for which in (labels, named))
    if len(worst):
        many = f"The {len(worst)} surest mistakes" if len(worst) > 1 else "The only mistake"
        draw_mistakes(images[worst], true, called, sure, f"{many} of {title}", files[1])
    else:
        files[1].unlink(missing_ok=True)  # of an earlier look
    rows = [
        {"index": int(i), "true": a, "named": b, "probability": float(p)}
        for i, a, b, p in zip(worst, true, called, sure, strict=True)
    ]
    write_json(files[2], {"classes": list(task.classes), "confusion": confusion.tolist(), "worst": rows})
    return [file for file in files if file.exists()]
