"""Data flows one way: a module imports only from rooms above it, and nothing heavy before it is needed."""

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "koopsim"
ROOMS = [
    "errors", "origin", "files", "registry", "config", "spaces", "words", "kinds", "presets", "progress", "tracking",
    "schedule", "runs", "datasets", "pictures", "answering", "predicting", "table_answers", "sequence_answers", "nn",
    "implicit", "models", "picture_codec", "picture_network", "spectral", "tasks", "engine", "training", "ray_training",
    "learning", "searching", "points", "fitting", "signals", "fit_folder", "zoo", "export", "hub", "deployment",
    "bridge", "report", "reproduction", "bench", "sklearn", "cli",
]  # fmt: skip
OUTSIDE = {"__init__", "__main__"}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_upwards(path):
    if room(path) in OUTSIDE:
        return
    assert room(path) in ROOMS, f"{path} is in a room the house does not know: add it to ROOMS, in its place"
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("koopsim"):
            names = [node.module] if node.module != "koopsim" else [f"koopsim.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.startswith("koopsim.")]
        for name in names:
            target = name.split(".")[1]
            if target.startswith("__"):
                continue
            assert ROOMS.index(target) <= ROOMS.index(room(path)), f"{path} imports {name} from a room below it"


def imported_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules, file=sys.stderr)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stderr.split())


@pytest.mark.parametrize("code", ["import koopsim", "from koopsim.cli import main; main(['--help'])"])
def test_nothing_heavy_before_it_is_needed(code):
    assert not imported_by(code) & {"torch", "matplotlib", "scipy", "sklearn", "tyro", "rich"}


def test_help_answers_at_once():
    """Half a second of its own work at most: how busy the machine is does not count."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "koopsim", "--help"], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.5


def test_the_library_never_prints():
    """It logs, warns or tells a listener; only the command line and its progress speak to a person."""
    for path in sorted(SOURCE.rglob("*.py")):
        if room(path) in {"cli", "progress"}:
            continue
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        lines = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        assert not lines, f"{path}: print() on lines {lines}"


def test_no_two_test_files_have_one_name():
    """pytest imports them by their bare name: the second would be taken for the first."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


A_VERB_EACH = {"main", "Arguments"}  # every file of cli/ has both: what it is asked, and how it is called


def defined() -> dict[str, set[str]]:
    """{public name: the modules that define it}; a kernel has the name of the twin it stands in for."""
    homes: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(path.relative_to(SOURCE).as_posix())
    return homes


def test_a_public_name_has_one_home():
    for name, homes in defined().items():
        if name in A_VERB_EACH:
            assert {home.split("/")[0] for home in homes} == {"cli"}, f"{name} is also in {homes}"
            continue
        readable = {home for home in homes if "/kernels/" not in home}
        assert max(len(readable), len(homes) - 1) < 2, f"{name} stands in {sorted(homes)}: rename, share or hide one"


MOST_PARAMETERS, MOST_BRANCHES = 6, 18
MANY_PARAMETERS = {
    # what a notebook types, each a keyword with a default, all in docs/
    "bridge/observe.py observe", "bridge/closed_form.py closed_form", "bridge/closed_measure.py closed_measure",
    "searching/carrying_out.py search", "export.py export_model", "learning.py train", "implicit/monotone.py __init__",
    "nn/sim.py __init__",  # the pieces of the paper's figure 1
    "spectral/edmd.py __init__",  # scikit-learn's contract: an estimator's parameters are its keywords
    "implicit/solvers.py anderson",  # a solver's settings are its keywords: functools.partial(anderson, memory=3)
    "implicit/splitting.py advance",  # the readable twin of a kernel takes what the kernel takes
}  # fmt: skip
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.match_case)


def functions():
    """(name with its file, definition) of every function but the kernels': a chip takes what it takes."""
    for path in sorted(SOURCE.rglob("*.py")):
        if "kernels" in path.relative_to(SOURCE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(SOURCE).as_posix()} {node.name}", node


def branches(function: ast.AST) -> int:
    """Ways through a function, functions inside of it left out: one, and one more for each fork and each and/or."""
    count, left = 1, list(ast.iter_child_nodes(function))
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        count += isinstance(node, BRANCHES)
        count += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
        count += len(node.ifs) if isinstance(node, ast.comprehension) else 0
        left += ast.iter_child_nodes(node)
    return count


def test_functions_take_few_parameters():
    seen = set()
    for name, node in functions():
        args = node.args
        names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
        count = len([n for n in names if n not in ("self", "cls", "ctx")]) + bool(args.vararg) + bool(args.kwarg)
        if count > MOST_PARAMETERS:
            seen.add(name)
    assert seen == MANY_PARAMETERS, "put what belongs together into a frozen dataclass, or take the exception away"


def test_functions_have_few_branches():
    found = {name: count for name, node in functions() if (count := branches(node)) > MOST_BRANCHES}
    assert not found, "split it into what it does"


def test_branches_are_counted():
    code = "def f(x):\n if x and not x:\n  return [y for y in x if y]\n def g():\n  if x: pass\n return 1 if x else 2"
    assert branches(ast.parse(code).body[0]) == 6


def test_public_names():
    import koopsim

    for name in koopsim.__all__:
        assert getattr(koopsim, name) is not None
    with pytest.raises(AttributeError):
        _ = koopsim.nothing_of_the_kind
