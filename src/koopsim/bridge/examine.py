"""A trained SIM's limit operator: how close the learnt U V is to the theory's projector.

    lim A^l phi = U V phi,   V U = I_K in theory                             paper, eq. (7) and (9)

The K eigenvalues of U V that need not vanish are those of V U; all are 1 exactly if U V is a projector. The
paper trains U and V free, so they are wherever training left them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from koopsim.errors import KoopsimError
from koopsim.nn import SIM
from koopsim.nn.started import StartedSIM
from koopsim.spectral import Verdict, analyze

Array = NDArray[Any]
NEGLIGIBLE = 1e-3  # singular values below this share of the largest do not count towards a rank


@dataclass(frozen=True)
class LimitSpectrum:
    """What there is to know of U V."""

    dim: int  # N
    rank: int  # K
    defect: float  # || V U - I ||_F / sqrt(K)
    singular_values: Array  # of U V, K of them
    numerical_rank: int  # how many of them count
    verdict: Verdict  # on U V, were it iterated
    seen: Array  # singular values of nu's first layer on the range of U V
    seen_rank: int  # how many directions of the range nu's first layer tells apart
    seen_share: float  # how much of nu's first layer looks at the range of U V, || W Q ||^2 / || W ||^2

    def to_dict(self) -> dict[str, Any]:
        return {
            "dim": self.dim, "rank": self.rank, "invariance_defect": self.defect,
            "singular_values": self.singular_values.tolist(), "numerical_rank": self.numerical_rank,
            "readout": {
                "singular_values": self.seen.tolist(), "rank": self.seen_rank, "share": self.seen_share
            },
            "verdict": self.verdict.to_dict(),
        }  # fmt: skip


def examine(sim: SIM | StartedSIM, noise: float | None = None) -> LimitSpectrum:
    """The spectrum of a SIM's limit operator, and what its readout sees of it."""
    sim = sim.sim if isinstance(sim, StartedSIM) else sim
    if not isinstance(sim, SIM):
        raise KoopsimError(f"A {type(sim).__name__} has no limit operator; expected a SIM.")
    with torch.no_grad():
        U, V = (factor.detach().cpu().numpy() for factor in sim.limit.factors())
        defect = float(sim.limit.invariance_defect())
        first: Any = sim.nu[0]
        W = first.weight.detach().double().cpu().numpy()
    UV = U.astype(np.float64) @ V.astype(np.float64)
    left, sigma, _ = np.linalg.svd(UV)
    K = sim.limit.rank
    count = int(np.sum(sigma[:K] > NEGLIGIBLE * sigma[0]))
    seen = np.linalg.svd(W @ left[:, : max(1, count)], compute_uv=False)
    single = U.dtype == np.float32 and noise is None
    verdict = analyze((UV.astype(np.float32) if single else UV), noise)
    return LimitSpectrum(
        sim.limit.dim, K, defect, sigma[:K], count, verdict, seen, int(np.sum(seen > NEGLIGIBLE * seen[0])),
        float(np.sum(seen**2) / np.sum(W**2)),
    )  # fmt: skip


@torch.no_grad()
def set_sizes(sim: SIM, x: torch.Tensor) -> torch.Tensor:
    """|| U' V' psi(mu(x)) || of a two-tier SIM, an input (and a token) each.

    As a mean embedding its square is E k(z, z'): 1 for a point, less the more a set spreads. A SIM that was trained on
    a task and not on measures keeps no such scale: then it tells inputs apart, and no more.
    """
    training = sim.training
    m = sim.eval().limit(sim.lifted(x))
    sim.train(training)
    return m.reshape(-1, m.shape[-1]).norm(dim=1)
