"""Learning curves for the page: a chart a data set, a series a run, against run-time or epochs.   paper, Figure 3"""

from collections.abc import Sequence
from typing import Any

from koopsim.report.charts import Axis, Chart, Series, short
from koopsim.report.collect import Result
from koopsim.report.names import place_of, seed_of, slot_of, title_of

MOST_POINTS = 300  # of a series: more cannot be told apart on a screen


def curve_charts(results: Sequence[Result]) -> list[Chart]:
    """The charts in the order of the data sets' first runs."""
    charts: dict[str, Chart] = {}
    for result in results:
        if result["metrics"]:
            place = place_of(result)
            charts[place] = charts.get(place) or _empty(result)
            charts[place].series.append(_series(result))
    return list(charts.values())


def _empty(result: Result) -> Chart:
    pictures = result["run"]["task"]["kind"] == "ImageRegressionConfig"
    figure = "PSNR of training pixels, dB" if pictures else "training loss"
    floor = result.get("test", {}).get("memoryless_loss", 0.0)
    x, y = (Axis(1, log=True), Axis(0, whole=True)), Axis(2, log=not pictures)
    rule = (floor, "without memory") if 0 < floor < 1e300 else None
    return Chart(place_of(result), ("epoch", "seconds", figure), x, y, "line", switches=True, rule=rule)


def _series(result: Result) -> Series:
    figure = "train_psnr" if result["run"]["task"]["kind"] == "ImageRegressionConfig" else "train_loss"
    points = [[short(line[key]) for key in ("epoch", "seconds", figure)] for line in thinned(result["metrics"])]
    return Series(title_of(result["name"]), slot_of(result["name"]), points, f"seed {seed_of(result)}")


def thinned(lines: Sequence[Any], most: int = MOST_POINTS) -> Sequence[Any]:
    """At most `most` of the lines, evenly, the first and the last among them."""
    if len(lines) <= most:
        return lines
    return [lines[round(i * (len(lines) - 1) / (most - 1))] for i in range(most)]
