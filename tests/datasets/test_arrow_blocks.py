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


@pytest.mark.parametrize(
    "told", [b"[" * 5000, b"null", b"{", b'{"info": 3}', b'{"info": {"features": {"label": {"names": "ab"}}}}']
)
def test_a_schema_that_names_no_classes_leaves_the_labels(tmp_path, told):
    """It is somebody's text, as deep as they like."""
    own = table(list(range(20))).replace_schema_metadata({b"huggingface": told})
    write(tmp_path / "a.parquet", own)
    assert stream_images(str(tmp_path / "a.parquet")).classes == ("0", "1")


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


def sized(width, value=1):
    data = io.BytesIO()
    Image.new("L", (width, 2), value).save(data, "png")
    return data.getvalue()


def test_the_very_first_picture_decides_the_size(tmp_path):
    """Not the second of its group, nor that of another group; and a group may have one picture alone."""
    write(tmp_path / "a.parquet", table([sized(4 + i) for i in range(10)], [0, 1] * 5))
    assert stream_images(str(tmp_path)).train.shape == (1, 2, 4)
    assert stream_images(str(tmp_path), skip=True).train.shape == (1, 2, 4)
    alone = tmp_path / "alone.parquet"
    write(alone, table([sized(3 + i) for i in range(10)], [0, 1] * 5), rows=1)
    assert stream_images(str(alone)).train.shape == (1, 2, 3)
    assert stream_images(str(alone), skip=True).train.shape == (1, 2, 3)


def test_where_only_the_last_group_can_be_read_it_decides(tmp_path):
    write(tmp_path / "train.parquet", table([b"no picture", b"nor this", sized(7)], [0, 1, 0]), rows=1)
    write(tmp_path / "test.parquet", table([sized(7)], [0]))
    found = stream_images(str(tmp_path), skip=True)
    assert (found.train.shape, len(found.train), len(found.test)) == ((1, 2, 7), 3, 1)
    (tmp_path / "train.parquet").unlink()
    write(tmp_path / "other.parquet", table([b"no", b"nor", b"none"], [0, 1, 0]), rows=1)
    with pytest.raises(KoopsimError, match="its first picture cannot be read"):
        stream_images(str(tmp_path), skip=True)


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_empty_groups_do_not_count(tmp_path, suffix):
    own = table(list(range(10)))
    file = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        with pyarrow.parquet.ParquetWriter(file, own.schema) as writer:
            for at in range(5):
                writer.write_table(own.slice(2 * at, 2))
                writer.write_table(own.slice(0, 0))
    else:
        with pyarrow.ipc.new_file(str(file), own.schema) as writer:
            for at in range(5):
                writer.write_table(own.slice(2 * at, 2))
                writer.write_batch(pyarrow.RecordBatch.from_pylist([], schema=own.schema))
    found = stream_images(str(file))
    assert (len(found.train), len(found.test)) == (8, 2)


def test_black_and_white_is_one_channel_and_colour_three(tmp_path):
    def bits(mode):
        data = io.BytesIO()
        Image.new(mode, (3, 2)).save(data, "png")
        return data.getvalue()

    for mode, channels in (("1", 1), ("L", 1), ("RGB", 3), ("P", 3), ("RGBA", 3)):
        write(tmp_path / f"{mode}.parquet", table([bits(mode)] * 10, [0, 1] * 5))
        assert stream_images(str(tmp_path / f"{mode}.parquet")).train.shape == (channels, 2, 3)


def test_a_group_that_is_broken_is_tried_once(tmp_path, monkeypatch):
    from koopsim.datasets import arrow_blocks

    write(tmp_path / "a.parquet", table(list(range(10))))
    source = stream_images(str(tmp_path)).train
    tried = []

    def torn(group, name):
        tried.append(group.number)
        raise KoopsimError(f"group {group.number} is torn")

    monkeypatch.setattr(arrow_blocks, "_column", torn)
    for _ in range(2):
        with pytest.raises(KoopsimError, match="group 1 is torn"):
            source.read(np.array([2]))
    with pytest.raises(KoopsimError, match="group 0 is torn"):
        source.read(np.array([1]))
    assert tried == [1, 0]


def test_columns_by_any_of_their_names(tmp_path):
    own = table(list(range(10))).rename_columns(["pixels", "fine_label"])
    write(tmp_path / "a.parquet", own.append_column("y", [list("ab") * 5]))
    assert stream_images(str(tmp_path)).classes == ("0", "1")  # the first name of the list that is there


def test_a_label_that_is_text(tmp_path):
    write(tmp_path / "a.parquet", table(list(range(10)), ["dog", "cat"] * 5))
    found = stream_images(str(tmp_path))
    assert (found.classes, found.train.labels.tolist()[:3]) == (("cat", "dog"), [1, 0, 1])


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_file_that_lacks_the_label_is_named_or_left_out(tmp_path, ending):
    write(tmp_path / f"test.{ending}", table([1, 2]))
    write(tmp_path / f"train.{ending}", table([1, 2]).drop(["label"]))
    with pytest.raises(KoopsimError, match=rf"train\.{ending}, row group 0: .*label"):
        stream_images(str(tmp_path))
    with pytest.raises(KoopsimError, match="has too little that can be read: "):
        stream_images(str(tmp_path), skip=True)
    write(tmp_path / f"also.{ending}", table([1, 2, 3]))
    found = stream_images(str(tmp_path), skip=True)
    assert (len(found.train), len(found.lost)) == (3, 1)
