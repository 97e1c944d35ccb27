from made_runs import made

from koopsim.report.pictures import image_table


def result(name, pictures, psnr, **more):
    found = made(name, psnr=psnr, psnr_std=1.5) | more
    found["run"]["task"]["pictures"] = f"somewhere/{pictures}"
    return found | {"milliseconds_per_step": 4.0}


def test_a_row_a_set_and_model_the_paper_beside_it():
    table = image_table(
        [
            result("image/sim-rff", "text16", 27.0),
            result("image/sim-rff", "natural16", 25.0),
            result("image/tancik", "elsewhere", 24.5, set="natural16"),
            made("copy/deq"),
        ]
    )
    assert table is not None
    assert table.rows == [
        ["natural16", "SIM (RFF only)", "25.00 ± 1.50", "25.19 ± 3.92", "−0.19", "2", "2.00"],
        ["natural16", "Tancik et al.", "24.50 ± 1.50", "-", "-", "2", "2.00"],
        ["text16", "SIM (RFF only)", "27.00 ± 1.50", "27.69 ± 1.63", "−0.69", "2", "2.00"],
    ]
    assert "| natural16 | SIM (RFF only) | 25.00" in table.markdown()


def test_the_papers_own_sets_and_kodaks_have_its_figures_beside_them():
    sets = {"data_div2k.npz": "25.19 ± 3.92", "data_2d_text.npz": "27.69 ± 1.63"}
    sets |= {"kodak16": "25.19 ± 3.92", "kodak8": "-"}
    table = image_table([result("image/sim-rff", name, 25.0) for name in sets])
    assert table is not None
    assert {row[0]: row[3] for row in table.rows} == sets
    assert "but for data_2d_text.npz and data_div2k.npz its pictures are others" in table.note
    others = image_table([result("image/sim-rff", "kodak16", 25.0)])
    assert others is not None
    assert "paper's; its pictures are others" in others.note


def test_other_starts_and_searches_have_rows_of_their_own():
    even = result("image/sim-rff", "text16", 28.0)
    even["run"]["model"]["start"] = "even"
    steps = result("image/sim-rff", "text16", 26.0, settings={})
    steps["run"]["task"]["steps_an_epoch"] = 1
    limits = [result("image/sim-rff", "text16", psnr) for psnr in (28.5, 29.0)]
    for of, rank in zip(limits, (100, 512), strict=True):
        of["run"]["model"] |= {"projector": True, "rank": rank}
    table = image_table([result("image/sim-rff", "text16", 27.0), even, steps, *limits])
    assert table is not None
    shown = {row[1]: row[2:4] for row in table.rows}
    assert shown == {
        "SIM (RFF only)": ["27.00 ± 1.50", "27.69 ± 1.63"],
        "SIM (RFF only), even start": ["28.00 ± 1.50", "-"],
        "SIM (RFF only), searched by steps": ["26.00 ± 1.50", "27.69 ± 1.63"],
        "SIM (RFF only), V U = I": ["28.50 ± 1.50", "-"],
        "SIM (RFF only), without U V": ["29.00 ± 1.50", "-"],
    }
    assert "100 steps" in table.note


def test_seeds_of_a_set_are_one_row_and_a_seed_measured_again_counts_once():
    runs = [result("image/sim-rff", "text", psnr) for psnr in (20.0, 26.0, 28.0)]
    for run, seed in zip(runs, (0, 0, 1), strict=True):
        run["run"]["seed"] = seed
    runs[1]["test"]["psnr_std"] = 2.5
    table = image_table(runs)
    assert table is not None
    assert table.rows == [["text", "SIM (RFF only)", "27.00 ± 2.00", "27.69 ± 1.63", "−0.69", "2 × 2 seeds", "2.00"]]


def test_small_pictures_are_not_compared_with_the_paper():
    table = image_table([made("image/sim-rff", scale="smoke")])
    assert table is not None
    assert table.rows[0][:4] == ["photographs at 64", "SIM (RFF only)", "25.00 ± 1.50", "-"]


def test_without_pictures_there_is_no_table():
    assert image_table([]) is None
    assert image_table([made("copy/deq")]) is None
