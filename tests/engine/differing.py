"""Two gloo ranks that do not go together: `python differing.py FOLDER OUT` writes {case: [what each rank said]}."""

import json
import os
import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch

from koopsim.config import ClassificationConfig, Recipe, Run, SIMConfig, VGGConfig
from koopsim.engine.world import joined_world
from koopsim.errors import KoopsimError
from koopsim.training import Session, start_run

CPU = torch.device("cpu")
CASES = ("versions", "data", "missing", "path", "fine")
RUN = Run(
    SIMConfig(VGGConfig(2, (1, 8, 8)), lift_dim=4, hidden=4, outputs=2),
    ClassificationConfig("data.npz"),
    Recipe(batch_size=4, epochs=1),
)


def pictures(folder: Path, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 255, (12, 1, 8, 8), np.uint8)
    np.savez(folder / "data.npz", x_train=x, y_train=np.arange(12) % 2, x_test=x, y_test=np.arange(12) % 2)


def own_place(case: str, number: int, folder: Path) -> Path:
    """The folder a rank is in, with data of its own where it has any."""
    place = folder / case / str(number)
    place.mkdir(parents=True)
    if not (case == "missing" and number == 1):
        pictures(place, number if case == "data" else 0)
    return place


def rank(case: str, number: int, folder: Path) -> str:
    torch.set_num_threads(1)
    os.chdir(own_place(case, number, folder))
    os.environ |= {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(29_000 + (os.getppid() * len(CASES) + CASES.index(case)) % 900)
    if case == "versions" and number == 1:
        platform.python_version = lambda: "3.99.0"
    out = Path("run") if case == "path" else folder / case / "run"
    began = time.monotonic()
    try:
        with joined_world(CPU) as world:
            start_run(RUN, out, "x", Session(CPU, world=world))
        said = "done"
    except KoopsimError as error:
        said = str(error)
    return f"{said} ({'late' if time.monotonic() - began > 60 else 'in time'})"


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    found = {}
    for case in CASES:
        pids = []
        for number in range(2):
            pid = os.fork()
            if pid == 0:
                try:
                    (folder / f"{case}-{number}").write_text(rank(case, number, folder))
                finally:
                    os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        found[case] = [(folder / f"{case}-{number}").read_text() for number in range(2)]
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
