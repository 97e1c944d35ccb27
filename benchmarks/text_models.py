"""The next byte of a text, told by a DEQ, a reversible DEQ and a SIM of some 66,000 parameters each.

    python benchmarks/text_models.py --out results/h200/text-models.json --runs DIR [--device cuda] [--jobs 8]

Settings are chosen first, for each model by the bits a byte of the validation tenth: the text is cut before the test
tenth (`--task.windows`), so nothing of it is seen. Then each model is trained with its settings on all but the test
tenth, with three seeds, and judged on it once. Every training is a process of its own; rows are saved as they come.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from koopsim.presets import PRESETS
from koopsim.runs import environment, write_json
from koopsim.tasks import build_task

CHOICE_EPOCHS = 12
STEADY = ("--recipe.learning-rate", "5e-4", "--recipe.clip-norm", "0.25")
SETTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "deq": {
        "as it is": (),
        "implicit, slower": ("--model.gradient", "implicit", *STEADY),
        "implicit, slower, decayed": ("--model.gradient", "implicit", *STEADY, "--recipe.weight-decay", "0.5"),
        "faster": ("--recipe.learning-rate", "2e-3"),
        "decayed": ("--recipe.weight-decay", "0.5"),
        "jacobian-free, decayed": ("--model.gradient", "jacobian-free", "--recipe.weight-decay", "0.5"),
    },
    "deq-reversible": {"as it is": (), "decayed": ("--recipe.weight-decay", "0.5")},
    "sim-single": {
        "as it is": (),
        "faster": ("--recipe.learning-rate", "4e-3"),
        "decayed": ("--recipe.weight-decay", "0.5"),
    },
}


def trained(model: str, words: tuple[str, ...], seed: int, out: Path, device: str) -> dict:
    """The result of one `koopsim train`; where it failed, what it said."""
    command = [sys.executable, "-m", "koopsim", "train", f"text/{model}", "--seed", str(seed), "--device", device]
    began = time.monotonic()
    done = subprocess.run([*command, *words, "--out", str(out), "--json"], capture_output=True, text=True, check=False)
    row = {"model": model, "words": " ".join(words), "seed": seed, "process_seconds": time.monotonic() - began}
    if done.returncode:
        return row | {"failed": done.stderr[-500:]}
    result = json.loads(done.stdout)
    last = result["metrics"][-1]
    return row | {k: result[k] for k in ("test", "parameters", "train_seconds")} | {"last_epoch": last}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True, help="where the runs' folders go")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=9)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--as-they-are", action="store_true", help="the presets' settings: no choice")
    parser.add_argument("--choice-epochs", type=int, default=CHOICE_EPOCHS)
    parser.add_argument("--windows", type=int, help="only so many windows of the text, to try it out")
    arguments = parser.parse_args()
    whole = arguments.windows or len(build_task(PRESETS["text/deq"].run.task).x)  # pyright: ignore[reportAttributeAccessIssue]
    cut = ("--task.windows", str(whole - whole // 10), "--recipe.epochs", str(arguments.choice_epochs))
    rest = ("--task.windows", str(whole)) if arguments.windows else ()
    figures: dict = {"choices": [], "rows": [], "seed of the choice": 0}

    def keep(name: str, row: dict) -> dict:
        figures[name].append(row)
        write_json(arguments.out, figures | {"environment": environment()})
        print(
            row["model"],
            row.get("settings"),
            row["seed"],
            row.get("failed") or row.get("test") or row.get("valid"),
            flush=True,
        )
        return row

    def choose(model: str, settings: str) -> None:
        out = arguments.runs / f"choice-{model}-{settings.replace(', ', '-').replace(' ', '-')}"
        row = trained(model, (*SETTINGS[model][settings], *cut), 0, out, arguments.device)
        row["valid"] = row.pop("test", {"bits": float("inf")})  # of the cut text the last tenth
        keep("choices", row | {"settings": settings})

    with ThreadPoolExecutor(arguments.jobs) as pool:
        tried = [] if arguments.as_they_are else [(m, s) for m, own in SETTINGS.items() for s in own]
        list(pool.map(lambda pair: choose(*pair), tried))
        best = (
            dict.fromkeys(SETTINGS, "as it is")
            if arguments.as_they_are
            else {m: min((r for r in figures["choices"] if r["model"] == m), key=bits)["settings"] for m in SETTINGS}
        )
        figures["chosen"] = best

        def run(model: str, seed: int) -> None:
            words = (*SETTINGS[model][best[model]], *rest)
            row = trained(model, words, seed, arguments.runs / f"{model}-{seed}", arguments.device)
            keep("rows", row | {"settings": best[model]})

        list(pool.map(lambda pair: run(*pair), [(m, s) for m in SETTINGS for s in arguments.seeds]))


def bits(row: dict) -> float:
    found = row["valid"]["bits"]
    return found if found == found else float("inf")


if __name__ == "__main__":
    main()
