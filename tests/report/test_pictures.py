from koopsim.report.pictures import image_table


def result(name, pictures, psnr, **more):
    return {
        "name": name,
        "test": {"psnr": psnr, "psnr_std": 1.5},
        "pictures": ["a", "b"],
        "milliseconds_per_step": 4.0,
        "run": {"task": {"pictures": f"somewhere/{pictures}"}},
        **more,
    }


def test_models_are_rows_and_sets_are_columns():
    table = image_table(
        [
            result("image/sim-rff", "text16", 27.0),
            result("image/sim-rff", "natural16", 25.0),
            result("image/tancik", "elsewhere", 24.5, set="natural16"),
            result("copy/deq", "natural16", 1.0),
        ]
    )
    assert table is not None
    assert list(table.head[1:3]) == ["natural16", "text16"]
    assert [row[0] for row in table.rows] == ["SIM (RFF only)", "Tancik et al."]
    assert table.rows[0][1:] == ["25.00 ± 1.50", "27.00 ± 1.50", "25.19 ± 3.92", "27.69 ± 1.63", "2.00"]
    assert table.rows[1][1:3] == ["24.50 ± 1.50", "-"]
    assert "| SIM (RFF only) | 25.00" in table.markdown()


def test_without_pictures_there_is_no_table():
    assert image_table([]) is None
    assert image_table([{"name": "copy/deq", "test": {"loss": 1.0}}]) is None
