"""Completion knows the verbs, presets and options that there are; each shell takes its script."""

import re
import shutil
import subprocess

import pytest

from koopsim.cli import VERBS, completion, main
from koopsim.presets import PRESETS


@pytest.fixture(scope="module")
def known():
    return completion.words()


def test_every_verb_has_its_options(known):
    assert set(known) == set(VERBS)
    assert set(PRESETS) <= set(known["train"])
    assert {"--recipe.learning-rate", "--scale", "--resume"} <= set(known["train"])
    assert {"--trials", "--backend"} <= set(known["tune"])
    for verb in set(VERBS) - {"completion"}:
        assert "--json" in known[verb], verb


@pytest.mark.parametrize("verb", ["train", "fit", "spectrum", "export", "report"])
def test_help_has_the_same_options(verb, known, capsys):
    preset = ["copy/sim-single"] if verb == "train" else []
    with pytest.raises(SystemExit):
        main([verb, *preset, "--help"])
    told = set(re.findall(r"(?<=[\s,|])--[a-z][\w.-]*", capsys.readouterr().out))
    told = {option for option in told if not re.search(r"(--|\.)no-", option)} - {"--plugin"}
    assert told <= set(known[verb]), told - set(known[verb])
    assert len(told) >= 4


def completed(shell: str, script: str, typed: str) -> list[str]:
    """What the shell offers after `typed`."""
    words = typed.split(" ")
    if shell == "bash":
        ask = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _koopsim; printf '%s\\n' ${{COMPREPLY[@]}}"
    elif shell == "zsh":  # what the completion system would be given
        script = f"compdef() {{ :; }}; compadd() {{ shift; printf '%s\\n' $@; }}; _files() {{ :; }}\n{script}"
        ask = f"words=({' '.join(words)}); CURRENT={len(words)}; _koopsim"
    else:
        ask = f"complete -C '{typed}'"
    flags = {"zsh": ["-f"], "bash": ["--norc"], "fish": ["--no-config"]}[shell]
    done = subprocess.run([shell, *flags, "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    found = [line.split("\t")[0] for line in done.stdout.splitlines()]
    return [word for word in found if word.startswith(words[-1])]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes(shell, known):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = getattr(completion, shell)(known)
    assert completed(shell, script, "koopsim spe") == ["spectrum"]
    assert completed(shell, script, "koopsim train copy/sim-t") == ["copy/sim-two"]
    assert "--trials" in completed(shell, script, "koopsim tune --tr")
