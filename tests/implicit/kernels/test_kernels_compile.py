"""monDEQ's kernels and a DEQ's attention compile for an H200 that is not here: the interpreter takes more than that."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

PREPARE = """
from koopsim.implicit.kernels import inverse as kernels
from koopsim.implicit.kernels import splitting as splitting_kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

def compiled(kernel, pointers, fixed, **options):
    names = kernel.arg_names
    kinds = {name: "constexpr" if name in fixed else pointers.get(name, "i32") for name in names}
    places = {(names.index(name),): value for name, value in fixed.items()}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name, kind in pointers.items() if kind[0] == "*"}
    source = ASTSource(fn=kernel, signature=kinds, constexprs=places, attrs=aligned)
    done = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert done.metadata.shared <= 227 * 1024, done.metadata.shared
    return done.asm["ptx"]
"""

INVERSE = """
few = {"num_warps": kernels.WARPS, "num_stages": 1, "maxnreg": kernels.REGISTERS}
float32 = dict.fromkeys(("W", "source", "alpha", "D", "target", "following"), "*fp32")
only = {name: float32[name] for name in ("W", "alpha", "D")}
assert "mma" not in compiled(kernels._first, only, {"I": kernels.TILE, "s_column": 1}, **few)
del float32["W"]
for first, last in ((True, False), (False, True)):
    pointers = float32 | {"target": "*fp16" if last else "*fp32"}
    fixed = {"FIRST": first, "LAST": last, "I": kernels.TILE, "PRODUCT": kernels.PRECISION, "s_column": 1}
    text = compiled(kernels._step, pointers, fixed, **few)
    assert "mma.sync" in text and "tf32" in text  # the products are the tensor cores'
"""

STEPS = """
pointers = dict.fromkeys(("t", "before", "out"), "*fp16") | dict.fromkeys(("c", "sums", "c_units", "z_units"), "*fp32")
pointers |= dict.fromkeys(("t_places", "out_places", "blocks"), "*i32") | {"keep": "*u8"}
for tiered, end, look in ((True, False, True), (True, True, True), (True, False, False), (False, False, True)):
    fixed = {"RECTIFY": True, "REFLECT": True, "END": end, "LOOK": look, "PAIRED": not tiered, "T_PLACED": tiered}
    fixed |= {"OUT_PLACED": tiered and not end, "TIERED": tiered, "UNITS": True, "R": 32 if tiered else 16, "S": 128}
    own = pointers | {"out": "*fp32" if end else "*fp16", "before": "*fp16"}
    assert "st.global" in compiled(splitting_kernels._advance, own, fixed, num_warps=8)
moved = {"source": "*fp16", "target": "*fp16", "rows": "*i32", "places": "*i32"}
assert "st.global" in compiled(splitting_kernels._move, moved, {"R": 32, "S": 128}, num_warps=8)
"""


ATTENTION = """
from koopsim.implicit.kernels import attention
import torch
q, v = torch.empty(20, 520, 8, 48), torch.empty(20, 520, 8, 8)
fixed = {k: n for k, n in attention._shape(q, v, 64, q).items() if k not in attention.LAUNCH}
tensors = ("q", "k", "v", "o", "do", "sizes", "dq", "dk", "dv")
for kernel in (attention._forward, attention._of_queries, attention._of_keys):
    pointers = {n: "*fp32" for n in tensors if n in kernel.arg_names} | {n: "fp32" for n in ("scale", "c") if n in kernel.arg_names} | {"active": "*u8"}
    assert "mma" in compiled(kernel, pointers, fixed, **attention.LAUNCH)  # the products are the tensor cores'
"""  # noqa: E501


LEDGER = """
from koopsim.implicit.kernels import ledger
for kind in ("*fp32", "*fp64"):
    states = dict.fromkeys(("z", "fz", "g", "sums", "norm", "worst", "parts", "best", "proposed", "out"), kind)
    states |= {"blocks": "*i32", "better": "*u8", "active": "*u8", "steps": "*i64", "tol": "fp32", "eps": "fp32"}
    for kernel, fixed in (
        (ledger._measure, {"WIDE": kind == "*fp64", "N": ledger.BLOCK}),
        (ledger._judge, {"P": 3, "ABSOLUTE": False, "C": 32}),
        (ledger._choose, {"NEXT": True, "N": ledger.BLOCK}),
    ):
        own = {name: known for name, known in states.items() if name in kernel.arg_names}
        assert "st.global" in compiled(kernel, own, fixed, num_warps=4)
"""


@pytest.mark.parametrize("check", [INVERSE, STEPS, ATTENTION, LEDGER], ids=["inverse", "steps", "attention", "ledger"])
def test_the_kernels_compile_for_hopper(check, tmp_path):
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + check], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
