"""Who is known by name: models, lifts, tasks, data sets and solvers, and the doors they come in by.

    built in     each file of nn/, implicit/, tasks/ and datasets/ registers what it holds, beside its code
    installed    entry points of the group "koopsim.plugins" in other people's packages
    named        --plugin MODULE on the command line, koopsim.load_plugin("MODULE") in Python

Nothing else is ever imported: files of a run name kinds, never modules, so reading one executes nothing. The rooms are
imported when a registry is first asked for something it does not know, or for all it knows; no torch before that.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Generic, TypeVar

from koopsim.errors import KoopsimError, did_you_mean

GROUP = "koopsim.plugins"
HOUSE = "koopsim"
T = TypeVar("T")


class Registry(Generic[T]):
    """Entries by name. `rooms` are the packages of this house whose files register such entries."""

    def __init__(self, what: str, *rooms: str):
        self.what, self.rooms = what, rooms
        self._entries: dict[str, T] = {}
        self.version = 0  # grows with every entry, so that what was gathered from them can be kept until then

    def add(self, name: str, entry: T) -> None:
        """Make `entry` known. The same definition again takes its own place; another one of that name is refused."""
        if _origin(entry)[0].partition(".")[0] != HOUSE:  # a guest may come before the house has been asked at all
            _open_house(*self.rooms)
        before = self._entries.get(name)
        if before is not None and _origin(before) != _origin(entry):
            raise KoopsimError(
                f"There are two of the {self.what} {name!r}, {'.'.join(_origin(before))} and "
                f"{'.'.join(_origin(entry))}; give one of them another name."
            )
        self._entries[name] = entry
        self.version += 1

    def register(self, function: T) -> T:
        """A decorator: make a function known by its own name."""
        self.add(function.__name__, function)  # pyright: ignore[reportAttributeAccessIssue]
        return function

    def find(self, name: str) -> T | None:
        """The entry called `name`, or None; the rooms are looked through before that is said."""
        if name not in self._entries:
            open_rooms(*self.rooms)
        return self._entries.get(name)

    def __getitem__(self, name: str) -> T:
        found = self.find(name)
        if found is None:
            raise KoopsimError(f"There is no {self.what} {name!r}." + did_you_mean(name, self) + plugin_hint())
        return found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def __iter__(self) -> Iterator[str]:
        open_rooms(*self.rooms)
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(tuple(iter(self)))

    def values(self) -> list[T]:
        """Every entry, in the order in which they registered."""
        return [self._entries[name] for name in self]


# The entries' own types are in kinds/, with what each of them answers.
MODELS: Registry[Any] = Registry("model", "nn", "implicit")
LIFTS: Registry[Any] = Registry("lift", "nn")
TASKS: Registry[Any] = Registry("task", "tasks")
DATASETS: Registry[Any] = Registry("data set", "datasets")
SOLVERS: Registry[Any] = Registry("solver", "implicit")

_opened: set[str] = set()  # rooms, and "plugins" once those that are installed are in
_named: dict[str, str] = {}  # plugins that were loaded by name, and the folder they were named in


class Process:
    """own: this is the command's process, with nobody else's objects in it."""

    own = False


@contextmanager
def _only_importing() -> Iterator[None]:
    """In the command: what is imported, PyTorch above all, is no garbage; to look for some took a quarter of it all."""
    if not (Process.own and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _open_house(*rooms: str) -> None:
    """Import every file of these rooms, once."""
    for room in rooms:
        if room not in _opened:
            _opened.add(room)  # first: a file of the room may ask a registry while it is imported
            try:
                with _only_importing():
                    package = import_module(f"koopsim.{room}")
                    for file in iter_modules(package.__path__):
                        if not file.ispkg:  # kernels/ and the like register nothing, and may need a GPU's compiler
                            import_module(f"koopsim.{room}.{file.name}")
            except BaseException:
                _opened.discard(room)
                raise


def open_rooms(*rooms: str) -> None:
    """Import every file of these rooms, and the installed plugins, once."""
    _open_house(*rooms)
    if "plugins" not in _opened:
        _opened.add("plugins")
        for point in metadata.entry_points(group=GROUP):
            try:
                point.load()
            except Exception as error:  # somebody else's package must not take this one down
                warnings.warn(
                    f"The plugin {point.name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}",
                    stacklevel=2,
                )


def load_plugin(module: str, folder: Path | str | None = None) -> None:
    """Import a module that registers models, tasks, lifts, solvers or data sets.

    It is looked for in `folder`, which is this one unless told, and where Python looks.
    """
    if module in _named:
        return
    here = str(Path.cwd() if folder is None else folder)
    sys.path.insert(0, here)
    try:
        import_module(module)
    except KoopsimError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and module.startswith(error.name):
            raise KoopsimError(
                f"There is no plugin {module!r}: Python finds no module of that name. Install its package, or go to "
                "the folder that holds it; a plugin is named as in 'import', without .py."
            ) from error
        raise KoopsimError(f"The plugin {module!r} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(here)
    _named[module] = here


def named_plugins() -> dict[str, str]:
    """The plugins that were loaded by name, each with its folder: other processes have to load them too."""
    return dict(_named)


def plugin_hint() -> str:
    """What to do where a kind is not known that another machine, or an earlier command, knew."""
    return " If it is a plugin's, install that or name it with --plugin MODULE."


def _origin(entry: Any) -> tuple[str, str]:
    kind = entry if hasattr(entry, "__qualname__") else type(entry)
    return kind.__module__, kind.__qualname__
