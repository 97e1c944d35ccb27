"""The Triton kernels under vmap: a stack of TCNs against the readable blocks one by one."""

CHECK = """
import copy
import torch
from torch.func import functional_call, stack_module_state, vmap
from koopsim.nn import TCN

device = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = [(3, 2, 40, 3, 10, 8) if device == "cuda" else (3, 2, 20, 2, 6, 8), (2, 1, 33, 2, 4, 3)]
for models, batch, length, levels, channels, kernel in SIZES:
    torch.manual_seed(models)
    tcns = [TCN(5, levels, channels, kernel).to(device) for _ in range(models)]
    parameters, buffers = stack_module_state(tcns)
    x = torch.randint(0, 10, (models, batch, length), device=device)
    weights = torch.randn(batch, length, 5, device=device)
    empty = copy.deepcopy(tcns[0]).to("meta")
    empty.fused = lambda rows: True  # on a CPU through Triton's interpreter
    def loss(parameters, x):
        return (functional_call(empty, parameters, x) * weights).sum()
    losses = vmap(loss)(parameters, x)
    grads = torch.autograd.grad(losses.sum(), list(parameters.values()))
    for p, tcn in enumerate(tcns):
        rows = x[p].unsqueeze(-1).float()
        alone = (tcn.linear(tcn.blocks(rows)) * weights).sum()
        torch.testing.assert_close(losses[p], alone, rtol=1e-4, atol=1e-3)
        for a, b in zip(grads, torch.autograd.grad(alone, list(tcn.parameters()))):
            torch.testing.assert_close(a[p], b, rtol=1e-3, atol=2e-5 * max(1.0, float(b.abs().max())))
"""


def test_a_stack_through_the_kernels_is_each_model_through_the_blocks(in_triton):
    in_triton(CHECK)
