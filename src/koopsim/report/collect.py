"""Which runs there are: finished run directories, or result files that were kept of them."""

import json
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError

Result = dict[str, Any]
NEEDED = ("name", "parameters", "metrics", "run", "environment", "milliseconds_per_step")


def collect(paths: list[Path]) -> tuple[list[Result], list[str]]:
    """(results, what was skipped and why) of every result file in or below `paths`."""
    results, skipped = [], []
    for path in paths:
        if not path.exists():
            raise KoopsimError(f"There is no file or folder {path}.")
        for file in [path] if path.is_file() else _result_files(path):
            try:
                result = json.loads(file.read_text())
            except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
                skipped.append(f"{file}: {error}")
                continue
            missing = [key for key in NEEDED if key not in result] if isinstance(result, dict) else list(NEEDED)
            if missing:
                skipped.append(f"{file}: not the result of a run (no {', '.join(missing)})")
            else:
                results.append(result)
        for config in sorted(path.rglob("config.json")) if path.is_dir() else []:
            if not (config.parent / "result.json").exists():
                skipped.append(f"{config.parent}: unfinished; koopsim train --resume {config.parent}")
    return results, skipped


def _result_files(folder: Path) -> list[Path]:
    """result.json of run directories, and kept results, which are JSON files named after their run."""
    run_files = {"config.json", "env.json", "mistakes.json"}
    return [file for file in sorted(folder.rglob("*.json")) if file.name not in run_files]
