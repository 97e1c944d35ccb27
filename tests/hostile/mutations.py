"""Every way a file is made hostile: bytes, values of JSON, tensors and their header, arrays, archives.

    (file's bytes, random numbers) -> other bytes, and in a word what was done

All randomness comes from the generator that is given, so a seed names a whole campaign.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

Mutation = Callable[[bytes, random.Random], bytes]

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    2**31,
    2**63,
    -(2**63),
    2**64,
    10**19,
    0.5,
    -0.0,
    1e308,
    1e-320,
    "",
    "x",
    "..",
    "/etc",
    "../mine",
    "a/b",
    "\x1b[2J\x1b[31m",
    "[/b][bold]",
    "a$\\frac$",
    "\u202e",
    "ü" * 50,
    "x" * 5000,
    "\0",
    [],
    {},
    [[]],
    [1],
    ["x"] * 3,
    {"kind": "Run"},
    {"kind": "SIMConfig"},
    {"a": {"b": {}}},
    "NaN",
    "1e999",
]
TEXTS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "9" * 5000,
    "[" * 3000,
    '{"a":' * 500,
    '"\\ud800"',
    "1.",
    "'x'",
    "",
    "\x00",
]


# ---------------------------------------------------------------- bytes


def flipped(data: bytes, rng: random.Random) -> bytes:
    """One to eight bits."""
    new = bytearray(data or b"\0")
    for _ in range(rng.randint(1, 8)):
        new[rng.randrange(len(new))] ^= 1 << rng.randrange(8)
    return bytes(new)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def grown(data: bytes, rng: random.Random) -> bytes:
    """With something in it, before it or after it that does not belong."""
    at = rng.choice([0, len(data), rng.randrange(len(data) + 1)])
    return data[:at] + rng.randbytes(rng.randint(1, 200)) + data[at:]


def zeroed(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    length = rng.randint(1, 1 + len(data) // 3)
    return data[:at] + bytes(len(data[at : at + length])) + data[at + length :]


def swapped(data: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[b:] + data[a:b] + data[:a]


def other(data: bytes, rng: random.Random) -> bytes:
    """Something else altogether."""
    return rng.choice(
        [
            b"",
            b"\0" * 100,
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
            b"PK\x03\x04",
            b"\x93NUMPY",
            b"<html></html>",
            b"null\n",
            b"[]\n",
            b"{}\n",
            b"\xff\xfe\0",
            rng.randbytes(300),
            b"GIF89a" + bytes(20),
            b"\x89PNG\r\n\x1a\n" + bytes(30),
            b"MM\0*" + bytes(40),
            struct.pack("<Q", 2**60) + b"{}",
            b"\x80\x04\x95" + bytes(9),
        ]
    )


BYTES: list[Mutation] = [flipped, cut, grown, zeroed, swapped, other]


# ---------------------------------------------------------------- JSON


def _places(value: Any, path: tuple = ()) -> list[tuple]:
    found = [path]
    if isinstance(value, dict):
        for key, part in value.items():
            found += _places(part, (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value[:20]):
            found += _places(part, (*path, index))
    return found


def _inside(value: Any, path: tuple) -> Any:
    for key in path:
        value = value[key]
    return value


def changed_value(value: Any, rng: random.Random) -> Any:
    """One entry of another kind or size, gone, doubled, renamed."""
    value = copy.deepcopy(value)
    path = rng.choice(_places(value))
    if not path:
        return rng.choice(VALUES)
    parent, key = _inside(value, path[:-1]), path[-1]
    what = rng.randrange(5)
    if what == 0 and isinstance(parent, dict):
        del parent[key]
    elif what == 1 and isinstance(parent, dict):
        parent[rng.choice(["", "kind", "nothing", f"{key}x", "__class__"])] = rng.choice(VALUES)
    elif what == 2 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
    else:
        parent[key] = rng.choice(VALUES)
    return value


def json_values(data: bytes, rng: random.Random) -> bytes:
    return json.dumps(changed_value(json.loads(data), rng)).encode("utf-8", "surrogatepass")


def json_text(data: bytes, rng: random.Random) -> bytes:
    """A value replaced by what is no JSON, or too much of it."""
    mark = "@@hostile@@"
    value = json.loads(data)
    path = rng.choice([p for p in _places(value) if p] or [()])
    if not path:
        return rng.choice(TEXTS).encode()
    _inside(value, path[:-1])[path[-1]] = mark
    return json.dumps(value).replace(f'"{mark}"', rng.choice(TEXTS)).encode()


def json_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        lines[at] = rng.choice([json_values, json_text])(lines[at], rng)
    except ValueError:
        lines[at] = rng.choice(TEXTS).encode()
    return b"\n".join(lines)


def csv_cells(data: bytes, rng: random.Random) -> bytes:
    lines = [line.split(b",") for line in data.split(b"\n")]
    line = rng.choice(lines)
    line[rng.randrange(len(line))] = rng.choice(
        [b"", b"x", b"nan", b"1e999", b"=1+1", b'"', b"\0", b"9" * 5000, b"\xff"]
    )
    return b"\n".join(b",".join(cells) for cells in lines)


# ---------------------------------------------------------------- safetensors


def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _joined(header: Any, body: bytes) -> bytes:
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + body


def _sealed(data: bytes, rng: random.Random) -> bytes:
    """With the digest as it was, taken out, or (most often) right again, so that the checks behind it must notice."""
    how = rng.randrange(4)
    try:
        header, body = _parts(data)
        texts = header["__metadata__"]
        if how == 0 or "digest" not in texts:
            return data
        del texts["digest"]
        if how > 1:
            from safetensors import SafetensorError
            from safetensors.torch import load

            from koopsim.files.tensors import digest_of

            with contextlib.suppress(SafetensorError):
                texts["digest"] = digest_of(load(_joined(header, body)), texts)
        return _joined(header, body)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError):
        return data  # nothing that a digest can be of


def sealed_again(change: Mutation) -> Mutation:
    @functools.wraps(change)
    def both(data: bytes, rng: random.Random) -> bytes:
        return _sealed(change(data, rng), rng)

    return both


@sealed_again
def tensor_header(data: bytes, rng: random.Random) -> bytes:
    """Shapes, kinds, offsets and names as somebody might write them."""
    header, body = _parts(data)
    names = [name for name in header if name != "__metadata__"]
    what = rng.randrange(5)
    if not names:
        return _joined(changed_value(header, rng), body)
    name = rng.choice(names)
    if what == 0:
        header[name]["dtype"] = rng.choice(["BOOL", "U8", "F64", "I64", "F16", "BF16", "F8_E5M2", "X", 7])
    elif what == 1:
        header[name]["shape"] = rng.choice([[], [1], [10**12], [-1], [0], header[name]["shape"][::-1], "x"])
    elif what == 2:
        header[name]["data_offsets"] = rng.choice([[0, 0], [0, 10**15], [4, 0], [-4, 0], None])
    elif what == 3:
        header[f"{name}x"] = header.pop(name)
    else:
        return _joined(changed_value(header, rng), body)
    return _joined(header, body)


@sealed_again
def tensor_metadata(data: bytes, rng: random.Random) -> bytes:
    """The JSON inside the header."""
    header, body = _parts(data)
    texts = header.get("__metadata__", {})
    keys = [key for key in texts if key != "digest"]
    if not keys:
        return _joined(changed_value(header, rng), body)
    key = rng.choice(keys)
    raw = texts[key].encode()
    texts[key] = rng.choice([json_values, json_text])(raw, rng).decode("utf-8", "replace")
    return _joined(header, body)


@sealed_again
def tensor_values(data: bytes, rng: random.Random) -> bytes:
    """Weights of another size, or no numbers: what a person may have edited."""
    header, body = _parts(data)
    floats = [n for n, t in header.items() if n != "__metadata__" and t["dtype"] == "F32"]
    if not floats:
        return _joined(header, body[:-4])
    start, end = header[rng.choice(floats)]["data_offsets"]
    if end == start:
        return _joined(header, body + b"\0")
    at = start + 4 * rng.randrange((end - start) // 4)
    bad = struct.pack("<f", rng.choice([float("nan"), float("inf"), float("-inf")]))
    return _joined(header, body[:at] + bad + body[at + 4 :])


def resealed(data: bytes, rng: random.Random) -> bytes:
    """A coded network (.ksp) changed inside, with a checksum that is right again."""
    rest = rng.choice(BYTES)(data[8:], rng)
    return data[:4] + struct.pack("<I", zlib.crc32(rest)) + rest


# ---------------------------------------------------------------- arrays


def npz_members(data: bytes, rng: random.Random) -> bytes:
    """Arrays of other kinds and shapes, members that are none, archives of unusual make."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    what = rng.randrange(7)
    if what == 0:
        members[name] = rng.choice(BYTES)(members[name], rng)
    elif what == 1:
        members[rng.choice(["notes.txt", "../x.npy", "/abs.npy", "x.npy/", ""])] = b"hello"
    elif what == 2:
        del members[name]
    elif what == 3:
        members[name] = _npy(rng)
    elif what == 4:
        members[name] = _claim(rng.choice([10**12, 2**40, -1, 7]))
    elif what == 5:
        members = {rng.choice(["x.npy", "y.npy", "q.npy"]): v for v in members.values()}
    kind = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", kind) as archive:
        for key, value in members.items():
            archive.writestr(key or "empty", value)
    new = bytearray(made.getvalue())
    if what == 6:
        at = new.find(b"PK\x01\x02")
        new[6] |= 1
        new[at + 8] |= 1  # encrypted, it says
    return bytes(new)


def npy_array(data: bytes, rng: random.Random) -> bytes:
    return rng.choice([_npy(rng), _claim(rng.choice([10**12, -1, 7])), rng.choice(BYTES)(data, rng)])


def _npy(rng: random.Random) -> bytes:
    made = io.BytesIO()
    shape = rng.choice([(), (0,), (3,), (40, 8, 8), (40, 2, 2, 2, 2), (1, 1), (3, 3), (2, 0), (7, 8, 8, 3)])
    kind = rng.choice(["f8", "f4", "u1", "i8", "?", "c16", "U5", "S4", "M8[D]", "f2", "O", ">u2"])
    array = np.zeros(shape, kind)
    if kind not in ("U5", "S4", "O", "M8[D]") and rng.random() < 0.3:
        array = np.full(shape, 300).astype(kind)
    if array.dtype.kind == "f" and rng.random() < 0.3:
        array = array * np.nan
    np.save(made, array, allow_pickle=True)
    return made.getvalue()


def _claim(count: int) -> bytes:
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({count},), }}"
    head += " " * (117 - len(head)) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()


KINDS: dict[str, list[Mutation]] = {
    "json": [*BYTES, json_values, json_values, json_values, json_text],
    "lines": [*BYTES, json_lines, json_lines, json_lines],
    "csv": [*BYTES, csv_cells, csv_cells],
    "tensors": [*BYTES, tensor_header, tensor_header, tensor_metadata, tensor_metadata, tensor_values],
    "npz": [*BYTES, npz_members, npz_members, npz_members],
    "npy": [*BYTES, npy_array, npy_array],
    "coded": [*BYTES, resealed, resealed, resealed, resealed, resealed, resealed],
    "picture": BYTES,
    "text": BYTES,
}


def mutated(kind: str, data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """(other bytes, the name of what was done to them), always different from what was given."""
    while True:
        how = rng.choice(KINDS[kind])
        try:
            new = how(data, rng)
        except (ValueError, KeyError, IndexError, TypeError, struct.error, zipfile.BadZipFile):
            continue  # what is drawn does not apply to this file
        if new != data:
            return new, how.__name__
