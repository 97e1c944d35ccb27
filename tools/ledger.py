"""The ledger of looks at test splits, results/LEDGER.md: a line each time a test figure of a row was recorded.

    python tools/ledger.py            # begin it: the past, out of the repository's history
    python tools/ledger.py FILE...    # add the test figures of studies: results/picture-gap.json, signals.json, ...

A row that is chosen in view of its test figure is tuned on the test split, so every look is written down and none is
taken out again. tools/record.py adds lines; runs count their own looks in looks.jsonl (koopsim/runs.py).
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "results" / "LEDGER.md"
HEAD = """# Looks at test splits

A line each time a test figure was computed: of a row of the tables, or of a study beside them. Those kept in
"FILE @ COMMIT" were read out of the repository's history (`tools/ledger.py`), the others were added by
`tools/record.py` and `tools/ledger.py FILE`. Lines are added; no figure is changed or taken out. What was changed in
lines: the last column of two lines of sequences (eca0952, 1e11eec), the `h200/` of picture-bandwidths and
picture-steps, which was missing; fecb2f1 took out the second of two lines of one look (text/deq, 2.194 bits). On
2026-11-19 lines were added for looks that were in files and not here: 103 up to that of bridge-mondeq, five of
theory-starts. The last column is the place a run was recorded in; if another has taken that place since, or if it was
put by at once, the run lies in earlier/ as NAME@COMMIT, the commit of the column before.

Where a row appears with other settings at a later date, its settings were chosen after an earlier figure had been seen:
its figure is to that extent tuned on the test split. These are, on CIFAR-10, SIM (single), (two) and best and monDEQ
(single) and (multi); on SVHN SIM (single) and (two); on MNIST SIM (single), (two) and best; all rows of Table 3.
A line of sequences and of the ten tables tells several looks at once. Pictures of 2026-11-15 (image-sim-single-*,
image-sim-two-*, image-sim-rff-*-best and -cosine, and image-*@00e904b in earlier/) have the test PSNR of each of 20
epochs in their files: twenty looks a line, of which the last counts. The lines of picture-gap.json @ 4789b96, 5a7e9f5
and d2f9ef0 are that file while it grew, with the figures it has now. Looks that left no file behind are not here: until
2026-11-16 `koopsim eval` kept no count, and on 2026-11-19 two trainings of CIFAR-10's SIM (single) of three epochs on
3,000 images, made to time a step, said 30.8 and 36.0% of 500 test images; so did, the same day, two of copy memory at
T = 2,000 (0.01034 and 0.01041 after 1,000 steps, 10 sequences, no better than without memory) and two of ten steps on
the first two pictures of `text` (SIM (RFF only) 16.98, Tancik's network 18.08 dB). Nothing was chosen by any of them.

| date | row | seed | settings | test figure | measured at | kept in |
|---|---|---|---|---|---|---|
"""
SETTINGS = ("batch_size", "epochs", "learning_rate", "schedule", "weight_decay", "clip_norm")
FIGURES = ("accuracy", "psnr", "loss")
# What a study names its rows by, and the numbers that belong to them.
NAMES = ("name", "signal", "variant", "model", "z0", "way", "precision", "picture", "set", "schedule", "weights")
NUMBERS = ("rate", "bandwidth", "train", "decay", "unit", "gain")


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


def said_of(found: Any, file: str, date: str, commit: str) -> Iterator[str]:
    """Every line of a recorded file: of a run or search, of its further seeds, of a study's rows."""
    if not isinstance(found, dict):
        return
    if said := line(found, file, date, commit):
        yield said
    values = (found.get("test_over_seeds") or {}).get("values", [])
    for number, value in enumerate(values[1:], 2):  # the first is `test`
        run = ((found.get("best") or {}).get("run") or {}) | {"seed": f"{number} of {len(values)}"}
        yield line(found | {"test": {found["test_over_seeds"]["metric"]: value}, "run": run}, file, date, commit) or ""
    yield from of_study(found, f"{file} @ {commit}" if commit else file)


def history() -> Iterator[str]:
    """Every version of every recorded result with a test figure, oldest first."""
    log = git("log", "--reverse", "--format=%x00%h %as", "--name-status", "--diff-filter=AM", "--", "results")
    for block in log.split("\0")[1:]:
        head, *files = block.strip().splitlines()
        commit, date = head.split()
        for file in sorted(f.split("\t")[-1] for f in files if f.endswith(".json")):
            found = json.loads(git("show", f"{commit}:{file}"))
            yield from said_of(found, file.removeprefix("results/"), date, commit)


def of_study(found: dict[str, Any], kept: str) -> Iterator[str]:
    """A line for each test figure in the rows of a study, which looks at test splits without being a run."""
    where, stem = found.get("environment") or {}, Path(kept.partition(" @ ")[0]).stem.partition("@")[0]
    date, commit = str(where.get("date"))[:10], str(where.get("commit") or "-")[:7]
    seen: Counter[str] = Counter()
    for row in rows_of(found):
        name = " ".join(str(row[key]).removeprefix("/root/in/") for key in NAMES if row.get(key) is not None)
        name = name or str(found.get("preset", ""))
        numbers = [f"{key} {row[key]:.4g}" for key in NUMBERS if row.get(key) and not isinstance(row[key], str)]
        run = row.get("run") or {}
        said = settings_of(run) if run else ", ".join(numbers) or " ".join(found.get("words", [])) or "-"
        seed = row.get("seed", run.get("seed", "-"))
        for what, figure in study_figures(row).items():
            head = f"| {date} | {stem}: {name}{f' on {what}' if what else ''}"
            seen[head + str(seed) + said] += 1
            turn = seen[head + str(seed) + said]
            yield f"{head}{f', turn {turn}' if turn > 1 else ''} | {seed} | {said} | {figure} | {commit} | {kept} |"


def rows_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a study with hundreds of rows and a summary of them (image-recipes.json) the summary."""
    summary, rows = found.get("summary"), found.get("rows", found.get("models"))
    if isinstance(summary, list) and summary and isinstance(summary[0], dict) and "test" in summary[0]:
        return summary
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def study_figures(row: dict[str, Any]) -> dict[str, str]:
    """Test figures of a study's row by what they are of; none where it has none."""
    psnr = row.get("psnr")
    if isinstance(psnr, dict):
        return {k: f"{v['test'] if isinstance(v, dict) else v:.2f} dB" for k, v in psnr.items()}
    if isinstance(row.get("photographs"), dict):  # picture_factors.py
        return {kind: f"{row[kind]['test']:.2f} dB" for kind in ("photographs", "text")}
    if "test_psnr" in row:
        seeds = f", mean of {len(row['test_each'])} seeds" if "test_each" in row else ""
        return {"": f"{row['test_psnr']:.2f} dB{seeds}"}
    if "test_from_zero" in row:  # theory.py starts: the same weights from another start
        return {what: figure_of({"accuracy": row[key]}) for what, key in {"": "test", "zero": "test_from_zero"}.items()}
    test = row.get("test", row.get("accuracy"))
    if isinstance(test, dict):
        return {"": figure_of(test)}
    if not isinstance(test, int | float):
        return {}
    return {"": figure_of({"accuracy" if test <= 1 else "psnr": test})}  # a share or decibels


def add(lines: list[str]) -> None:
    """Lines at the ledger's end, those that are there already not twice."""
    text = FILE.read_text()
    FILE.write_text(text + "".join(f"{said}\n" for said in lines if said not in text))


def main() -> None:
    if studies := sys.argv[1:]:
        for name in studies:
            kept = str(Path(name).resolve().relative_to(FILE.parent))
            add(list(of_study(json.loads(Path(name).read_text()), kept)))
        return
    if FILE.exists():
        raise SystemExit(f"{FILE} is there: it is added to, never written anew.")
    past = list(history())
    FILE.write_text(HEAD + "".join(f"{said}\n" for said in past))
    print(f"{FILE}: {len(past)} looks")


if __name__ == "__main__":
    main()
