"""Searches on the page: a table of them, the best so far, and how much the learning rate matters."""

from collections.abc import Sequence

from koopsim.report.charts import Axis, Chart, PointSeries, short
from koopsim.report.kinds import figures
from koopsim.report.searches import SearchFound, running_best
from koopsim.report.tables import Table


def search_table(searches: Sequence[SearchFound]) -> Table | None:
    """One row a search: what it looked for, how much it tried, what it chose."""
    if not searches:
        return None
    rows = []
    for search in searches:
        best = search.best()
        failed = sum(t.figure is None for t in search.trials)
        figure = "-" if best is None or best.figure is None else _shown(best.figure, search.metric)
        rate = "-" if best is None else f"{best.learning_rate:.3g}"
        time = "-" if search.seconds is None else f"{search.seconds:.0f} s"
        rows.append(
            [search.subject, search.name, str(len(search.trials)), search.metric, figure, rate, time, str(failed)]
        )
    head = ["for", "search", "trials", "metric", "best", "learning rate", "time", "failed"]
    note = "Best: the last figure on the validation split (the mean of the last K by --judge-over K), where it is best."
    doubts = [f"{search.name}: {doubt}" for search in searches for doubt in search.doubts]
    return Table("Searches", head, sorted(rows), " ".join([note, *doubts]), words=2)


def _shown(figure: float, metric: str) -> str:
    known = figures().get(metric)
    return (known.form if known else "{:.3g}").format(figure)


def search_charts(searches: Sequence[SearchFound]) -> list[tuple[Chart, Chart]]:
    """For each thing searched for: the best so far against trials, and every figure against its learning rate."""
    pairs: dict[str, tuple[Chart, Chart]] = {}
    for search in sorted(searches, key=lambda s: (s.subject, s.name)):
        log, metric = search.lower_is_better, f"validation {search.metric}"
        best = Chart(f"{search.subject}: best so far", ("trial", metric), (Axis(0, whole=True),), Axis(1, log), "steps")
        rates = Chart(
            f"{search.subject}: learning rate", ("learning rate", metric), (Axis(0, True),), Axis(1, log), "dots"
        )
        pair = pairs.setdefault(search.subject, (best, rates))
        slot = 4 + len(pair[0].series) % 5
        known = [t for t in search.trials if t.figure is not None]
        steps = [(i + 1, y) for i, y in enumerate(running_best(search)) if y is not None]
        pair[0].series.append(PointSeries(search.name, slot, [[float(i), short(y)] for i, y in steps]))
        points = [[short(t.learning_rate), short(t.figure or 0.0)] for t in known]
        pair[1].series.append(PointSeries(search.name, slot, points, texts=[t.settings for t in known]))
    return [pair for pair in pairs.values() if sum(len(s.points) for s in pair[1].series) > 1]  # one point says nothing
