"""A SIM that does not begin at zero: phi depends on z_0 as well as on x.

    phi(z_0, x) = psi( mu(x) + W z_0 ),    z = nu( U V phi(z_0, x) )              paper, section 3.4

The paper takes z_0 = 0 "encoded in the basis functions" and calls the use of another start unclear. Three starts:

    given    model(x, z0=...): what the caller knows, such as the state of a step before
    learnt   one vector for all inputs; mu's own bias could do the same
    again    z_0 = z(0, x): the answer from zero is where it begins a second time

W is zero at first, so that training begins at the SIM without it.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from koopsim.nn.saved import Model
from koopsim.nn.sim import SIM

Start = Literal["learnt", "again"]


class StartedSIM(Model):
    """y = h(nu(U V psi(mu(x) + W z_0))), round a SIM whose parts it uses."""

    def __init__(self, sim: SIM, start: Start = "again"):
        super().__init__()
        if start not in ("learnt", "again"):
            raise ValueError(f"start is {start!r}; expected 'learnt' or 'again'.")
        self.sim = sim
        hidden = sim.h.in_features
        inputs = sim.limit.dim if isinstance(sim.psi, nn.Identity) else sim.psi.frequencies.shape[1]
        self.entry = nn.Parameter(torch.zeros(inputs, hidden))  # W
        self.z0 = nn.Parameter(torch.randn(hidden)) if start == "learnt" else None

    def state(self, x: Tensor, z0: Tensor | None = None) -> Tensor:
        """z, begun at `z0`, (..., H) or (H,), or at the model's own start."""
        sim, mu = self.sim, self.sim.mu(x)
        if z0 is None:
            z0 = sim.nu(sim.limit(sim.psi(mu))) if self.z0 is None else self.z0
        assert z0 is not None
        if z0.shape[-1] != self.entry.shape[1]:
            raise ValueError(f"z0 has {z0.shape[-1]} numbers; a state of this model has {self.entry.shape[1]}.")
        return sim.nu(sim.limit(sim.psi(mu + F.linear(z0, self.entry))))

    def forward(self, x: Tensor, z0: Tensor | None = None) -> Tensor:
        return self.sim.h(self.state(x, z0))
