import pytest
import torch

from koopsim.nn import LimitOperator


def defect(limit: LimitOperator) -> float:
    return float(limit.invariance_defect().detach())


@pytest.mark.parametrize("rank", [1, 5, 10])
def test_projector_is_exact(rank):
    limit = LimitOperator(10, rank, projector=True).double()
    P = limit.matrix()
    torch.testing.assert_close(P @ P, P)
    assert defect(limit) < 1e-12
    assert torch.linalg.matrix_rank(P) == rank
    phi = torch.randn(4, 10, dtype=torch.float64)
    torch.testing.assert_close(limit(limit(phi)), limit(phi))  # one more step of the dynamics changes nothing


def test_projector_stays_exact_for_badly_scaled_parameters():
    limit = LimitOperator(20, 7, projector=True)
    with torch.no_grad():
        limit.U.mul_(torch.logspace(-3, 3, 7))
        limit.V.mul_(1e3)
    assert defect(limit) < 1e-2  # float32, ||V|| = 1e3: rounding alone
    assert defect(limit.double()) < 1e-10


def test_every_projector_can_be_represented():
    torch.manual_seed(0)
    S = torch.randn(6, 6, dtype=torch.float64)
    P = S[:, :3] @ torch.linalg.inv(S)[:3]
    limit = LimitOperator(6, 3, projector=True).double()
    with torch.no_grad():
        limit.U.copy_(S[:, :3])
        Q, _ = torch.linalg.qr(limit.U)
        limit.V.copy_(Q.mT @ P)
    torch.testing.assert_close(limit.matrix(), P)


@pytest.mark.parametrize("projector", [False, True])
def test_gradients(projector):
    limit = LimitOperator(6, 3, projector).double()
    phi = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)

    def apply(phi, U, V):
        return torch.func.functional_call(limit, {"U": U, "V": V}, (phi,))

    assert torch.autograd.gradcheck(apply, (phi, limit.U, limit.V))


def test_both_forms_have_the_same_number_of_parameters():
    free, exact = LimitOperator(8), LimitOperator(8, projector=True)
    assert sum(p.numel() for p in free.parameters()) == sum(p.numel() for p in exact.parameters()) == 2 * 8 * 4
    assert defect(free) > 0.1


def test_the_projector_of_full_rank_is_the_identity_and_has_no_parameters():
    limit = LimitOperator(6, 6, projector=True)
    phi = torch.randn(3, 6)
    assert limit(phi) is phi
    assert not list(limit.parameters())
    assert not limit.state_dict()
    torch.testing.assert_close(limit.double().matrix(), torch.eye(6, dtype=torch.float64))
    assert defect(limit) == 0
    assert list(LimitOperator(6, 6).parameters())  # free, it is any matrix


def test_bad_rank_is_refused():
    with pytest.raises(ValueError, match="between 1 and the dimension 4"):
        LimitOperator(4, 5)


@pytest.mark.parametrize("rank", [1, 4])
def test_the_defect_is_a_mean_over_the_rank(rank):
    """|| 3 I - I ||_F / sqrt(K) = 2 for every K."""
    limit = LimitOperator(8, rank)
    with torch.no_grad():
        limit.U.copy_(torch.eye(8)[:, :rank])
        limit.V.copy_(3 * torch.eye(8)[:rank])
    assert defect(limit) == pytest.approx(2.0)
