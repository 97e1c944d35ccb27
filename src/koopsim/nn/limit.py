"""The limit operator: where the lifted dynamics end up.

    lim A^l phi = U V phi                                       paper, eq. (7) and (9)

The columns of U span the eigenvectors of A with eigenvalue 1 and the rows of V are their duals, so in theory
V U = I and U V is a projector: once there, the dynamics stay there. The paper leaves U and V free;
`projector=True` enforces V U = I at the same parameter count:

    U = Q,   V = Q^T + W (I - Q Q^T),   Q R = QR(the free U)

Every projector of rank K is of this form (Q spans its range, W tilts its kernel), and no matrix is inverted,
so it stays well conditioned whatever the parameters. Of rank K = N there is one projector, the identity: all of the
lifted space is invariant, and there is nothing to learn.
"""

import math

import torch
from torch import Tensor, nn

from koopsim.nn.linear import linear


class LimitOperator(nn.Module):
    """phi -> U V phi, (..., N) -> (..., N), of rank K."""

    U: Tensor
    V: Tensor

    def __init__(self, dim: int, rank: int | None = None, projector: bool = False):
        super().__init__()
        rank = dim // 2 if rank is None else rank
        if not 1 <= rank <= dim:
            raise ValueError(f"rank is {rank}; it must lie between 1 and the dimension {dim}.")
        self.dim, self.rank, self.projector = dim, rank, projector
        self.identity = projector and rank == dim
        if self.identity:
            self.register_buffer("U", torch.eye(dim), persistent=False)
            self.register_buffer("V", torch.eye(dim), persistent=False)
            return
        self.V = nn.Parameter(torch.empty(rank, dim).uniform_(-1 / math.sqrt(dim), 1 / math.sqrt(dim)))
        self.U = nn.Parameter(torch.empty(dim, rank).uniform_(-1 / math.sqrt(rank), 1 / math.sqrt(rank)))

    def factors(self) -> tuple[Tensor, Tensor]:
        """(U, V) as they act: the parameters themselves, or the exact projector made of them."""
        if self.identity or not self.projector:
            return self.U, self.V
        with torch.autocast(self.U.device.type, enabled=False):
            Q, _ = torch.linalg.qr(self.U)
            return Q, Q.mT + self.V - (self.V @ Q) @ Q.mT

    def forward(self, phi: Tensor) -> Tensor:
        if self.identity:
            return phi
        U, V = self.factors()
        return linear(linear(phi, V), U)

    def matrix(self) -> Tensor:
        """The dense N x N matrix U V."""
        U, V = self.factors()
        return U @ V

    def invariance_defect(self) -> Tensor:
        """|| V U - I ||_F / sqrt(K): zero exactly when one more step of the dynamics changes nothing."""
        U, V = self.factors()
        identity = torch.eye(self.rank, dtype=U.dtype, device=U.device)
        return torch.linalg.matrix_norm(V @ U - identity) / math.sqrt(self.rank)
