"""Small changes to Python source that a test should notice, each at a place of its own.

    + <-> -    * <-> /    < <-> <=    == <-> !=    and <-> or    n -> n + 1, 0, n / 10    True <-> False
    not x -> x    if c -> if not c    return x -> return None    a default changed    an argument's keyword dropped

Docstrings, messages of errors, type hints, names, assertions (`zip(strict=)` is one) and what is drawn are left alone:
no test should have to notice these.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
              ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Add}  # fmt: skip
COMPARE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
           ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}  # fmt: skip


class _Places(ast.NodeVisitor):
    """The nodes that may be changed, in the order of the file."""

    def __init__(self) -> None:
        self.found: list[ast.AST] = []

    def visit_Raise(self, node: ast.Raise) -> None:
        """What an error says is for people."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion tells the reader and the type checker; it is no behaviour."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text."""

    def visit_keyword(self, node: ast.keyword) -> None:
        """`zip(..., strict=True)` is an assertion, `stacklevel=` says where a warning points: no behaviour either."""
        if node.arg not in ("strict", "stacklevel"):
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in [*node.defaults, *(d for d in node.kw_defaults if d is not None)]:
            self.visit(default)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name.lstrip("_").startswith("plot"):  # a picture's margins and colours
            return
        self.visit(node.args)
        for statement in node.body:
            self.visit(statement)

    def visit_If(self, node: ast.If) -> None:
        text = ast.unparse(node.test)
        if "TYPE_CHECKING" in text or "win32" in text or "cuda" in text:
            return
        self.found.append(node)
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        number = isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float)
        kinds = (ast.BinOp, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Return)
        if isinstance(node, kinds) or number:
            self.found.append(node)
        super().generic_visit(node)


def places(tree: ast.Module) -> list[ast.AST]:
    walk = _Places()
    walk.visit(tree)
    return [node for node in walk.found if any(True for _ in changes(node))]


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(in words, the node that takes its place) for every change of a node."""
    new = copy.deepcopy(node)
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        if not (isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant)):
            new.op = ARITHMETIC[type(node.op)]()
            yield f"{type(node.op).__name__} -> {type(new.op).__name__}", new
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARE:
        new.ops[0] = COMPARE[type(node.ops[0])]()
        yield f"{type(node.ops[0]).__name__} -> {type(new.ops[0]).__name__}", new
    elif isinstance(node, ast.BoolOp):
        new.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield "and <-> or", new
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield f"{type(node.op).__name__} dropped", node.operand
    elif isinstance(node, ast.If):
        new.test = ast.UnaryOp(ast.Not(), node.test)
        yield "condition turned round", new
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        new.value = ast.Constant(None)
        yield "returns None", new
    elif isinstance(node, ast.Constant):
        yield from _constants(node)


def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        yield f"{value} -> {not value}", ast.Constant(not value)
    elif isinstance(value, int):
        yield f"{value} -> {value + 1}", ast.Constant(value + 1)
    elif isinstance(value, float):
        yield f"{value} -> {value * 1.5 + 0.1 * (value == 0)}", ast.Constant(value * 1.5 + 0.1 * (value == 0))


def mutant(source: str, place: int, which: int) -> tuple[ast.Module, int, str]:
    """(the changed tree, its line, what was changed)."""
    tree = ast.parse(source)
    node = places(tree)[place]
    found = list(changes(node))
    words, new = found[which % len(found)]

    class Replace(ast.NodeTransformer):
        def visit(self, other: ast.AST) -> ast.AST:
            return ast.copy_location(new, other) if other is node else super().generic_visit(other)

    line = getattr(node, "lineno", 0)
    return ast.fix_missing_locations(Replace().visit(tree)), line, words
