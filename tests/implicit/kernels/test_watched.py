"""In a captured graph attention leaves out samples that are done: the answer and its gradient stay the same."""

SCRIPT = """
import torch
from koopsim.implicit import gradient, iteration, ledger, transformer
from koopsim.implicit.kernels import attention as kernels
from koopsim.implicit.kernels.ledger import KernelLedger
from koopsim.implicit.deq import DEQ

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
B, T, H, D, E = 3, 40, 2, 8, 8
q, k = (torch.randn(B, T, H, D).to(device).requires_grad_() for _ in range(2))
v, do = (torch.randn(B, T, H, E).to(device).requires_grad_() for _ in range(2))
whole = kernels.attention(q, k, v, 0.3, 32)[0]
wanted = torch.autograd.grad(whole, (q, k, v), do)
active = torch.ones(B, 1, dtype=torch.bool, device=device)
got = kernels.attention(q, k, v, 0.3, 32, active)[0]
assert torch.equal(got, whole)
active[1] = False  # after it was recorded: the mask is read when a kernel runs
for g, w in zip(torch.autograd.grad(got, (q, k, v), do, retain_graph=True), wanted):
    assert torch.equal(g[[0, 2]], w[[0, 2]]) and not g[1].any()
left = kernels.attention(q, k, v, 0.3, 32, active)[0]
assert torch.equal(left[[0, 2]], whole[[0, 2]]) and not left[1].any()
active.fill_(True)
for g, w in zip(torch.autograd.grad(got, (q, k, v), do), wanted):
    assert torch.equal(g, w)

# A solve as a graph has it: no early end, the kernels' books.
transformer.usable = lambda *tensors: True
transformer.UniversalTransformerCell._fused = lambda *given: None  # which has a mask of its own
iteration.capturing = gradient.capturing = lambda: True
iteration.ledger_of = KernelLedger
skipped = []

def watch(name):
    own = getattr(kernels, name)
    def counted(*given):
        skipped.append(0 if given[-1] is None else int((~given[-1]).sum()))
        return own(*given)
    setattr(kernels, name, counted)

watch("attention"), watch("attention_backward")
model = transformer.TransformerDEQ(6, 2, 3, 8, 8, deq=lambda cell: DEQ(cell, "SOLVER", 14, 2e-2)).to(device)
tokens = torch.randint(0, 6, (4, 20)).to(device)  # drawn on a CPU: the same everywhere
tokens[1:3] = 1
answers = []
for masked in (True, False):
    if not masked:
        transformer.PreparedCell.watched = lambda self, active: self
    skipped.clear()
    z, info = model.solve(tokens)
    grads = torch.autograd.grad(z.sin().sum(), tuple(model.parameters())[:1] + tuple(model.deq.cell.parameters()))
    answers.append((z, info.steps, info.residuals, info.backward.steps, info.backward.residuals, *grads))
    assert (sum(skipped) > 0) == masked, skipped
    assert skipped[-1] == 0, "the gradient itself is everybody's"
    assert len(set(info.steps.tolist())) > 1 and info.converged.all()
for got, want in zip(*answers):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
"""


def test_what_is_left_out_changes_nothing(in_triton):
    for solver in ("picard", "anderson"):
        in_triton(SCRIPT.replace("SOLVER", solver))
