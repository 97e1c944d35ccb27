"""The site: every block of it runs, every command in it is one that koopsim knows, it builds, and no link is dead."""

import importlib.util
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from koopsim.cli import VERBS, main

sys.path.insert(0, str(Path(__file__).parent))
from pages import DOCS, ROOT, blocks, commands

PAGES = sorted(DOCS.rglob("*.md"))
RUN = [DOCS / name for name in ("start.md", "play.md", "watching.md", "spectra-matrices.md", "spectra-data.md")]
RUN += [DOCS / name for name in ("trajectories.md", "classifying-images.md", "latency.md")]
RUN += sorted((DOCS / "stories").glob("*.md"))
PYTHON_ALONE = {"classifying-images.md", "latency.md"}  # their commands fetch MNIST or need a GPU: parsed alone


def ids(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=ids)
def test_a_page_runs(page, tmp_path):
    """In a process and a folder of its own, as a reader would."""
    assert blocks(page), f"{page.name} has nothing to run"
    here = Path(__file__).parent
    alone = ["--python-alone"] if page.name in PYTHON_ALONE else []
    command = [sys.executable, str(here / "pages.py"), str(page), *alone]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_page_with_python_is_run_somewhere():
    """Here, or by a test beside the room it is about, which names the page."""
    tests = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    for page in PAGES:
        if any(block.kind == "python" for block in blocks(page)) and page not in RUN:
            assert re.search(rf'"{page.stem}(\.md)?"', tests), f"{page.name} is run by no test"


def shown(page: Path) -> list[list[str]]:
    """The koopsim commands of a page, in fences or indented."""
    text = page.read_text()
    fenced = re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.S | re.M)
    indented = [re.sub(r" {2,}.*", "", line) for line in re.findall(r"^ {4}(koopsim .*)$", text, re.M)]
    return [words for block in [*fenced, *indented] for words in commands(block)]


class Parsed(Exception):
    """What was typed is a command; it is not carried out."""


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_command_is_one(page, monkeypatch, tmp_path):
    """Verbs, presets and options are those that there are: parsed as koopsim would, and stopped there."""
    import koopsim.cli as cli

    real = cli.parse

    def parse_alone(*given, **more):
        real(*given, **more)
        raise Parsed

    monkeypatch.chdir(tmp_path)
    for words in shown(page):
        if any(word.isupper() and len(word) > 1 for word in words) or "--plugin" in words or not words:
            assert not words or words[0] in VERBS or words[0] == "VERB"
            continue  # PRESET, FOLDER: a pattern, not a command
        if words[0].startswith("-"):
            continue
        assert words[0] in VERBS, words
        if "--data" in words:
            continue  # looks at the folder before it knows its options; carried out in the stories
        module = importlib.import_module(f"koopsim.cli.{cli.MODULES.get(words[0], words[0])}")
        monkeypatch.setattr(module, "parse", parse_alone)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                main(words)
        except Parsed:
            continue
        except SystemExit as stop:
            pytest.fail(f"koopsim {' '.join(words)} is no command (exit {stop.code})")
        pytest.fail(f"koopsim {' '.join(words)} was not understood")


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_python_block_can_be_compiled(page):
    for block in blocks(page):
        if block.kind == "python":
            compile(block.text, str(page), "exec")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    """As files of the repository, where people read them too."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.S | re.M)
    for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text):
        made = re.fullmatch(r"(\.\./)*(reference|notebooks)/[\w-]+\.(md|ipynb)", link)  # written by the build
        assert made or (page.parent / link).exists(), f"{page.name}: {link}"


def tool(name: str):
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(f"tool_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_site_builds_and_no_link_is_dead(tmp_path):
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: pip install 'koopsim[docs]'")
    command = [sys.executable, str(ROOT / "tools" / "site.py"), "--out", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "analyze" in (tmp_path / "site" / "reference" / "spectral.html").read_text()
    assert (tmp_path / "site" / "search" / "search_index.js").exists()  # found without a server
    assert "<math" in (tmp_path / "site" / "theory.html").read_text()


def test_dead_links_and_strangers_are_noticed(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html">b</a><a href="#there">t</a><script src="https://x.org/y.js"></script>')
    (tmp_path / "c.html").write_text('<h1 id="here"></h1><a href="a.html">a</a><a href="#here">h</a>')
    found = tool("site").problems(tmp_path)
    assert len(found) == 3
    assert all(line.startswith("a.html") for line in found)


def test_the_logo_is_the_one_that_is_drawn():
    assert tool("logo").svg() == (DOCS / "assets" / "logo.svg").read_text()


def test_what_is_public_has_a_docstring():
    reference = tool("reference")
    import koopsim

    bare = [name for name in reference.top_names() if not reference.own_doc(getattr(koopsim, name))]
    for room in ("spectral", "bridge", "implicit", "implicit.torchdeq", "nn", "datasets"):
        module = importlib.import_module(f"koopsim.{room}")
        values = {name: getattr(module, name) for name in reference.public(module)}
        bare += [f"{room}.{name}" for name, value in values.items() if callable(value) and not reference.own_doc(value)]
    assert not bare
