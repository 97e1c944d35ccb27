"""koopsim completion: the verbs, presets and options of this koopsim, as a script for a shell.

    eval "$(koopsim completion bash)"         in ~/.bashrc; zsh alike, in ~/.zshrc
    koopsim completion fish | source          in ~/.config/fish/config.fish

The script holds the words themselves: completing starts no Python. After an update of koopsim, or of a plugin that
brings presets, a new shell knows the new ones.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from koopsim.cli import MODULES, VERBS, parse

PRESET_VERBS = ("train", "tune")  # their first word is a preset, which decides the rest of their options
EXAMPLE = "copy/sim-single"

BASH = """_koopsim() {{
  local verb="${{COMP_WORDS[1]}}" word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then words="{verbs}"; else case "$verb" in
{cases}
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [ "$COMP_CWORD" -gt 1 ] && [ "${{word:0:1}}" != "-" ] && COMPREPLY+=($(compgen -f -- "$word"))
  return 0
}}
complete -o filenames -F _koopsim koopsim
"""
ZSH = """#compdef koopsim
_koopsim() {{
  local verb="${{words[2]}}"
  if (( CURRENT == 2 )); then compadd -- {verbs}; return; fi
  case "$verb" in
{cases}
  esac
  _files
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}
compdef _koopsim koopsim
"""


@dataclass(frozen=True)
class Arguments:
    """Print a script that completes verbs, presets and options: eval "$(koopsim completion bash)"."""

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """Which shell: bash, zsh or fish."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "completion")
    print({"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell](words()), end="")
    return 0


def words() -> dict[str, list[str]]:
    """What may follow each verb."""
    return {verb: sorted({*_first_words(verb), *_options(verb)}) for verb in VERBS}


def _first_words(verb: str) -> Iterable[str]:
    if verb in PRESET_VERBS:
        from koopsim.presets import PRESETS

        return PRESETS
    return {"data": ("get", "list", "path"), "completion": ("bash", "fish", "zsh")}.get(verb, ())


def _options(verb: str) -> set[str]:
    """Every option of a verb, spelt as on the command line."""
    module = import_module(f"koopsim.cli.{MODULES.get(verb, verb)}")
    its_own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    found = {"--help", *(option for c in its_own if is_dataclass(c) for option in _spelt(c))}
    if verb in PRESET_VERBS:
        from koopsim.presets import run_of

        found = (found - {"--run", "--options"}) | set(_spelt(run_of(EXAMPLE)))
    return found


def _spelt(settings: Any, head: str = "") -> Iterator[str]:
    """The options of a dataclass, or of an instance with those of what it holds: --recipe.learning-rate."""
    hints = get_type_hints(settings if isinstance(settings, type) else type(settings), include_extras=True)
    for field in fields(settings):
        value, name = getattr(settings, field.name, None), f"{head}{field.name.strip('_').replace('_', '-')}"
        marks = getattr(hints[field.name], "__metadata__", ())
        if is_dataclass(value):
            yield from _spelt(value, head if any(getattr(m, "name", None) == "" for m in marks) else f"{name}.")
        elif tyro.conf.Positional not in marks:
            yield f"--{name}"


def _cases(known: dict[str, list[str]], form: str) -> str:
    return "\n".join(form.format(verb=verb, words=" ".join(found)) for verb, found in known.items())


def bash(known: dict[str, list[str]]) -> str:
    return BASH.format(verbs=" ".join(known), cases=_cases(known, '    {verb}) words="{words}" ;;'))


def zsh(known: dict[str, list[str]]) -> str:
    return ZSH.format(verbs=" ".join(known), cases=_cases(known, "    {verb}) compadd -- {words} ;;"))


def fish(known: dict[str, list[str]]) -> str:
    lines = ["complete -c koopsim -f -n __fish_use_subcommand -a '{}'".format(" ".join(known))]
    for verb, found in known.items():
        lines.append(f"complete -c koopsim -n '__fish_seen_subcommand_from {verb}' -a '{' '.join(found)}'")
    return "\n".join(lines) + "\n"
