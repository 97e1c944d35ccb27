"""monDEQ's kernels compile for an H200 that is not here: Triton's interpreter takes more than its compiler does."""

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
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in pointers}
    source = ASTSource(fn=kernel, signature=kinds, constexprs=places, attrs=aligned)
    return compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
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


@pytest.mark.parametrize("check", [INVERSE, STEPS], ids=["inverse", "steps"])
def test_the_kernels_compile_for_hopper(check, tmp_path):
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + check], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
