"""The books of a solve, kept in three ways, say the same: tensors (the readable one), NumPy on a CPU, kernels."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from koopsim.implicit import anderson, broyden, newton, picard
from koopsim.implicit.iteration import Tolerance
from koopsim.implicit.ledger import HostLedger, Ledger

SIZES = {"one": (), "parts": (3, 5)}


def iterates(B=7, D=8, steps=12):
    """Points and images: most settle, one sooner; one blows up, one is nan, one gets worse in between."""
    torch.manual_seed(2)
    z = torch.randn(B, D)
    away = torch.randn(B, D)
    for k in range(steps):
        fz = z + away * 0.5**k
        fz[1] = z[1] + away[1] * 0.1**k
        fz[2] = z[2] * 1e9 * 10.0**k
        fz[3] = math.nan
        fz[4] = z[4] + away[4] * (0.5**k if k % 3 else 1.0)
        yield z, fz
        z = fz.clone()


@np.errstate(all="ignore")
@pytest.mark.parametrize("kind", ["relative", "absolute", "own"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_host_keeps_the_books_of_the_tensors(kind, sizes):
    tol = Tolerance(0.01, (lambda g, fz: g.abs().amax(1)) if kind == "own" else kind, sizes)
    kept = {}
    for z, fz in iterates():
        kept = kept or {"tensors": Ledger(z, tol), "host": HostLedger(z, tol)}
        said = {name: own.judge(z, fz) for name, own in kept.items()}
        torch.testing.assert_close(said["host"], said["tensors"], equal_nan=True)
        nexts = [own.next(fz, fz) for own in kept.values()]
        torch.testing.assert_close(*nexts, equal_nan=True)
        assert all(z.data_ptr() != fz.data_ptr() for z in nexts)  # a cell may use its memory again
        assert kept["host"].left() == kept["tensors"].left()
        assert kept["host"].rows().tolist() == kept["tensors"].rows().tolist()
        torch.testing.assert_close(kept["host"].best, kept["tensors"].best, equal_nan=True)
    infos = [own.info() for own in kept.values()]
    for name in ("steps", "residuals", "converged"):
        torch.testing.assert_close(*(getattr(info, name) for info in infos))
    assert infos[0].steps.dtype == infos[1].steps.dtype == torch.int64
    assert (infos[0].parts is None) == (infos[1].parts is None) == (not sizes)
    if sizes:
        torch.testing.assert_close(infos[0].parts, infos[1].parts)
    steps, converged = infos[1].steps.tolist(), infos[1].converged.tolist()
    assert converged[:4] == [True, True, False, False]
    assert steps[3] == 1  # nan: it is told nothing more
    assert steps[1] < steps[0] < 12
    assert infos[1].residuals[3] == math.inf


@pytest.mark.parametrize("solver", [picard, anderson, broyden, newton])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_solvers_answer_the_same_with_either(solver, dtype, monkeypatch):
    torch.manual_seed(0)
    W, x = torch.linalg.qr(torch.randn(6, 6)).Q, torch.randn(9, 6)

    def f(z):
        return torch.tanh(0.8 * z.float() @ W + x).to(z.dtype)

    tol = 1e-4 if dtype == torch.float32 else 5e-2
    z, info = solver(f, torch.zeros(9, 6, dtype=dtype), max_steps=60, tol=tol)
    monkeypatch.setattr("koopsim.implicit.iteration.ledger_of", Ledger)
    same, other = solver(f, torch.zeros(9, 6, dtype=dtype), max_steps=60, tol=tol)
    torch.testing.assert_close(z, same)
    torch.testing.assert_close(info.steps, other.steps)
    torch.testing.assert_close(info.residuals.float(), other.residuals.float(), rtol=1e-2, atol=0)
    assert info.converged.all()


def test_a_cell_that_writes_into_its_own_memory_is_solved_right():
    memory, W, x = torch.empty(4, 6), 0.5 * torch.eye(6), torch.randn(4, 6)
    z, info = picard(lambda z: torch.addmm(x, z, W, out=memory), torch.zeros(4, 6), max_steps=60, tol=1e-6)
    assert info.converged.all()
    torch.testing.assert_close(z, 2 * x, rtol=1e-4, atol=1e-5)


KERNELS = """
import math
import sys
import numpy as np
import torch
from koopsim.implicit.iteration import Tolerance
from koopsim.implicit.kernels import ledger as kernels
from koopsim.implicit.ledger import Ledger
sys.path.insert(0, FOLDER)
from test_solver_ledger import iterates

kernels.BLOCK = 16 if not torch.cuda.is_available() else kernels.BLOCK
device = "cuda" if torch.cuda.is_available() else "cpu"
np.seterr(all="ignore")
for D, sizes, kind, dtype in ((40, (), "absolute", torch.float64), (40, (3, 20, 17), "relative", torch.float32)):
    tol, kept = Tolerance(0.1, kind, sizes), []
    for k, (z, fz) in enumerate(iterates(B=5, D=D, steps=6)):
        z, fz = z.to(device, dtype), fz.to(device, dtype)
        kept = kept or [Ledger(z, tol), kernels.KernelLedger(z, tol)]
        assert kernels.can_keep(z, tol)
        want, got = (own.judge(z, fz) for own in kept)
        torch.testing.assert_close(got, want, equal_nan=True)
        want, got = (own.next(0.5 * fz, fz) for own in kept) if k % 3 else (own.best for own in kept)
        torch.testing.assert_close(got, want, equal_nan=True)
        assert torch.equal(kept[0].active, kept[1].active)
        assert kept[0].left() == kept[1].left()
    torch.testing.assert_close(kept[1].best, kept[0].best, equal_nan=True)
    for name in ("steps", "residuals", "converged", "parts"):
        a, b = (getattr(own.info(), name) for own in kept)
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)
z = torch.zeros(3, 4, device=device)
assert not kernels.can_keep(z.bfloat16(), Tolerance()) and not kernels.can_keep(z[:0], Tolerance())
assert not kernels.can_keep(z, Tolerance(1e-3, lambda g, f: g.norm(dim=1)))
"""


def test_kernels_keep_the_books_of_the_tensors(in_triton):
    in_triton(KERNELS.replace("FOLDER", repr(str(Path(__file__).parent))))
