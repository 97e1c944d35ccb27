"""A dictionary that a small network learns: observables chosen so that they are predicted well.

    phi(z) = (1, z, psi(z)),    psi a network,    min over psi, K of ||phi(Y) - phi(X) K||^2     EDMD-DL, Li et al. 2017

1 and z are kept as they are, so that nothing is gained by learning constants and the state can be read off. K is solved
for in each step (ridge), the network takes Adam's; observables are measured in units of their spread over the batch,
else the smallest ones would be predicted best. Torch is imported when it is fitted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

Array = NDArray[Any]
RIDGE = 1e-6
BATCH = 2048
STILL = 1e-8  # added to the spread of observables, of which some may not move


class LearnedDictionary(TransformerMixin, BaseEstimator):
    """`n_features` observables of a network with `hidden` tanh units in each of two layers, beside 1 and z.

    `fit` takes a trajectory; EDMD gives it pairs (`fit_pairs`). The same seed gives the same observables on a CPU.
    """

    def __init__(
        self,
        n_features: int = 16,
        hidden: int = 64,
        steps: int = 1000,
        lr: float = 3e-3,
        seed: int = 0,
        device: str = "cpu",
    ):
        self.n_features = n_features
        self.hidden = hidden
        self.steps = steps
        self.lr = lr
        self.seed = seed
        self.device = device

    def fit(self, Z: Array, y: Any = None) -> LearnedDictionary:
        return self.fit_pairs(Z[:-1], Z[1:])

    def fit_pairs(self, now: Array, after: Array) -> LearnedDictionary:
        """Learn from pairs, row by row."""
        import torch

        for name in ("n_features", "hidden", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"LearnedDictionary needs {name} >= 1; got {getattr(self, name)}")
        self._centre = now.mean(axis=0)
        spread = now.std(axis=0)
        self._scale = np.where(spread > 0, spread, 1.0)
        self.state_columns_ = np.arange(now.shape[1]) + 1
        X, Y = (torch.as_tensor(self._units(Z), dtype=torch.float64, device=self.device) for Z in (now, after))
        generator = torch.Generator().manual_seed(self.seed)
        network = self._network(X.shape[1], generator).to(self.device)
        optimiser = torch.optim.Adam(network.parameters(), self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        self.losses_ = np.empty(self.steps)
        for step in range(self.steps):
            rows = torch.randint(len(X), (min(BATCH, len(X)),), generator=generator).to(self.device)
            loss = _misfit(network, X[rows], Y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            self.losses_[step] = float(loss.detach())
        if not np.isfinite(self.losses_).all():
            raise ValueError(f"training the dictionary diverged; lower its lr, now {self.lr}")
        self._layers = [(p.detach().cpu().numpy()) for p in network.parameters()]
        return self

    def _network(self, d: int, generator: Any) -> Any:
        import torch
        from torch import nn

        layers = [nn.Linear(d, self.hidden), nn.Tanh(), nn.Linear(self.hidden, self.hidden), nn.Tanh()]
        network = nn.Sequential(*layers, nn.Linear(self.hidden, self.n_features)).double()
        with torch.no_grad():
            for p in network.parameters():
                bound = 1 / np.sqrt(p.shape[-1])
                p.copy_((2 * torch.rand(p.shape, generator=generator, dtype=torch.float64) - 1) * bound)
        return network

    def _units(self, Z: Array) -> Array:
        return (Z - self._centre) / self._scale

    def transform(self, Z: Array) -> Array:
        W1, b1, W2, b2, W3, b3 = self._layers
        psi = np.tanh(np.tanh(self._units(Z) @ W1.T + b1) @ W2.T + b2) @ W3.T + b3
        return np.hstack([np.ones((len(Z), 1)), Z, psi])


def _misfit(network: Any, X: Any, Y: Any) -> Any:
    """Share of the variance of (z, psi) a step later that 1, z and psi do not predict."""
    import torch

    F = torch.cat([X, network(X)], dim=1)
    G = torch.cat([Y, network(Y)], dim=1)
    centre, size = F.mean(dim=0), F.std(dim=0) + STILL
    F, G = (F - centre) / size, (G - centre) / size
    F = torch.cat([torch.ones_like(F[:, :1]), F], dim=1)
    gram = F.T @ F / len(F) + RIDGE * torch.eye(F.shape[1], dtype=F.dtype, device=F.device)
    K = torch.linalg.solve(gram, F.T @ G / len(F))
    return ((G - F @ K) ** 2).mean()
