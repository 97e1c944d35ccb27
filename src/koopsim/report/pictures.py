"""Table 3: PSNR on the test pixels of sets of pictures, the published values beside ours.   paper, section 5.3"""

import statistics
from collections.abc import Sequence

from koopsim.config import ImageRegressionConfig
from koopsim.report.kinds import Result, is_of
from koopsim.report.names import rank_of, seed_of, title_of, variant_of
from koopsim.report.tables import Table, difference
from koopsim.tasks.image_regression import pictures_of
from koopsim.tasks.table3 import PUBLISHED

BY_STEPS = ", searched by steps"
PAPERS_OWN = {"data_div2k.npz": "natural", "data_2d_text.npz": "text"}  # as its public code calls them


def image_table(results: Sequence[Result]) -> Table | None:
    """One row a set and model: mean and standard deviation over pictures, means over seeds. None without any."""
    runs = image_runs(results)
    if not runs:
        return None
    rows = []
    for pictures in sorted({pictures_of(r) for r in runs}):
        own = [r for r in runs if pictures_of(r) == pictures]
        found: dict[tuple[str, str], dict[int | str, Result]] = {}
        for r in own:  # the last one of a seed counts
            found.setdefault((r["name"], _variant(r)), {})[seed_of(r)] = r
        for name, how in sorted(found, key=lambda row: (rank_of(row[0]), row)):
            rows.append([pictures, title_of(name) + how, *_row([*found[name, how].values()], name, pictures)])
    head = ["pictures", "model", "PSNR dB", "paper", "diff", "n", "ms a picture-step"]
    own = [name for name in dict.fromkeys(row[0] for row in rows) if name in PAPERS_OWN]
    others = f"but for {' and '.join(own)} its pictures" if own else "its pictures"
    note = (
        "PSNR in dB on test pixels, mean ± standard deviation over the n pictures of a set. Diff: ours less the "
        f"paper's; {others} are others, so the models can be compared, not the decibels. Best: judged by averaged "
        "weights, which the paper does not do."
    )
    if any(BY_STEPS in row[1] for row in rows):
        note += " Searched by steps: per picture, trials judged after at most 100 steps, as by the paper's public code."
    return Table("Image regression (Table 3)", head, rows, note, words=2)


def image_runs(results: Sequence[Result]) -> list[Result]:
    """The runs of image regression that were judged on test pixels."""
    return [r for r in results if is_of(r, ImageRegressionConfig) and "psnr" in r.get("test", {})]


def _variant(result: Result) -> str:
    """A model of our own, or a search as the paper's code does it: judged after at most a hundred steps."""
    by_steps = "settings" in result and result["run"]["task"].get("steps_an_epoch") == 1
    return variant_of(result) + (BY_STEPS if by_steps else "")


def _row(seeds: Sequence[Result], name: str, pictures: str) -> list[str]:
    last = seeds[-1]
    psnr, spread = (statistics.fmean(r["test"][key] for r in seeds) for key in ("psnr", "psnr_std"))
    count = len(last.get("pictures") or [None])
    published = "-" if variant_of(last) else PUBLISHED.get(name, {}).get(_kind(pictures), "-")
    pace = last["milliseconds_per_step"] / count
    n = str(count) if len(seeds) == 1 else f"{count} × {len(seeds)} seeds"
    return [f"{psnr:.2f} ± {spread:.2f}", published, difference([psnr], published, ".2f"), n, f"{pace:.2f}"]


def _kind(pictures: str) -> str:
    """Which of the paper's two sets this one is, or stands for."""
    kinds = {**PAPERS_OWN, "kodak16": "natural"}  # natural16 by its name
    start = next((kind for kind in ("natural", "text") if pictures.startswith(kind) and " at " not in pictures), "")
    return kinds.get(pictures, start)
