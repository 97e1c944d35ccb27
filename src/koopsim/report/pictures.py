"""Table 3: PSNR on the test pixels of sets of pictures, the published values beside ours."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from koopsim.report.collect import Result
from koopsim.report.tables import Table

# Paper, Table 3. The paper's pictures are others than ours: its differences between models can be compared, not its dB.
PUBLISHED = {
    "image/sim-single": {"natural": "19.67 ± 2.87", "text": "17.54 ± 2.07"},
    "image/sim-two": {"natural": "22.24 ± 3.03", "text": "23.30 ± 2.72"},
    "image/sim-rff": {"natural": "25.19 ± 3.92", "text": "27.69 ± 1.63"},
}
NAMES = {
    "image/sim-single": "SIM (single)",
    "image/sim-two": "SIM (two)",
    "image/sim-rff": "SIM (RFF only)",
    "image/tancik": "Tancik et al.",
}


def image_table(results: Sequence[Result]) -> Table | None:
    """One row a model, one column a set: mean and standard deviation over its pictures. None without any."""
    runs = [r for r in results if r["name"] in NAMES and "psnr" in r.get("test", {})]
    if not runs:
        return None
    sets = sorted({set_of(r) for r in runs})
    rows = []
    for name, title in NAMES.items():
        found = {set_of(r): r for r in runs if r["name"] == name}  # the last one of a set counts
        if found:
            cells = [_figure(found.get(s)) for s in sets]
            published = [PUBLISHED.get(name, {}).get(kind, "-") for kind in ("natural", "text")]
            rows.append([title, *cells, *published, _pace(list(found.values()))])
    head = ["model", *sets, "paper, natural", "paper, text", "ms a picture-step"]
    note = (
        "PSNR in dB on test pixels, mean ± standard deviation over the pictures of a set. The paper's pictures differ."
    )
    return Table("Image regression (Table 3)", head, rows, note)


def set_of(result: Result) -> str:
    """The name of the set of pictures a result is about."""
    return str(result.get("set") or Path(result["run"]["task"]["pictures"]).name)


def _figure(result: Result | None) -> str:
    if result is None:
        return "-"
    test = result["test"]
    return f"{test['psnr']:.2f} ± {test['psnr_std']:.2f}"


def _pace(results: list[Result]) -> str:
    """Milliseconds of a step for one picture, in the median of the results."""
    return f"{statistics.median(r['milliseconds_per_step'] / len(r['pictures']) for r in results):.2f}"
