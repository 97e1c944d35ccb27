"""Configurations as JSON values, and back: each says its class under "kind"."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from koopsim.config.checks import in_short, require
from koopsim.config.kinds_of import Open
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.registry import plugin_hint


def to_dict(config: Any) -> Any:
    """A dataclass as plain JSON values; each one carries its class name under "kind"."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        fields = {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
        return {"kind": type(config).__name__, **fields}
    if isinstance(config, tuple):
        return [to_dict(v) for v in config]
    return config


def from_dict(cls: Any, data: Any, where: str = "config") -> Any:
    """The inverse of `to_dict`, strict: an unknown key, a wrong kind or a wrong type is refused by name."""
    if type(data) is cls:  # a number, a word: most entries
        return data
    if get_origin(cls) in (Union, types.UnionType):
        return _from_union(get_args(cls), data, where)
    if get_origin(cls) is Literal:
        known = any(type(data) is type(value) and data == value for value in get_args(cls))
        require(known, lambda: f"{where} is {in_short(data)}; expected one of {get_args(cls)}.")
        return data
    if get_origin(cls) is tuple:
        require(isinstance(data, list), lambda: f"{where} is {in_short(data)}; expected a list.")
        kinds = get_args(cls)
        if kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(data)
        require(len(kinds) == len(data), lambda: f"{where} is {in_short(data)}; expected {len(kinds)} entries.")
        return tuple(from_dict(t, v, where) for t, v in zip(kinds, data, strict=True))
    if isinstance(cls, type) and Open in cls.__bases__:
        return _from_open(cls, data, where)
    if dataclasses.is_dataclass(cls):
        return _from_fields(cls, data, where)
    if cls is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)  # at most 20 digits where it comes from a file
    raise KoopsimError(f"{where} is {in_short(data)}; expected {getattr(cls, '__name__', cls)}.")


def _from_open(base: Any, data: Any, where: str) -> Any:
    """The kind that `data` names; the rooms and the plugins are looked through before it is called unknown."""
    known = base.kinds
    kinds = ", ".join(known)
    require(isinstance(data, dict), lambda: f"{where} is {in_short(data)}; expected an object of kind {kinds}.")
    kind = str(data.get("kind", ""))
    if kind not in known:
        base.registry.find(kind)
    require(
        kind in known,
        lambda: f"{where} has the unknown kind {in_short(kind)}." + did_you_mean(kind, known) + plugin_hint(),
    )
    return from_dict(known[kind], data, where)


def _from_union(options: tuple, data: Any, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    if isinstance(data, dict):
        known = {t.__name__: t for t in options if isinstance(t, type) and dataclasses.is_dataclass(t)}
        kind = str(data.get("kind", ""))
        require(kind in known, lambda: f"{where} has the unknown kind {in_short(kind)}." + did_you_mean(kind, known))
        return from_dict(known[kind], data, where)
    plain = [t for t in options if t is not type(None) and not dataclasses.is_dataclass(t)]
    names = ", ".join(t.__name__ for t in options if dataclasses.is_dataclass(t) and isinstance(t, type))
    require(len(plain) == 1, lambda: f"{where} is {in_short(data)}; expected an object of kind {names}.")
    return from_dict(plain[0], data, where)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _from_fields(cls: Any, data: Any, where: str) -> Any:
    require(isinstance(data, dict), lambda: f"{where} is {in_short(data)}; expected an object.")
    hints = _hints(cls)
    given = {k: v for k, v in data.items() if k != "kind"}
    for key in (key for key in given if key not in hints):
        raise KoopsimError(f"{where} has the unknown entry {in_short(key)}." + did_you_mean(key, hints))
    for f in dataclasses.fields(cls):
        made = f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
        require(made or not f.init or f.name in given, lambda name=f.name: f"{where} lacks the entry {name!r}.")
    return cls(**{k: from_dict(hints[k], v, f"{where}.{k}") for k, v in given.items()})
