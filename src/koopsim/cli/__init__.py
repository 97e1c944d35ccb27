"""The command `koopsim`: one file a verb, and nothing heavy imported until the verb runs."""

import contextlib
import inspect
import io
import os
import sys
import warnings
from importlib import import_module
from typing import Any

VERBS = {
    "presets": "every model of the paper by name, with its number of parameters",
    "data": "the datasets: what there is, fetching them, where they are kept",
    "train": "train a preset, or a model on your own data; go on with a run that was stopped",
    "eval": "evaluate a trained run on a split",
    "predict": "what a trained run says of pictures, a table or sequences",
    "tune": "search for hyper-parameters, stacked on one device or on a Ray cluster",
    "spectrum": "does it settle, oscillate or blow up? a matrix, a trajectory, a trained run",
    "forecast": "how a trajectory goes on, and how far that may be believed",
    "fit": "a small network that is your picture, and how good it is",
    "render": "draw such a network at any size",
    "report": "tables and pictures of finished runs",
    "reproduce": "the paper's tables and figures from one command",
    "bench": "speed side by side with peers and with the machine's limit",
    "export": "a trained model to take along: ONNX, torch.export, or a folder for a model hub",
    "completion": "a script that completes verbs, presets and options in bash, zsh or fish",
}
MODULES = {"eval": "evaluate"}  # where the verb's own name would hide a builtin

PLUGIN = "--plugin MODULE, with any verb, loads a module of yours that adds tasks, models or data sets."
HELP = """usage: koopsim VERB [options]

Stable Invariant Models: infinitely deep in theory, feedforward in practice.

verbs:
{verbs}

  koopsim VERB --help tells more of each. A first minute:

    koopsim presets
    koopsim train copy/sim-single --scale smoke --out runs/first
    koopsim eval runs/first
    koopsim report runs --out report

  {plugin}
"""


def main(argv: list[str] | None = None) -> int:
    """Run a verb; a problem the user can fix is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a letter shows its number
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _answer(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:
            sys.stdout.flush()  # a reader that has gone away is noticed here, not when Python ends
        return status
    except KeyboardInterrupt:  # pressed again while it was ending
        return 130
    except BrokenPipeError:  # as in `| head -1`: nobody is left to tell
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(nowhere, stream.fileno() if stream else nowhere)
        return 1


def _answer(arguments: list[str]) -> int:
    from koopsim.errors import KoopsimError, did_you_mean

    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.format(plugin=PLUGIN, verbs="\n".join(f"  {verb:<12}{what}" for verb, what in VERBS.items())))
        return 0
    if arguments[0] in ("-V", "--version", "version"):
        from koopsim import __version__
        from koopsim.origin import commit

        print(f"koopsim {__version__} ({commit() or 'commit unknown'})")
        return 0
    verb, rest = arguments[0], arguments[1:]
    try:
        _log(os.environ.get("KOOPSIM_LOG", ""))
        rest = _plugins(rest)
        if verb not in VERBS:
            raise KoopsimError(f"There is no verb {verb!r}." + did_you_mean(verb, VERBS))
        with warnings.catch_warnings():
            warnings.showwarning = _say
            return import_module(f"koopsim.cli.{MODULES.get(verb, verb)}").main(rest)
    except KoopsimError as error:
        return _refused(error)
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a folder that may not be written to
        where = f"Cannot use {error.filename}: " if error.filename else ""
        again = " What was saved before is whole; go on with --resume." if verb in ("train", "tune") else ""
        _say(f"{where}{error.strerror or error}.{again}")
    except (MemoryError, RuntimeError) as error:
        if not _no_memory(error):
            raise
        _say("There is not enough memory for this; make the model, the data or the batch smaller.")
    except KeyboardInterrupt:
        _say("stopped.")
        return 130
    return 2


def _refused(error: Exception) -> int:
    """Say it; of several processes with the rank, and of a lost one only where nobody else will."""
    from koopsim.errors import LostOthers

    rank = os.environ.get("RANK", "0")
    if isinstance(error, LostOthers):
        if rank == "0" and "KOOPSIM_LAUNCHED" not in os.environ:
            _say(error)
        return 3
    _say(error if rank == "0" else f"rank {rank}: {error}")
    return 2


def _log(level: str) -> None:
    """KOOPSIM_LOG=info (or debug, warning): what the library logs goes to standard error."""
    if not level:
        return
    import logging

    from koopsim.errors import KoopsimError

    if level.lower() not in ("debug", "info", "warning", "error"):
        raise KoopsimError(f"KOOPSIM_LOG is {level!r}; expected debug, info, warning or error.")
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("koopsim").setLevel(level.upper())


def _no_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: Python's, or PyTorch's in one of its ways."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in words)


def _plugins(arguments: list[str]) -> list[str]:
    """The arguments without --plugin MODULE, the modules loaded: what they bring decides what else may be said."""
    rest, given = [], iter(arguments)
    for argument in given:
        option, equals, module = argument.partition("=")
        if option != "--plugin":
            rest.append(argument)
            continue
        from koopsim.errors import KoopsimError
        from koopsim.registry import load_plugin

        module = module if equals else next(given, "")
        if not module or module.startswith("-"):
            raise KoopsimError("--plugin needs the name of a module to import, as in --plugin my_models.")
        load_plugin(module)
    return rest


def _say(message: BaseException | str, *where: object, **more: object) -> None:
    """An error or a warning as one line, without the place in the source that raised it."""
    from koopsim.errors import printable

    print(f"koopsim: {printable(str(message))}", file=sys.stderr)


def parse(arguments: type, argv: list[str], verb: str, default: object = None):
    """`argv` as an instance of the dataclass `arguments`; --help and typos are answered by tyro."""
    import tyro

    told = f"{inspect.cleandoc(arguments.__doc__ or '').strip()}\n\n{PLUGIN}"
    options: dict[str, Any] = {"config": (tyro.conf.AvoidSubcommands,), "description": told}
    if default is not None:
        options["default"] = default
    return tyro.cli(arguments, prog=f"koopsim {verb}", args=argv, **options)
