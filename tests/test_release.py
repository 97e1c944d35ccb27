"""What is published: one version everywhere, a small wheel that works alone, an sdist that passes its own tests."""

import fnmatch
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

import koopsim
from koopsim import zoo
from koopsim.cli import main
from koopsim.origin import commit

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ZOO = tomllib.loads((ROOT / "packages" / "zoo" / "pyproject.toml").read_text())
EXTRAS = set(PROJECT["project"]["optional-dependencies"])


def test_one_version():
    assert "version" in PROJECT["project"]["dynamic"]
    assert f"version: {koopsim.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(koopsim.__version__)} \(", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_version_says_the_commit(capsys, monkeypatch):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"koopsim {koopsim.__version__} ({commit() or 'commit unknown'})\n"
    monkeypatch.setenv("KOOPSIM_COMMIT", "abc")
    main(["--version"])
    assert "(abc)" in capsys.readouterr().out


def test_the_commit_of_what_was_built(tmp_path, monkeypatch):
    """Away from git it is what the build wrote down."""
    monkeypatch.delenv("KOOPSIM_COMMIT", raising=False)
    monkeypatch.setattr("koopsim.origin.FILE", tmp_path / "a" / "b" / "commit.txt")
    assert commit() is None
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "commit.txt").write_text("f00\n")
    assert commit() == "f00"


def test_each_model_of_the_zoo_is_in_one_package():
    left_out = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    files = {f"src/koopsim/zoo/{card['file']}" for card in zoo.cards().values()}
    outside = {file for file in files if any(fnmatch.fnmatch(file, pattern) for pattern in left_out)}
    other = ZOO["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert outside == {name.removeprefix("../../") for name in other}
    assert all(place == f"koopsim_zoo/{Path(name).name}" for name, place in other.items())
    inside = {Path(file).name for file in files - outside}
    assert {"copy-sim-single.safetensors", "mnist-sim-two.safetensors", "cifar10-sim-single.safetensors"} <= inside
    spec = importlib.util.spec_from_file_location("reference_page", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert {zoo.card(name)["file"] for name in page.INSIDE} == inside  # what the site says
    assert sum((ROOT / "src/koopsim/zoo" / name).stat().st_size for name in inside) < 2_200_000


def test_the_sdist_has_every_file_but_those_of_the_house_where_it_is_published():
    """So that what passes in a clone passes from the sdist; no test looks at what is left out."""
    builders = pytest.importorskip("hatchling.builders.sdist", reason="needs hatchling: pip install '.[dist]'")
    if not (ROOT / ".git").exists():
        pytest.skip("no clone: nobody says which files there are")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    packed = {file.distribution_path for file in builders.SdistBuilder(str(ROOT)).recurse_included_files()}
    missing = {name for name in listed.splitlines() if (ROOT / name).exists()} - packed
    assert missing
    assert all(name.startswith((".ci/", ".github/")) for name in missing)
    for file in (ROOT / "tests").rglob("*.py"):
        said = file.read_text()
        assert file.name == "test_release.py" or not re.search(r"[\"'/]\.(ci|github)[\"'/]", said), file


def test_every_extra_that_an_error_names_exists():
    text = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    named = {name for group in re.findall(r"koopsim\[([\w,-]+)\]", text) for name in group.split(",")}
    assert len(named) >= 4
    assert named <= EXTRAS, named - EXTRAS


def test_what_was_recorded_of_a_release_is_what_was_asked():
    """The wheel below 3 MB; from an empty environment to a result on one's own table, and the site, within minutes."""
    found = json.loads((ROOT / "results" / "release.json").read_text())
    wheel = next(size for name, size in found["bytes"].items() if re.match(r"koopsim-.*\.whl", name))
    assert wheel < 3_000_000
    assert found["install_seconds"] + found["own_data_seconds"] < 300
    assert found["make_docs_seconds"] < 180
    assert re.search(r"\d+ passed", found["sdist_tests"])
    assert not re.search(r"\d+ (failed|errors?)\b", found["sdist_tests"])  # "2 xfailed" is no failure


@pytest.fixture(scope="module")
def release():
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(release, tmp_path_factory):
    if importlib.util.find_spec("build") is None:
        pytest.skip("the package build is not installed: pip install 'koopsim[dist]'")
    return release.build(tmp_path_factory.mktemp("dist"), isolated=False)


@pytest.mark.slow
def test_the_wheel_is_small_and_works_alone(release, built, tmp_path):
    """Its dependencies are those of this environment, by path: the wheel itself is the only koopsim there."""
    assert built["wheel"].stat().st_size < release.LARGEST_WHEEL
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    site = next((tmp_path / "empty" / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text("\n".join(p for p in sys.path if p.endswith("site-packages")))
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", built["wheel"]], check=True)
    where = subprocess.check_output([python, "-c", "import koopsim; print(koopsim.__file__)"], text=True, cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path), where
    said = subprocess.check_output([python, "-m", "koopsim", "--version"], text=True, cwd=tmp_path)
    assert commit() in said
    release.readme_runs(python, tmp_path)
    ask = "import koopsim; koopsim.load('svhn/sim-two')"
    missing = subprocess.run([python, "-c", ask], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "pip install 'koopsim[zoo]'" in missing.stderr
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", built["zoo"]], check=True)
    subprocess.run([python, "-c", ask], cwd=tmp_path, check=True)


@pytest.mark.slow
def test_the_sdist_passes_its_own_tests(release, built, tmp_path):
    """Those that look beyond src: at benchmarks, results, docs and tools; and all others can be collected."""
    those = ["test_recorded.py", "test_benchmarks.py", "test_readme.py", "test_zoo.py", "test_house.py"]
    said = release.sdist_tests(built["sdist"], tmp_path, *(f"tests/{name}" for name in those))
    assert "failed" not in said
    inner = next(tmp_path.iterdir())
    source = {"PYTHONPATH": str(inner / "src")}
    release.run(sys.executable, "-m", "pytest", "--collect-only", "-q", where=inner, **source)
