"""A SIM's answer as the place where a DEQ's solver starts.

    z_0 = nu(U V phi(x)) ~ z*,   then solve z = f(z, x) from there           paper, eq. (2) and (9)

The equilibrium and its gradient depend on f alone, not on z_0: the result is the same to the solver's
tolerance, in fewer steps the closer the SIM is. The SIM itself is never trained through the solve.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from koopsim.bridge.hidden import Solvable, equilibrium_of, hidden_map
from koopsim.errors import KoopsimError
from koopsim.implicit import DEQInfo, MonDEQ
from koopsim.nn import SIM


class WarmStart(nn.Module):
    """`z, info = WarmStart(sim)(deq, x)`: what `deq` returns, begun at the SIM's state.

    safeguard  take the SIM's state only for samples where its residual is below that of the DEQ's own z_0; this
               costs two evaluations of the cell, which `info.steps` does not count
    """

    def __init__(self, sim: SIM, safeguard: bool = False):
        super().__init__()
        if not isinstance(sim, SIM):
            raise KoopsimError(f"WarmStart needs a SIM; got a {type(sim).__name__}. distill(deq, inputs) makes one.")
        self.sim = sim
        self.safeguard = safeguard

    @torch.no_grad()
    def start(self, deq: Solvable | MonDEQ, x: Tensor) -> Tensor:
        """z_0 for the solver: the SIM's state, in the shape and dtype of the DEQ's."""
        f, cold = hidden_map(deq, x)
        z = self.sim.state(x)
        if z.shape[0] != cold.shape[0] or z[0].numel() != cold[0].numel():
            raise KoopsimError(
                f"The SIM's state is {tuple(z.shape)}, the DEQ's is {tuple(cold.shape)}: they must hold the same "
                "numbers. distill(deq, inputs) gives a SIM that fits."
            )
        z = z.reshape(cold.shape).to(cold)
        if self.safeguard:
            z = torch.where(_relative(f(z) - z, z) < _relative(f(cold) - cold, cold), z, cold)
        return torch.where(_per_sample(z.isfinite()), z, cold)  # a SIM that overflows is no start

    def forward(self, deq: Solvable | MonDEQ, x: Tensor) -> tuple[Tensor, DEQInfo]:
        return equilibrium_of(deq, x, self.start(deq, x))


def _relative(g: Tensor, z: Tensor) -> Tensor:
    """|| g || / || z + g || a sample, shaped to broadcast; + eps as the solvers have it."""
    dims = tuple(range(1, g.dim()))
    size = torch.linalg.vector_norm(z + g, dim=dims, keepdim=True)
    return torch.linalg.vector_norm(g, dim=dims, keepdim=True) / (size + 1e-8)


def _per_sample(ok: Tensor) -> Tensor:
    return ok.flatten(1).all(dim=1).view(-1, *[1] * (ok.dim() - 1))
