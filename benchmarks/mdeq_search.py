"""A small search for the multiscale DEQ of Table 2, which was never searched while SIM and monDEQ were; then its rows.

    python benchmarks/mdeq_search.py search --out OUT/mdeq-search.json --runs OUT/mdeq-search [--lanes 4]     130 s
    python benchmarks/mdeq_search.py rows --out OUT/mdeq-search.json --runs OUT/mdeq-search                   190 s
    ... --rehearse --device cpu                                                      the same on the digits, in small

The budget was decided before (results/BUDGETS.md): each setting is trained once for a few epochs with a schedule of
that length, by `koopsim tune` with one trial, which judges on the validation tenth and never looks at test. The most
accurate one is then trained on train+valid for all epochs with three seeds, one look each. Trainings are processes
beside each other (start NVIDIA's MPS before); each is written down as it ends, and `rows` reads what `search` chose.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from koopsim.runs import environment, write_json

STEPS, GRADIENT, DECAY = "--model.forward.max-steps", "--model.gradient", "--recipe.weight-decay"
SETTINGS: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "slower": ("--recipe.learning-rate", "1e-3"),
    "faster": ("--recipe.learning-rate", "4e-3"),
    "more steps": (STEPS, "20"),
    "phantom": (GRADIENT, "phantom"),
    "decayed": (DECAY, "0.05"),
    "slower, more steps, decayed": ("--recipe.learning-rate", "1e-3", STEPS, "20", DECAY, "0.05"),
    "looser": ("--model.forward.tolerance", "3e-2"),
}
EPOCHS = 3  # of a trial
SEED = 100  # of the trials; the rows have 0, 1, 2


def verb(words: list[str], out: Path, arguments: argparse.Namespace) -> dict:
    """The result of a verb in a process of its own, or what it said when it failed; over after --limit seconds."""
    command = [sys.executable, "-m", "koopsim", *words, "--device", arguments.device, "--out", str(out), "--json"]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out_text, said = process.communicate(timeout=arguments.limit)
            found = json.loads(out_text) if process.returncode == 0 else {"failed": said[-500:]}
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it saves itself: a client of MPS that is killed takes all others along
            process.communicate()
            found = {"failed": f"not over after {arguments.limit} s"}
    return found | {"process_seconds": time.monotonic() - began}


def trial(name: str, arguments: argparse.Namespace) -> dict:
    own = dict(zip(SETTINGS[name][::2], SETTINGS[name][1::2], strict=True))
    rate = own.pop("--recipe.learning-rate", "3e-3" if arguments.rehearse else "2e-3")
    space = [f"recipe.learning_rate={rate}", f"recipe.batch_size={32 if arguments.rehearse else 128}",
             f"recipe.epochs={1 if arguments.rehearse else EPOCHS}", "recipe.schedule=onecycle"]  # fmt: skip
    words = ["tune", arguments.preset, "--trials", "1", "--retrain", "0", "--seed", str(SEED), "--search", *space]
    words += [word for pair in own.items() for word in pair] + arguments.scale
    found = verb(words, arguments.runs / f"trial-{name.replace(', ', '-').replace(' ', '-')}", arguments)
    kept = {key: found[key] for key in ("failed", "process_seconds", "seconds") if key in found}
    return {"settings": name, "words": " ".join(words)} | kept | {"valid": found.get("best", {}).get("accuracy")}


def row(seed: int, settings: str, arguments: argparse.Namespace) -> dict:
    words = ["train", arguments.preset, "--seed", str(seed), *SETTINGS[settings], *arguments.scale]
    found = verb(words, arguments.runs / f"cifar10-mdeq-seed{seed}", arguments)
    kept = {key: found[key] for key in ("failed", "process_seconds", "test", "train_seconds") if key in found}
    return {"seed": seed, "settings": settings} | kept | {"last_epoch": (found.get("metrics") or [None])[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("search", "rows"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--limit", type=float, default=280, help="seconds a training may take")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    arguments.preset = "digits/mdeq" if arguments.rehearse else "cifar10/mdeq"
    arguments.scale = ["--scale", "smoke"] if arguments.rehearse else []
    figures = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"trials": [], "rows": []}

    def keep(name: str, found: dict) -> None:
        figures[name].append(found)
        write_json(arguments.out, figures | {"environment": environment()})
        print({key: value for key, value in found.items() if key not in ("words", "last_epoch")}, flush=True)

    with ThreadPoolExecutor(arguments.lanes) as pool:
        if arguments.what == "search":
            tried = list(SETTINGS)[:: 4 if arguments.rehearse else 1]
            list(pool.map(lambda name: keep("trials", trial(name, arguments)), tried))
            return
        judged = [found for found in figures["trials"] if found.get("valid") is not None]
        if not judged:
            raise SystemExit(f"{arguments.out} has no trial that ended: run `search` first.")
        figures["chosen"] = max(judged, key=lambda found: found["valid"])["settings"]
        list(pool.map(lambda seed: keep("rows", row(seed, figures["chosen"], arguments)), range(3)))


if __name__ == "__main__":
    main()
