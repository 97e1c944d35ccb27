"""The weight norm of all layers in one kernel against the layers' own, through Triton's interpreter or on CUDA."""

CHECK = """
import torch
from koopsim.nn import TCN
from koopsim.nn.kernels.weight_norm import normed_weights
from koopsim.engine.members import Members, Rule

device = "cuda" if torch.cuda.is_available() else "cpu"
for levels, channels, kernel, inputs in [(2, 10, 8, 1), (1, 4, 3, 2), (3, 5, 2, 5)]:
    for flat in (False, True):  # parameters of their own, or views of one vector
        torch.manual_seed(channels)
        tcn = TCN(3, levels, channels, kernel, inputs).to(device)
        with torch.no_grad():  # a gain is a norm at first: make it anything
            for p in tcn.parameters():
                p.add_(0.3 * torch.randn_like(p))
        if flat:
            Members([tcn], torch.zeros(1, 1, 4), 1, Rule()).attach()
        convs = [conv for block in tcn.blocks for conv in (block.first, block.second)]
        wanted = [p for conv in convs for p in (conv.direction, conv.gain, conv.bias)]
        slow = tcn.normed_weights(convs)
        fast = normed_weights(wanted, kernel)
        rows = torch.stack([w.flatten(1)[:, : kernel * channels] for w in fast[0]])
        torch.testing.assert_close(rows[1], convs[1].weight(), rtol=1e-5, atol=1e-6)  # the layer's own
        upstream = [torch.randn_like(t) for t in slow]
        for a, b in zip(fast, slow):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        sums = [sum((u * t).sum() for u, t in zip(upstream, pair)) for pair in (fast, slow)]
        grads = [torch.autograd.grad(total, wanted) for total in sums]
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        follows = [a.storage_offset() + a.numel() == b.storage_offset() for a, b in zip(grads[0], grads[0][1:])]
        assert all(follows)  # side by side: the trainer takes them as one piece
"""


def test_the_weights_of_all_layers_are_those_of_each(in_triton):
    in_triton(CHECK)
