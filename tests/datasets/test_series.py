"""Whatever file it comes in, the same numbers; and a sentence for what cannot be used."""

import numpy as np
import pytest

from koopsim.datasets.series import read_numbers, read_series
from koopsim.errors import KoopsimError

T = np.arange(20) * 0.5
Z = np.c_[np.cos(T), np.sin(T)]


def written(folder, kind):
    path = folder / f"z.{kind}"
    if kind in ("csv", "tsv"):
        np.savetxt(path, np.c_[T, Z], delimiter="," if kind == "csv" else "\t",
                   header=("," if kind == "csv" else "\t").join(["time", "x", "y"]), comments="")  # fmt: skip
    elif kind == "npz":
        np.savez(path, t=T, x=Z[:, 0], y=Z[:, 1])
    elif kind == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"time": T, "x": Z[:, 0], "y": Z[:, 1]}), path)
    else:
        xarray = pytest.importorskip("xarray")
        pytest.importorskip("h5netcdf")
        data = xarray.Dataset({"x": ("time", Z[:, 0]), "y": ("time", Z[:, 1])}, {"time": T})
        data.to_netcdf(path, engine="scipy" if kind == "cdf" else "h5netcdf")
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "npz", "parquet", "nc", "h5", "cdf"])
def test_every_format_says_the_same(tmp_path, kind):
    found = read_series(written(tmp_path, kind))
    assert found.names == ("x", "y")
    np.testing.assert_allclose(found.tables[0], Z, atol=1e-12)
    np.testing.assert_allclose(found.times[0], T)
    assert found.meaning(None) == "trajectory"


def test_plain_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "z.hdf5", "w") as file:
        file["states"] = Z
        file["time"] = T
    found = read_series(tmp_path / "z.hdf5")
    assert found.names == ("states0", "states1")
    np.testing.assert_allclose(found.tables[0], Z)


def test_space_is_flattened(tmp_path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    field = np.arange(24.0).reshape(4, 2, 3)
    xarray.Dataset({"u": (("time", "y", "x"), field)}, {"time": range(4), "x": range(3)}).to_netcdf(
        tmp_path / "f.nc", engine="h5netcdf"
    )
    found = read_series(tmp_path / "f.nc")
    np.testing.assert_array_equal(found.tables[0], field.reshape(4, 6))


def test_several_trajectories_missing_cells_and_dates(tmp_path):
    (tmp_path / "a.csv").write_text("trajectory,t,x\n1,0,5\n1,1,\n1,2,7\n2,0,1\n2,1,NA\n")
    found = read_series(tmp_path / "a.csv")
    assert [len(t) for t in found.tables] == [3, 2]
    assert np.isnan(found.tables[0][1, 0])
    np.testing.assert_array_equal(found.times[1], [0, 1])
    (tmp_path / "b.csv").write_text("time,x\n2024-01-01T00:00:00,1\n2024-01-01T00:01:00,2\n")
    np.testing.assert_array_equal(read_series(tmp_path / "b.csv").times[0], [0, 60])


def test_columns_are_taken_out_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", x=Z, u=np.ones((19, 2)))
    states, control = read_series(tmp_path / "a.npz").take_out(("u",))
    assert states.names == ("x0", "x1")
    assert control[0].shape == (20, 2)
    with pytest.raises(KoopsimError, match="no column 'q'"):
        states.take_out(("q",))
    with pytest.raises(KoopsimError, match="none is left"):
        states.take_out(("x",))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n1,2\n3\n", "line 3 has 1 values"),
        ("a.csv", "x,y\n1,2\n3,b\n", "line 3: 'b' is not a number"),
        ("a.csv", "x,y\n", "no numbers"),
        ("a.csv", "", "no numbers"),
        ("a.csv", "x\n1\n", "two points in time"),
        ("a.csv", "x,x\n1,2\n3,4\n", "two columns called 'x'"),
        ("a.csv", "time\n1\n2\n", "times and nothing else"),
        ("a.csv", "time,x\n1,2\n,3\n", "missing times"),
        ("a.csv", "\0\0\0", "a.csv"),
        ("a.npz", "no zip", "npz"),
        ("a.parquet", "PAR1junkPAR1", "Parquet"),
        ("a.nc", "\x89HDF\r\n\x1a\njunk", "xarray"),
        ("a.nc", "CDF\x01junk", "xarray"),
        ("a.txt", "1", "neither"),
    ],
)
def test_refusals(tmp_path, name, text, message):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    if name.endswith("nc"):
        pytest.importorskip("xarray")
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(KoopsimError, match=message) as error:
        read_series(tmp_path / name)
    assert "\n" not in str(error.value)


def test_no_torch_for_a_file():
    import subprocess
    import sys

    code = "import sys, koopsim.datasets.series; print('torch' in sys.modules or 'pandas' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_a_broken_hdf5_file_has_one_sentence_and_no_last_words(tmp_path, capsys):
    """One flipped bit behind the header: h5netcdf's half-opened file must not complain when it is thrown away."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    file = tmp_path / "t.h5"
    xarray.Dataset({"a": ("time", Z[:, 0])}).to_netcdf(file, engine="h5netcdf")
    whole, refused = file.read_bytes(), 0
    for place in range(len(whole) // 12, len(whole) // 2, len(whole) // 12):
        broken = bytearray(whole)
        broken[place] ^= 1
        file.write_bytes(broken)
        try:
            read_series(file)
        except KoopsimError:
            refused += 1
    assert refused
    assert capsys.readouterr().err == ""


def saved(folder, array, name="a.npy"):
    np.save(folder / name, array)
    return folder / name


@pytest.mark.parametrize(
    ("shape", "told", "meant"),
    [
        ((2, 2), None, "matrix"), ((1, 1), None, "matrix"), ((3, 2), None, "trajectory"),
        ((2, 2), "trajectory", "trajectory"), ((2, 2), "matrix", "matrix"), ((1, 2, 2), None, "trajectory"),
        ((1, 2, 2), "matrix", "matrix"), ((2, 2, 2), "trajectory", "trajectory"),
    ],
)  # fmt: skip
def test_what_an_array_means(tmp_path, shape, told, meant):
    assert read_series(saved(tmp_path, np.ones(shape))).meaning(told) == meant


@pytest.mark.parametrize("shape", [(3, 2), (2, 2, 2)])
def test_what_is_no_matrix(tmp_path, shape):
    with pytest.raises(KoopsimError, match=r"has shape .*; a matrix is square"):
        read_series(saved(tmp_path, np.ones(shape))).meaning("matrix")


def test_a_square_table_of_names_is_a_matrix_only_if_one_says_so(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,4\n")
    found = read_series(tmp_path / "a.csv")
    assert (found.meaning(None), found.meaning("matrix"), found.square) == ("trajectory", "matrix", False)
    assert read_numbers(tmp_path / "a.csv").tolist() == [[1, 2], [3, 4]]
    (tmp_path / "b.csv").write_text("x,y\n1,\n3,inf\n")
    with pytest.raises(KoopsimError, match="has 2 NaN or infinite values among 4; remove them first"):
        read_numbers(tmp_path / "b.csv")


def test_bare_arrays_of_one_two_and_three_dimensions(tmp_path):
    line = read_series(saved(tmp_path, np.arange(3)))
    assert (line.tables[0].tolist(), line.names, line.square) == ([[0.0], [1.0], [2.0]], ("z0",), False)
    assert line.tables[0].dtype == np.float64
    two = read_series(saved(tmp_path, np.ones((3, 2), np.float32)))
    assert (two.tables[0].dtype, two.names) == (np.float32, ("z0", "z1"))  # as it lies in the file
    assert read_series(saved(tmp_path, np.ones((3, 2), np.int8))).tables[0].dtype == np.float64
    assert read_series(saved(tmp_path, np.ones((2, 3, 1), np.complex64))).tables[0].dtype == np.complex128
    three = read_series(saved(tmp_path, np.arange(12.0).reshape(2, 3, 2)))
    assert [t.tolist() for t in three.tables] == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]
    for bad, why in (
        (np.ones((1, 2)), "at least two points"), (np.ones((2, 2, 2, 2)), "expected a square"),
        (np.ones((0, 2)), "empty"),
        (np.array(["a", "b"]), "expected numbers"), (np.array(1.0), "expected a square"),
    ):  # fmt: skip
        with pytest.raises(KoopsimError, match=why):
            read_series(saved(tmp_path, bad))


def test_a_control_may_have_one_row_less_and_nothing_else_may(tmp_path):
    np.savez(tmp_path / "a.npz", x=Z, u=np.arange(19.0)[:, None], Time=T)
    found = read_series(tmp_path / "a.npz")
    assert found.names == ("x0", "x1", "u")
    assert found.tables[0][-3:, 2].tolist() == [17.0, 18.0, 18.0]
    np.testing.assert_array_equal(found.times[0], T)
    for u in (np.arange(19.0), np.ones((18, 1)), np.ones((21, 1, 1))):
        np.savez(tmp_path / "b.npz", x=Z, u=u)
        with pytest.raises(KoopsimError, match=r"variables of different lengths: x \(20, 2\), u"):
            read_series(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", x=np.ones((2, 2, 2)), y=np.ones((2, 2, 2)))
    with pytest.raises(
        KoopsimError, match=r"no variable with one or two dimensions, time first; it has: x \(2, 2, 2\)"
    ):
        read_series(tmp_path / "c.npz")


def test_columns_that_are_no_numbers_are_named_with_their_line(tmp_path):
    file = tmp_path / "a.csv"
    for text, why in (
        ("x,y\n1,2\n\n3, b \n", r"line 4: 'b' is not a number"), ("time,x\n1,2\nsoon,3\n", "line 3: 'soon' is not"),
        ("x,y\nb,2\n3,4\n", "line 2: 'b' is not a number"), ("x,y\n,2\nNA,c\n", "line 3: 'c' is not a number"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(KoopsimError, match=why):
            read_series(file)


def test_controls_are_taken_out_by_their_own_name_or_their_arrays(tmp_path):
    (tmp_path / "a.csv").write_text("x,u1,u2,u\n1,2,3,4\n5,6,7,8\n")
    found = read_series(tmp_path / "a.csv")
    states, control = found.take_out(("u",))
    assert (states.names, states.tables[0].tolist()) == (("x",), [[1], [5]])
    assert control[0].tolist() == [[2, 3, 4], [6, 7, 8]]
    states, control = found.take_out(("u2", "x"))
    assert (states.names, control[0].tolist()) == (("u1", "u"), [[3, 1], [7, 5]])


def test_the_shapes_of_six_arrays_are_listed(tmp_path):
    np.savez(tmp_path / "a.npz", **{f"a{i}": np.ones(i + 2) for i in range(8)})
    with pytest.raises(KoopsimError, match=r"different lengths: a0 \(2,\), .*, a5 \(7,\); keep those along time"):
        read_series(tmp_path / "a.npz")


def test_a_trajectory_column_says_which_row_is_whose(tmp_path):
    (tmp_path / "a.csv").write_text("Trajectory,x\n2,5\n1,6\n2,7\n1,8\n")
    found = read_series(tmp_path / "a.csv")
    assert ([t.ravel().tolist() for t in found.tables], found.times, found.names) == ([[5, 7], [6, 8]], None, ("x",))


def test_a_text_that_is_too_long(tmp_path, monkeypatch):
    from koopsim.datasets import series

    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    monkeypatch.setattr(series, "MOST_TEXT", 6)
    assert read_series(tmp_path / "a.csv").tables[0].tolist() == [[1], [2]]
    monkeypatch.setattr(series, "MOST_TEXT", 5)
    with pytest.raises(KoopsimError, match="has 6 bytes; a trajectory as text has 5 at most"):
        read_series(tmp_path / "a.csv")


def test_what_a_netcdf_has_along_time(tmp_path):
    """Coordinates of space, words and what is not along time are left out; time comes first wherever it stands."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    u = np.arange(6.0).reshape(2, 3)
    xarray.Dataset(
        {"u": (("x", "time"), u), "still": ("x", [1.0, 2.0]), "name": ("time", ["a", "b", "c"])},
        {"time": [0.0, 1.0, 2.0], "x": [5.0, 6.0]},
    ).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    found = read_series(tmp_path / "a.nc")
    assert (found.names, found.tables[0].tolist(), found.times[0].tolist()) == (("u0", "u1"), u.T.tolist(), [0, 1, 2])
    xarray.Dataset({"u": (("n", "m"), u)}).to_netcdf(tmp_path / "b.nc", engine="scipy")
    assert read_series(tmp_path / "b.nc").tables[0].tolist() == u.tolist()  # no time is named: the first dimension
    days = np.array(["2024-01-01", "2024-01-03"], "datetime64[ns]")
    xarray.Dataset({"u": ("time", [1.0, 2.0])}, {"time": days}).to_netcdf(tmp_path / "c.nc", engine="h5netcdf")
    assert read_series(tmp_path / "c.nc").times[0].tolist() == [0, 2 * 86400]


def test_an_hdf5_that_cannot_be_read_leaves_nothing_to_complain_later(tmp_path, monkeypatch):
    import gc
    import sys

    pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\njunk")
    said = []
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(KoopsimError, match="cannot be read by xarray"):
                read_series(tmp_path / "a.h5")
        monkeypatch.setattr(sys, "unraisablehook", said.append)
        gc.collect()
    finally:
        gc.enable()
    assert said == []


def test_decimal_commas_between_semicolons(tmp_path):
    (tmp_path / "a.csv").write_text("t;x;y\n0;1,5;1\n1;-2,25;\n2;3;2,5\n")
    np.testing.assert_array_equal(read_series(tmp_path / "a.csv").tables[0], [[1.5, 1], [-2.25, np.nan], [3, 2.5]])
    (tmp_path / "b.csv").write_text("1,5;2\n2,5;3\n")
    np.testing.assert_array_equal(read_series(tmp_path / "b.csv").tables[0], [[1.5, 2], [2.5, 3]])
    (tmp_path / "c.csv").write_text("x\ty;z\n".replace("\t", ";") + "1,5;1;1\n2.5;1;1\n")
    with pytest.raises(KoopsimError, match="column 'x' has numbers with a point and some with a comma; use one"):
        read_series(tmp_path / "c.csv")
    (tmp_path / "d.csv").write_text('x,y\n1,"1,5"\n2,"2,5"\n')
    with pytest.raises(KoopsimError, match="line 2: '1,5' is not a number"):
        read_series(tmp_path / "d.csv")


def test_dates_are_seconds_from_the_first_row_and_none_is_missing(tmp_path):
    rows = ["2,2024-01-02,1", "2,2024-01-03,2", "1,2024-01-01,3", "1,2024-01-02,4"]
    (tmp_path / "d.csv").write_text("trajectory,time,x\n" + "\n".join(rows) + "\n")
    found = read_series(tmp_path / "d.csv")
    assert [t.tolist() for t in found.times] == [[0, 86400], [-86400, 0]]
    for line, text, none in ((2, rows[0], ""), (4, rows[2], "NA")):
        lost = text.replace(text.split(",")[1], none)
        (tmp_path / "d.csv").write_text("trajectory,time,x\n" + "\n".join(rows).replace(text, lost) + "\n")
        with pytest.raises(KoopsimError, match=f"has 1 missing times, the first in line {line}; every row needs one"):
            read_series(tmp_path / "d.csv")


def test_two_columns_called_times_are_states(tmp_path):
    np.savez(tmp_path / "t.npz", t=np.ones((5, 2)), x=np.arange(5.0))
    found = read_series(tmp_path / "t.npz")
    assert (found.names, found.times) == (("t0", "t1", "x"), None)


def test_the_cell_that_is_no_number_is_named_and_not_an_empty_one(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,\n2,5\n3,b\n")
    with pytest.raises(KoopsimError, match="line 4: 'b' is not a number"):
        read_series(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("time,x\n1,1\n\n,2\n3,4\n")
    with pytest.raises(KoopsimError, match="1 missing times, the first in line 4; every row needs one"):
        read_series(tmp_path / "b.csv")
