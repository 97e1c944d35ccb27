from made_runs import made

from koopsim.report.page import Piece, piece_html
from koopsim.report.speed import ratios, speed_bars, speed_table


def test_the_ratio_is_of_seconds_an_epoch():
    sim, deq = made("copy/sim-single", seconds=40.0), made("copy/deq", seconds=300.0)
    deq["run"]["recipe"]["epochs"] = 10
    (ratio,) = ratios([sim, deq])
    assert (ratio.sim_seconds, ratio.other_seconds, ratio.times) == (2.0, 30.0, 15.0)
    assert ratio.sim_setting == "1 in float32"
    table = speed_table([ratio])
    assert table is not None
    assert table.rows[0][:6] == ["Copy memory, T = 500", "SIM (single)", "DEQ", "15.0×", "2.00", "30.00"]
    assert "15.0×" in piece_html(Piece("bars", speed_bars([ratio])))


def test_epochs_are_those_that_were_trained():
    sim, deq = made("copy/sim-single", seconds=40.0), made("copy/deq", seconds=300.0)
    sim["run"]["recipe"]["patience"] = 2
    sim["metrics"] = [
        {"epoch": epoch, "step": epoch, "seconds": 10.0 * epoch, "train_loss": 1.0} for epoch in range(1, 5)
    ]
    (ratio,) = ratios([sim, deq])
    assert ratio.sim_seconds == 10.0  # of the four that its patience left it, not of twenty


def test_the_fastest_seed_counts():
    sims = [made("copy/sim-single", seed=s, seconds=t) for s, t in enumerate((40.0, 20.0, 1000.0))]
    (ratio,) = ratios([*sims, *(made("copy/deq", seed=s, seconds=t) for s, t in enumerate((400.0, 900.0)))])
    assert ratio.times == 20.0


def test_only_the_same_data_machine_and_recipe_are_compared():
    sim = made("mnist/sim-single")
    others = [made("cifar10/mondeq-single"), made("mnist/mondeq-single", gpu="another GPU"), made("mnist/sim-two")]
    assert ratios([sim, *others, made("mnist/sim-single:best")]) == []
    assert len(ratios([sim, *others, made("mnist/mondeq-multi")])) == 2
    assert speed_table([]) is None


def test_a_run_without_a_time_is_not_compared():
    assert ratios([made("copy/sim-single", seconds=0.0), made("copy/deq")]) == []
