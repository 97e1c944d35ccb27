"""The inverse's kernels compile for an H200 that is not here: Triton's interpreter takes more than its compiler."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

COMPILE = """
from koopsim.implicit import inverse_kernels as kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

def compiled(kernel, pointers, fixed):
    names = kernel.arg_names
    kinds = {name: "constexpr" if name in fixed else pointers.get(name, "i32") for name in names}
    places = {(names.index(name),): value for name, value in fixed.items()}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in pointers}
    source = ASTSource(fn=kernel, signature=kinds, constexprs=places, attrs=aligned)
    options = {"num_warps": kernels.WARPS, "num_stages": 1, "maxnreg": kernels.REGISTERS}
    return compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]

float32 = dict.fromkeys(("W", "source", "alpha", "D", "target", "following"), "*fp32")
only = {name: float32[name] for name in ("W", "alpha", "D")}
assert "mma" not in compiled(kernels._first, only, {"I": kernels.TILE, "s_column": 1})
del float32["W"]
for first, last in ((True, False), (False, True)):
    pointers = float32 | {"target": "*fp16" if last else "*fp32"}
    fixed = {"FIRST": first, "LAST": last, "I": kernels.TILE, "PRODUCT": kernels.PRECISION, "s_column": 1}
    text = compiled(kernels._step, pointers, fixed)
    assert "mma.sync" in text and "tf32" in text  # the products are the tensor cores'
"""


def test_the_kernels_compile_for_hopper(tmp_path):
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
