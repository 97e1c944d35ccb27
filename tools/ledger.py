"""The ledger of looks at test splits, results/LEDGER.md: a line each time a test figure of a row was recorded.

    python tools/ledger.py            # begin it: the past, out of the repository's history
    python tools/ledger.py FILE...    # add the test figures of studies: results/picture-gap.json, signals.json, ...

A row that is chosen in view of its test figure is tuned on the test split, so every look is written down and none is
taken out again. tools/record.py adds lines; runs count their own looks in looks.jsonl (koopsim/runs.py).
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "results" / "LEDGER.md"
HEAD = """# Looks at test splits

A line each time a test figure was computed for a row of the tables. Those kept in "FILE @ COMMIT" were read out of
the repository's history (`tools/ledger.py`), the others were added by `tools/record.py`. Lines are added, never
changed or taken out. The last column is the place a run was recorded in; if another has taken that place since, or if
it was put by at once, the run lies in earlier/ as NAME@COMMIT, the commit of the column before. Where a row appears
with other settings at a later date, its settings were chosen after an earlier figure had been seen: its figure is to
that extent tuned on the test split (CIFAR-10 two, SVHN two and MNIST, all rows of Table 3). Looks that left no file
behind are not here: until 2026-11-16 `koopsim eval` kept no count.

| date | row | seed | settings | test figure | measured at | kept in |
|---|---|---|---|---|---|---|
"""
SETTINGS = ("batch_size", "epochs", "learning_rate", "schedule", "weight_decay", "clip_norm")
FIGURES = ("accuracy", "psnr", "loss")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def settings_of(run: dict[str, Any]) -> str:
    """What was searched of a run: `batch_size 128, epochs 20, ...`."""
    recipe = run.get("recipe", {})
    shown = {key: recipe[key] for key in SETTINGS if isinstance(recipe.get(key), int | float | str)}
    said = [f"{k.replace('_', ' ')} {f'{v:g}' if isinstance(v, float) else v}" for k, v in shown.items()]
    model = run.get("model", {})
    said += [f"V U = I, rank {model['rank']}" if model.get("rank") else "V U = I"] if model.get("projector") else []
    said += ["even start"] if model.get("start") == "even" else []
    said += [f"{model['gradient']} gradient"] if model.get("gradient") not in (None, "implicit") else []
    fourier = model.get("fourier") or {}
    said += [f"bandwidth {fourier['bandwidth']:.4g}"] if isinstance(fourier.get("bandwidth"), float) else []
    return ", ".join(said) or "-"


def figure_of(test: dict[str, Any]) -> str:
    for key in FIGURES:
        if isinstance(test.get(key), int | float):
            value = test[key]
            return {"accuracy": f"{100 * value:.2f}%", "psnr": f"{value:.2f} dB", "loss": f"loss {value:.3g}"}[key]
    return ", ".join(f"{key} {value:.4g}" for key, value in test.items() if isinstance(value, int | float)) or "-"


def place_of(result: dict[str, Any]) -> str:
    """Which pictures, which horizon where it is not the paper's."""
    task = (result.get("run") or {}).get("task", {})
    pictures = result.get("set") or Path(task.get("pictures") or "").name
    horizon = task.get("horizon", 500)
    return f" on {pictures}" if pictures else "" if horizon == 500 else f" at T = {horizon}"


def line(result: dict[str, Any], file: str, date: str, commit: str) -> str | None:
    """A ledger's line of a result with a test figure; None of one without."""
    test = result.get("test")
    if not isinstance(test, dict):
        return None
    run = result.get("run") or {}
    environment = result.get("environment") or {}
    measured = str(environment.get("commit") or commit)[:7]
    seed = run.get("seed", result.get("seed", "-"))
    name = result.get("name", Path(file).parent.name) + place_of(result)
    kept = f"{file} @ {commit}" if commit else file
    return f"| {date} | {name} | {seed} | {settings_of(run)} | {figure_of(test)} | {measured} | {kept} |"


def history() -> Iterator[str]:
    """Every version of every recorded result with a test figure, oldest first."""
    log = git("log", "--reverse", "--format=%x00%h %as", "--name-status", "--diff-filter=AM", "--", "results")
    for block in log.split("\0")[1:]:
        head, *files = block.strip().splitlines()
        commit, date = head.split()
        for file in sorted(f.split("\t")[-1] for f in files if f.endswith(".json")):
            found = json.loads(git("show", f"{commit}:{file}"))
            if isinstance(found, dict) and (said := line(found, file.removeprefix("results/"), date, commit)):
                yield said


def of_study(file: Path) -> Iterator[str]:
    """A line for each test figure in the rows of a study, which looks at test splits without being a run."""
    found = json.loads(file.read_text())
    where = found["environment"]
    for row in found["rows"]:
        name = " ".join(str(row[key]) for key in ("signal", "variant", "model", "z0") if key in row)
        said = ", ".join(f"{key} {row[key]:.4g}" for key in ("rate", "bandwidth", "train") if key in row) or "-"
        head = f"| {where['date'][:10]} | {file.stem}: {name}"
        for what, figure in study_figures(row).items():
            on = f" on {what}" if what else ""
            yield f"{head}{on} | {row.get('seed', '-')} | {said} | {figure} | {where['commit'][:7]} | {file.name} |"


def study_figures(row: dict[str, Any]) -> dict[str, str]:
    """Test figures of a study's row by what they are of."""
    if isinstance(row.get("psnr"), dict):
        return {k: f"{v['test'] if isinstance(v, dict) else v:.2f} dB" for k, v in row["psnr"].items()}
    if "photographs" in row:  # picture_factors.py
        return {kind: f"{row[kind]['test']:.2f} dB" for kind in ("photographs", "text")}
    if "test_psnr" in row:
        return {"": f"{row['test_psnr']:.2f} dB, mean of {len(row['test_each'])} seeds"}
    test = row["test"]
    return {"": figure_of(test if isinstance(test, dict) else {"accuracy": test})}


def add(lines: list[str]) -> None:
    """Lines at the ledger's end, those that are there already not twice."""
    text = FILE.read_text()
    FILE.write_text(text + "".join(f"{said}\n" for said in lines if said not in text))


def main() -> None:
    if studies := sys.argv[1:]:
        return add([line for name in studies for line in of_study(Path(name))])
    if FILE.exists():
        raise SystemExit(f"{FILE} is there: it is added to, never written anew.")
    past = list(history())
    FILE.write_text(HEAD + "".join(f"{said}\n" for said in past))
    print(f"{FILE}: {len(past)} looks")


if __name__ == "__main__":
    main()
