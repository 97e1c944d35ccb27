"""The reference of the site: a page a room, every public name with signature and docstring, and every verb's --help.

A paragraph of a docstring whose lines are all `name   meaning` becomes a table; what is indented is code.
Public is what `koopsim.__all__` and the rooms' own `__all__` name; CONTRIBUTING.md says what that promises.
"""

import contextlib
import dataclasses
import inspect
import io
import os
import re
from importlib import import_module
from types import ModuleType
from typing import Any

import koopsim
from koopsim.cli import VERBS, main

ROOMS = [
    "spectral", "bridge", "implicit", "implicit.torchdeq", "nn", "sklearn", "datasets", "tracking", "hub", "zoo",
    "report", "config", "kinds", "registry", "tasks",
]  # fmt: skip
SOURCE = "https://github.com/koopsim/koopsim/blob/main/src/"
ROW = re.compile(r"^(\S.*?) {2,}(\S.*)$")
INSIDE = {"copy/deq", "copy/sim-single", "copy/sim-two", "mnist/sim-single", "mnist/sim-two", "cifar10/sim-single"}
WIDEST = 88


def pages() -> dict[str, str]:
    """The Markdown of each page, by its address in the site."""
    found = {"reference/koopsim.md": page("koopsim", koopsim, top_names())}
    for room in ROOMS:
        with contextlib.suppress(ModuleNotFoundError):  # a room that this version does not have
            module = import_module(f"koopsim.{room}")
            found[f"reference/{room.replace('.', '-')}.md"] = page(f"koopsim.{room}", module, public(module))
    return found | {"reference/command-line.md": command_line(), "zoo.md": zoo_page()}


def top_names() -> list[str]:
    rooms = {name for name in koopsim.__all__ if inspect.ismodule(getattr(koopsim, name))}
    return sorted((set(koopsim.__all__) - rooms) - {"__version__"}, key=str.lower)


def public(module: ModuleType) -> list[str]:
    """The names a module means for others: its `__all__`, or what it defines itself without an underscore."""
    if hasattr(module, "__all__"):
        return sorted((name for name in module.__all__ if not name.startswith("_")), key=str.lower)
    own = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__ and callable(value)
    }
    return sorted(own, key=str.lower)


def page(name: str, module: ModuleType, names: list[str]) -> str:
    listed = [entry(found, getattr(module, found)) for found in names if not inspect.ismodule(getattr(module, found))]
    return f"# {name}\n\n{prose(module.__doc__)}\n\n" + "\n\n".join(listed) + "\n"


def entry(name: str, value: Any) -> str:
    """A heading, where it is, how it is called, what it says of itself."""
    if not (inspect.isclass(value) or callable(value)):
        return f"## {name}\n\n```python\n{name} = {short(repr(value))}\n```"
    parts = [f"## {name}", place(value), called(name, value), prose(own_doc(value))]
    if inspect.isclass(value):
        parts += [fields(value), *methods(value)]
    return "\n\n".join(part for part in parts if part)


def own_doc(value: Any) -> str:
    """A docstring that somebody wrote: not the one a dataclass makes up, nor a base class's."""
    said = vars(value).get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", None)
    made_up = dataclasses.is_dataclass(value) and (said or "").startswith(f"{getattr(value, '__name__', '')}(")
    return "" if made_up else said or ""


def place(value: Any) -> str:
    module = getattr(value, "__module__", "") or ""
    if not module.startswith("koopsim"):
        return ""
    file = inspect.getsourcefile(inspect.unwrap(value))
    path = file.rpartition("/src/")[2] if file else module.replace(".", "/") + ".py"
    return f"<small>[{path}]({SOURCE}{path})</small>"


def called(name: str, value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    given = [p for p in signature.parameters.values() if p.name != "self" and not p.name.startswith("_")]
    parts = [short(re.sub(r": '([^']*)'", r": \1", str(p))).replace("koopsim.", "") for p in given]
    flat = f"{name}({', '.join(parts)})"
    if len(flat) > WIDEST:
        flat = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + ")"
    back = signature.return_annotation
    ends = "" if inspect.isclass(value) or back is inspect.Signature.empty else f" -> {named(back)}"
    return f"```python\n{flat}{ends}\n```"


def named(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def short(text: str) -> str:
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def fields(value: type) -> str:
    """The settings of a dataclass with the sentence that stands under each in the source, where any has one."""
    if not dataclasses.is_dataclass(value):
        return ""
    try:
        source = inspect.getsource(value)
    except OSError:
        return ""
    rows, told = [], False
    for field in dataclasses.fields(value):
        if field.name.startswith("_"):
            continue
        line = rf"^    {field.name}: (?P<type>[^=\n#]+?)(?: = [^\n#]*)?(?:  # (?P<note>[^\n]*))?\n"
        line += r'(?:    """(?P<doc>.*?)""")?'
        found = re.search(line, source, re.M | re.S)
        said = (found and (found["doc"] or found["note"])) or ""
        told |= bool(said)
        kind = found["type"].strip() if found else named(field.type)
        rows.append(f"| `{field.name}` | `{cell(kind)}` | {cell(said)} |")
    return "| setting | type | |\n|---|---|---|\n" + "\n".join(rows) if told else ""  # else the signature says it all


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def methods(value: type) -> list[str]:
    found = []
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(inner, property) and inner.__doc__:
            found.append(f"### {value.__name__}.{name}\n\n{prose(inner.__doc__)}")
        elif inspect.isfunction(inner) and inner.__doc__:
            found.append(f"### {value.__name__}.{name}\n\n{called(name, inner)}\n\n{prose(inner.__doc__)}")
    return found


def prose(docstring: str | None) -> str:
    """A docstring as Markdown."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(docstring or ""))
    return "\n\n".join(paragraph(text) for text in paragraphs if text.strip())


def paragraph(text: str) -> str:
    lines = text.splitlines()
    if len(lines) > 2 and re.fullmatch(r"-{3,}", lines[1]):  # NumPy's way: a title, a rule, names with what they mean
        return f"**{lines[0]}**\n\n" + paragraph("\n".join(of_numpy(lines[2:])))
    if lines[0].startswith("    "):
        return "```text\n" + inspect.cleandoc("\n" + text) + "\n```"
    rows: list[tuple[str, str]] = []
    for line in lines:
        match = ROW.match(line)
        if match:
            rows.append((match[1], match[2]))
        elif rows and line.startswith(" "):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        else:
            return safe(text)
    return "| | |\n|---|---|\n" + "\n".join(f"| `{cell(a)}` | {safe(cell(b))} |" for a, b in rows)


def of_numpy(lines: list[str]) -> list[str]:
    """`name` and its indented meaning on one line."""
    found: list[str] = []
    for line in lines:
        if not line.startswith(" "):
            found.append(f"{line}  ")
        elif found:
            found[-1] += f" {line.strip()}"
    return found


def safe(text: str) -> str:
    """Plain text: what looks like HTML or emphasis is neither, outside of backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    plain = [part if part.startswith("`") else re.sub(r"([*_$])", r"\\\1", part) for part in parts]
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in plain)


def zoo_page() -> str:
    """Every trained model, and its card."""
    from koopsim import zoo
    from koopsim.hub import card_text

    rows, cards = [], []
    for name in zoo.cards():
        card, config = zoo.card(name), zoo.run_of_card(name).model
        figure = ", ".join(f"{key} {value:.4g}" for key, value in card["test"].items() if key in ("accuracy", "loss"))
        place = "koopsim" if name in INSIDE else "koopsim[zoo]"
        rows.append(f"| [{name}](#{re.sub(r'[^a-z0-9-]', '', name)}) | {card['parameters']:,} | {figure} | `{place}` |")
        text = card_text(name, config, card["parameters"], card).split("---\n", 2)[2]
        lower = re.sub(r"^## (.*)$", r"### \1", text, flags=re.M)
        cards.append(re.sub(r"^# (.*)$", r"## \1", lower, count=1, flags=re.M))
    head = "# Trained models\n\n`koopsim.load(NAME)`, `koopsim eval zoo:NAME`. Cards as they go along with "
    head += "`koopsim export zoo:NAME --format hub`.\n\n| name | parameters | test | in |\n|---|---:|---|---|\n"
    return head + "\n".join(rows) + "\n" + "\n".join(cards)


def command_line() -> str:
    """Every verb's own --help."""
    os.environ["COLUMNS"] = "100"
    text = "# The command line\n\nWhat `koopsim VERB --help` says. `--json` prints the result on standard output.\n"
    for verb in VERBS:
        preset = ["copy/sim-single"] if verb in ("train", "tune") else ["get"] if verb == "data" else []
        said = ""
        for words in ([verb], [verb, *preset]) if preset else ([verb],):
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
                main([*words, "--help"])
            said += f"```text title=\"koopsim {' '.join(words)} --help\"\n{out.getvalue().strip()}\n```\n\n"
        text += f"\n## koopsim {verb}\n\n{VERBS[verb].capitalize()}.\n\n{said}"
    return text
