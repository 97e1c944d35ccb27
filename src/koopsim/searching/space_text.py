"""Search spaces as text: on the command line, and in a YAML, TOML or JSON file.

    recipe.batch_size = 1,2,5           one of these
    recipe.learning_rate = log 1e-4 0.05        evenly in the logarithm
    recipe.weight_decay = uniform 0 0.1
    model.fourier.bandwidth = median 0.1 10     from the data, times a factor; plain "median": as it is
    recipe.schedule = cosine            fixed
    recipe.learning_rate = listed 0.01 0.02     in turn: the first trial has the first, ...

A file has the same under `parameters` (a list is a choice, {"listed": list} is taken in turn), beside `trials`,
`max_t`, `grace`, `reduction`, `metric`, `mode` and `judge_over`; what it leaves out stays as the paper has it.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from koopsim.config import Run
from koopsim.errors import KoopsimError, did_you_mean
from koopsim.files.json import parse_json
from koopsim.files.opened import MEBI, read_bytes
from koopsim.searching.space import path_of, with_values
from koopsim.spaces import Choice, Listed, LogUniform, Median, Parameter, SearchSpace, Uniform

SETTINGS = {
    "trials": int, "max_t": int, "grace": int, "reduction": float, "metric": str, "mode": str, "judge_over": int,
}  # fmt: skip
RANGES: dict[str, type[LogUniform] | type[Uniform] | type[Median]]
RANGES = {"log": LogUniform, "uniform": Uniform, "median": Median}


def parse_parameter(name: str, given: Any) -> Parameter:
    """A parameter from its text, from a list, or from a single value."""
    if isinstance(given, list):
        return Choice(tuple(_value(v) for v in given))
    if isinstance(given, dict):
        if list(given) != ["listed"] or not isinstance(given["listed"], list):
            raise KoopsimError(f"{name} is {given!r}; expected a list, a range, or listed with a list.")
        return Listed(tuple(_value(v) for v in given["listed"]))
    return _from_text(name, given) if isinstance(given, str) else Choice((given,))


def _from_text(name: str, given: str) -> Parameter:
    kind, *words = given.replace("(", " ").replace(")", " ").replace(",", " ").split() or [""]
    if kind == "listed":
        return Listed(tuple(_value(word) for word in words))
    if kind in RANGES:
        numbers = [_value(word) for word in words]
        wanted = (0, 1, 2) if kind == "median" else (2,)
        if len(numbers) not in wanted or not all(isinstance(n, (int, float)) for n in numbers):
            raise KoopsimError(f"{name} is {given!r}; expected {kind!r} and its two ends, as in 'log 1e-4 0.05'.")
        if kind == "median" and len(numbers) == 1:
            numbers *= 2
        return RANGES[kind](*map(float, numbers))
    if not given.strip():
        raise KoopsimError(f"{name} is empty; give values (1,2,5) or a range (log 1e-4 0.05).")
    return Choice(tuple(_value(word.strip()) for word in given.split(",")))


def parameter_text(parameter: Parameter) -> str | list[Any] | dict[str, list[Any]]:
    """The inverse of `parse_parameter`."""
    match parameter:
        case Listed(values):
            return {"listed": list(values)}
        case Choice(values):
            return list(values)
        case LogUniform(low, high):
            return f"log {low!r} {high!r}"
        case Uniform(low, high):
            return f"uniform {low!r} {high!r}"
        case Median(low, high):
            return f"median {low!r} {high!r}"


def space_to_dict(space: SearchSpace) -> dict[str, Any]:
    """The space as JSON values: what a file may hold."""
    parameters = {name: parameter_text(p) for name, p in space.parameters.items()}
    return {"parameters": parameters} | {name: getattr(space, name) for name in SETTINGS}


def overridden(space: SearchSpace, run: Run, given: dict[str, Any], where: str) -> SearchSpace:
    """The space with what `given` names in place of its own; each name and value is tried on `run`."""
    settings: dict[str, Any] = {}
    for key, value in given.items():
        if key == "parameters":
            continue
        if key not in SETTINGS:
            raise KoopsimError(f"{where} has the unknown entry {key!r}." + did_you_mean(key, [*SETTINGS, "parameters"]))
        try:
            settings[key] = SETTINGS[key](value)
            if SETTINGS[key] is int and isinstance(value, float) and settings[key] != value:
                raise ValueError  # 2.5 is not 2
        except (TypeError, ValueError, OverflowError):
            raise KoopsimError(f"{key} in {where} is {str(value)[:80]!r}; expected {SETTINGS[key].__name__}.") from None
    chosen = given.get("parameters", {})
    if not isinstance(chosen, dict):
        raise KoopsimError(f"parameters in {where} is {chosen!r}; expected names with their values.")
    parameters = dict(space.parameters)
    for name, value in chosen.items():
        path = path_of(run, name)
        parameters[path] = parse_parameter(path, value)
        _try(run, path, parameters[path])
    return replace(space, parameters=parameters, **settings)


def _try(run: Run, path: str, parameter: Parameter) -> None:
    """Every end and every choice must make a run; better said now than by the hundredth trial."""
    match parameter:
        case Choice(values):
            for value in values:
                with_values(run, {path: value})
        case Median():
            if not path.endswith("bandwidth"):
                raise KoopsimError(f"{path} cannot come from a median; only the bandwidth can.")
        case _:
            with_values(run, {path: parameter.low})
            with_values(run, {path: parameter.high})


def space_from_arguments(space: SearchSpace, run: Run, arguments: tuple[str, ...]) -> SearchSpace:
    """`NAME=VALUES` as on the command line."""
    given = {}
    for argument in arguments:
        name, separator, text = argument.partition("=")
        if not separator:
            raise KoopsimError(f"--search got {argument!r}; expected NAME=VALUES, as in learning_rate='log 1e-4 0.01'.")
        given[name.strip().replace("-", "_")] = text.strip()
    return overridden(space, run, {"parameters": given}, "--search")


def read_space(path: Path) -> dict[str, Any]:
    """What a YAML, TOML or JSON file says of a space; they are told apart by their names."""
    try:
        text = read_bytes(path, MEBI, "search space").decode()
    except (OSError, UnicodeDecodeError) as error:
        raise KoopsimError(f"The search space {path} cannot be read: {error}.") from error
    try:
        match path.suffix.lower():
            case ".toml":
                given = tomllib.loads(text)
            case ".json":
                given = parse_json(text, str(path))
            case ".yaml" | ".yml":
                given = _yaml(text)
            case _:
                raise KoopsimError(f"{path} is neither .yaml, .toml nor .json; a search space is one of these.")
    except (ValueError, RecursionError) as error:
        raise KoopsimError(f"{path} is not a whole {path.suffix[1:]} file: {' '.join(str(error).split())}.") from error
    if not isinstance(given, dict):
        raise KoopsimError(f"{path} holds {type(given).__name__}; expected names with their values.")
    return given


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise KoopsimError("Reading YAML needs the package PyYAML: pip install pyyaml, or write TOML.") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from error


def _value(word: Any) -> Any:
    """A number where the word is one (YAML reads 1e-4 as a word), true, false and none, else the word."""
    if not isinstance(word, str):
        return word
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return {"true": True, "false": False, "none": None}.get(word.lower(), word)
