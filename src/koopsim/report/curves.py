"""Learning curves for the page: a chart a data set, a series a run, against run-time or epochs.   paper, Figure 4"""

from collections.abc import Sequence
from typing import Any

from koopsim.report.charts import Axis, Chart, PointSeries, short
from koopsim.report.kinds import Result, task_kind_of
from koopsim.report.names import look_of, place_of, seed_of

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
    curve = task_kind_of(result).curve
    floor = result.get("test", {}).get("memoryless_loss", 0.0)
    x, y = (Axis(1, log=True), Axis(0, whole=True)), Axis(2, log=curve.log)
    rule = (floor, "without memory") if 0 < floor < 1e300 else None
    return Chart(place_of(result), ("epoch", "seconds", curve.title), x, y, "line", switches=True, rule=rule)


def _series(result: Result) -> PointSeries:
    look, keys = look_of(result["name"]), ("epoch", "seconds", task_kind_of(result).curve.key)
    points = [[short(line[key]) for key in keys] for line in thinned(result["metrics"])]
    return PointSeries(look.title, look.slot, points, f"seed {seed_of(result)}")


def thinned(lines: Sequence[Any]) -> Sequence[Any]:
    """So many of the lines at most, evenly, the first and the last among them."""
    if len(lines) <= MOST_POINTS:
        return lines
    return [lines[round(i * (len(lines) - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
