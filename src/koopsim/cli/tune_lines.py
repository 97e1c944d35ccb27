"""What `koopsim tune` prints at its end: the lines of one search, or a line a picture."""

from pathlib import Path
from typing import Any

from koopsim.files.json import json_text


def show_search(result: dict[str, Any], path: Path, as_json: bool) -> int:
    """The best trial, what was confirmed, what to doubt, the test figures."""
    if as_json:
        print(json_text(result))
        return 0
    best, metric = result["best"], result["metric"]
    ended = ", ".join(f"{count} {status}" for status, count in result["ended"].items())
    print(f"{result['name']}  {result['trials']} trials in {result['seconds']:.1f} s: {ended}")
    looks = _over(result, best["t"])
    print(f"best: trial {best['trial']}, validation {metric} {best[metric]:.4g}{looks} after {best['t']} epochs")
    for name, value in best["values"].items():
        print(f"  {name:<28} {_shown(value)}")
    for line in _confirmed_lines(result.get("confirmed", []), f"{metric}{_over(result)}"):
        print(line)
    for doubt in result.get("doubts", []):
        print(f"note: {doubt}")
    if "test" in result:
        figures = "  ".join(f"{key} {value:.4g}" for key, value in result["test"].items())
        print(f"trained again: test {figures}")
        over = result["test_over_seeds"]
        if len(over["values"]) > 1:
            print(f"over {len(over['values'])} seeds: {metric} {over['mean']:.4g} +- {over['std']:.2g}")
    print(f"all of it in {path}: trials.csv, {', '.join(result['pictures'])}")
    return 0


def _over(result: dict[str, Any], most: int | None = None) -> str:
    """What a figure is the mean of, where it is one; of a trial with `most` looks at most those."""
    looks = result.get("judge_over", 1)
    looks = looks if most is None else min(looks, most)
    return f" (mean of the last {looks} looks)" if looks > 1 else ""


def _confirmed_lines(rows: list[dict[str, Any]], metric: str) -> list[str]:
    """The best configurations with fresh seeds, the chosen one first."""
    if not rows:
        return []
    lines = [f"confirmed with {len(rows[0]['seeds'])} other seeds each, validation {metric}:"]
    for row in rows:
        lost = row["figures"].count(None)
        mean = "none" if row["mean"] is None else f"{row['mean']:.4g} +- {row['std']:.2g}"
        gone = f", {lost} diverged or failed" if lost else ""
        before = f"in the search {row['in_search']:.4g} after {row['in_search_epochs']} epochs"
        lines.append(f"  trial {row['trial']:<5} {mean:<22} {before}{gone}")
    return lines


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_pictures(result: dict[str, Any], path: Path, as_json: bool) -> int:
    """A line a picture."""
    if as_json:
        print(json_text(result))
        return 0
    judged = [split for split in ("valid", "test") if split in result]
    for name in result["pictures"]:
        figures = "  ".join(f"{split} {result[split][f'psnr/{name}']:.2f} dB" for split in judged)
        values = "  ".join(
            f"{key.rpartition('.')[2]} {_shown(value)}" for key, value in result["settings"][name].items()
        )
        print(f"{name:<16} {figures}  {values}")
    means = "  ".join(f"{split} {result[split]['psnr']:.2f} +- {result[split]['psnr_std']:.2f} dB" for split in judged)
    print(f"{result['name']}  {len(result['pictures'])} pictures in {result['seconds']:.1f} s: {means}")
    if _over(result):
        print(f"valid{_over(result)}")
    print(f"all of it in {path}: a search a picture, and result.json")
    return 0
