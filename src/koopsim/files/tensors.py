"""Tensors from anyone's safetensors file: whole, of the kinds and shapes that are expected, and finite.

    header (JSON, bounded)  ->  "digest": SHA-256 over names, kinds, shapes and bytes of all tensors and the rest of the
    header, compared before anything is used; only files of a make from before it was written are taken without

A file cannot carry code. What a digest does not tell (somebody may have computed it anew), the checks do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koopsim.errors import KoopsimError
from koopsim.files.json import json_text, parse_json
from koopsim.files.memory import require_memory
from koopsim.files.opened import require_plain
from koopsim.files.writing import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

DIGEST = "digest"
Older = Callable[[Collection[str], Collection[str]], bool]  # (names of tensors, of the header's entries)


def never(tensors: Collection[str], header: Collection[str]) -> bool:
    """Of what was always written with a digest."""
    return False


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> int:
    """Write tensors and a header of JSON values, atomically, with a digest of both; the size in bytes."""
    data = tensors_bytes(tensors, header, str(path))
    write_atomically(path, data)
    return len(data)


def tensors_bytes(tensors: Mapping[str, Tensor], header: Mapping[str, Any], where: str = "a header") -> bytes:
    """The same as bytes."""
    from safetensors.torch import save

    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    texts = {key: json_text(value, where, indent=None) for key, value in header.items()}
    return save(plain, metadata=texts | {DIGEST: digest_of(plain, texts)})


def digest_of(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    """SHA-256 over everything a file says."""
    import torch

    found = hashlib.sha256()
    for key in sorted(texts):
        found.update(f"{key}\0{texts[key]}\0".encode())
    for name in sorted(tensors):
        t = tensors[name]
        found.update(f"{name}\0{t.dtype}\0{tuple(t.shape)}\0".encode())
        if t.numel():
            found.update(t.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def read_tensors(
    path: Path, what: str, finite: bool = True, older: Older = never
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, header) of a file; FileNotFoundError where there is none, one line where it is broken.

    `older` knows by the names of its tensors and of its header a file from before there were digests.
    """
    from safetensors import SafetensorError, safe_open

    try:
        require_memory(2 * require_plain(path), f"{path} asks for")
        with safe_open(path, framework="pt") as file:
            texts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError) as error:
        raise KoopsimError(f"{path} is not a whole {what} ({_first(error)}). It cannot be used.") from error
    if DIGEST not in texts and not older(tensors, texts):
        raise KoopsimError(
            f"{path} has no digest, which every {what} is written with: it was taken out, or another program wrote the "
            "file. Use the file as koopsim wrote it."
        )
    return tensors, _believed(tensors, texts, str(path), finite)


def tensors_of(data: bytes, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, header) of the bytes that `tensors_bytes` made; one line where they are broken."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
        head = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")].decode(), what)
        texts = dict(head.get("__metadata__", {}))
        if DIGEST not in texts:
            raise ValueError("they have no digest")
    except (SafetensorError, ValueError, RuntimeError, OverflowError, TypeError, KeyError) as error:
        raise KoopsimError(f"The weights of {what} are not whole ({_first(error)}). They cannot be used.") from error
    return tensors, _believed(tensors, texts, f"What is in {what}", finite=True)


def _believed(tensors: Mapping[str, Tensor], texts: dict[str, str], where: str, finite: bool) -> dict[str, Any]:
    """The header, once digest and values are in order."""
    said = texts.pop(DIGEST, None)
    if said is not None and said != digest_of(tensors, texts):
        raise KoopsimError(
            f"{where} is not what was written: its digest does not match its tensors. It is damaged and cannot be used."
        )
    for name, t in tensors.items():
        if finite and t.is_floating_point() and not bool(t.isfinite().all()):
            raise KoopsimError(f"{where}: the tensor {name!r} holds NaN or infinite values. It cannot be used.")
    return {key: parse_json(text, f"{where}, header {key!r}") for key, text in texts.items()}


def require_match(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor], path: Path | str, what: str) -> None:
    """Every tensor of ours is in the file, and nothing else, with its shape and its kind of number."""
    wrong = sorted(own.keys() ^ theirs.keys())
    if wrong:
        why = "is missing" if wrong[0] in own else "is not known"
        raise _of_another(path, what, len(wrong), len(own), wrong[0], why)
    shapes = [n for n in own if own[n].shape != theirs[n].shape]
    if shapes:
        n = shapes[0]
        why = f"has shape {tuple(theirs[n].shape)} where {tuple(own[n].shape)} belongs"
        raise _of_another(path, what, len(shapes), len(own), n, why)
    kinds = [n for n in own if not _alike(own[n], theirs[n])]
    if kinds:
        n = kinds[0]
        why = f"is {_kind(theirs[n])} where {_kind(own[n])} belongs"
        raise _of_another(path, what, len(kinds), len(own), n, why)


def _alike(a: Tensor, b: Tensor) -> bool:
    """The same kind; of floats the width may differ, since precision is a run's own affair."""
    return a.dtype == b.dtype or (a.is_floating_point() and b.is_floating_point())


def _kind(t: Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def _of_another(path: Path | str, what: str, wrong: int, total: int, name: str, why: str) -> KoopsimError:
    return KoopsimError(
        f"{path} is a {what}: {wrong} of {total} tensors do not match, the first is {name!r}, which {why}. "
        "Load it with the configuration it was trained with."
    )


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
