"""Pictures in Parquet, Arrow and Feather files: row groups shared out, read, and left out where they are broken."""

import hashlib
import io
import json

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pyarrow")
import pyarrow.feather
import pyarrow.parquet

from koopsim.datasets.blocks import stream_images
from koopsim.errors import KoopsimError


def png(value, mode="L"):
    data = io.BytesIO()
    Image.new(mode, (3, 2), value if mode == "L" else (value, 0, 0)).save(data, "png")
    return data.getvalue()


def table(values, labels=None, names=None, image="image", **more):
    labels = [v % 2 for v in values] if labels is None else labels
    found = pyarrow.table({image: [png(v, **more) if isinstance(v, int) else v for v in values], "label": labels})
    if names:
        told = {"info": {"features": {"label": {"names": names}}}}
        found = found.replace_schema_metadata({b"huggingface": json.dumps(told).encode()})
    return found


def write(path, own, rows=2):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(own, path, row_group_size=rows)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(own, str(path), chunksize=rows)
    else:
        with pyarrow.ipc.new_file(str(path), own.schema) as file:
            file.write_table(own, max_chunksize=rows)


@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
def test_every_fifth_group_is_for_testing(tmp_path, ending):
    write(tmp_path / f"a.{ending}", table(list(range(20))))
    found = stream_images(str(tmp_path / f"a.{ending}"))
    assert found.train.read(np.arange(16))[:, 0, 0, 0].tolist() == [*range(8), *range(10, 18)]
    assert found.test.read(np.arange(4))[:, 0, 1, 2].tolist() == [8, 9, 18, 19]
    assert found.train.read(np.array([9, 0]))[:, 0, 0, 0].tolist() == [11, 0]
    assert (found.train.shape, found.train.labels.tolist(), found.classes) == ((1, 2, 3), [0, 1] * 8, ("0", "1"))
    assert (found.loads, found.lost) == (False, ())
    told = "\0".join(f"a.{ending} {(tmp_path / f'a.{ending}').stat().st_size} {n} 2" for n in (4, 9))
    assert found.test.identity() == f"(1, 2, 3) {hashlib.sha256(told.encode()).hexdigest()}"


def test_files_for_testing_are_named_so_and_classes_by_their_schema(tmp_path):
    write(tmp_path / "one.parquet", table([0, 1, 2], names=["cat", "dog"], mode="RGB"))
    write(tmp_path / "My-Test.parquet", table([5, 4], names=["cat", "dog"], mode="RGB"))
    found = stream_images(str(tmp_path))
    assert (found.classes, found.train.shape) == (("cat", "dog"), (3, 2, 3))
    assert found.test.read(np.array([1, 0]))[:, 0, 0, 0].tolist() == [4, 5]
    assert found.test.labels.tolist() == [1, 0]
    assert stream_images(str(tmp_path), (4, 5)).test.read(np.array([0])).shape == (1, 3, 5, 4)


@pytest.mark.parametrize("names", [["cat"], {"no": 1}])
def test_names_that_do_not_fit_are_not_taken(tmp_path, names):
    write(tmp_path / "a.parquet", table(list(range(10)), names=names))
    assert stream_images(str(tmp_path)).classes == ("0", "1")


def test_pictures_inside_a_struct(tmp_path):
    write(tmp_path / "a.parquet", table([{"bytes": png(i), "path": "x"} for i in range(10)], [0, 1] * 5, image="img"))
    found = stream_images(str(tmp_path))
    assert found.train.read(np.array([5]))[0, 0, 0, 0] == 5


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (lambda: table(list(range(8))), "has 4 row groups, too few to set some aside"),
        (
            lambda: table(list(range(10))).rename_columns(["image", "what"]),
            "has the columns image, what; expected one of",
        ),
        (lambda: table(list(range(10)), [0, 1] * 4 + [2, 0]), "the label 2 is not one of the training files'"),
    ],
)
def test_files_that_cannot_be(tmp_path, own, why):
    write(tmp_path / "a.parquet", own())
    with pytest.raises(KoopsimError, match=why):
        stream_images(str(tmp_path))


def test_a_picture_that_cannot_be_read_is_named(tmp_path):
    write(tmp_path / "a.parquet", table([png(i) if i != 3 else b"no picture" for i in range(10)], [0, 1] * 5))
    source = stream_images(str(tmp_path)).train
    with pytest.raises(KoopsimError, match=r"a\.parquet, row 1 of row group 1: its picture cannot be read"):
        source.read(np.array([2, 3]))
    x, good, lost = source.read_good(np.array([2, 3]))
    assert (good.tolist(), [row for row, _ in lost], x[:, 0, 0, 0].tolist()) == ([True, False], [3], [2, 0])
    write(tmp_path / "b.parquet", table([{"other": 1}] * 10, [0, 1] * 5))
    with pytest.raises(KoopsimError, match=r"first picture cannot be read \(it is a NoneType, not the bytes"):
        stream_images(str(tmp_path / "b.parquet"))


def test_broken_files_are_left_out_where_that_is_asked_for(tmp_path):
    write(tmp_path / "b.parquet", table(list(range(10))))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(KoopsimError, match=r"a\.parquet cannot be read"):
        stream_images(str(tmp_path))
    found = stream_images(str(tmp_path), skip=True)
    assert (len(found.train), len(found.lost)) == (8, 1)
    assert "a.parquet cannot be read" in found.lost[0]
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(KoopsimError, match=r"has no file that can be read: .*a\.parquet"):
        stream_images(str(tmp_path), skip=True)


def test_the_size_is_that_of_the_first_picture_that_can_be_read(tmp_path):
    own = table([b"no picture" if i < 2 else png(i) for i in range(10)], [0, 1] * 5)
    write(tmp_path / "a.parquet", own)
    with pytest.raises(KoopsimError, match=r"its first picture cannot be read \(cannot identify image"):
        stream_images(str(tmp_path))
    assert stream_images(str(tmp_path), skip=True).train.shape == (1, 2, 3)
