"""Do the same weights give the same answers? The paper's networks and ours, in float64.

    git clone https://github.com/uswodce/sim
    python benchmarks/paper_weights.py sim/src --out results/paper-weights.json        # seconds on a CPU

Every SIM of the paper's tables is built by its public code at a preset's size, given random weights and, where it has
BatchNorm, statistics of random pictures. They are carried into the preset's model, and both answer the same inputs.
What differs in name only: psi is (cos, sin) there and (sin, cos) here, so that V's columns change places, and the taps
of a causal convolution lie side by side here. What differs in value: psi's norm is a float32 number there; it is made
float64, as all else is. SVHN's networks are CIFAR-10's. Nothing of the public code is in this repository.
"""

import argparse
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from verbs import write

import koopsim
from koopsim.bench.paper import VARIABLE, paper_networks
from koopsim.config import FourierConfig, IdentityConfig, MLPConfig, SIMConfig, TCNConfig, VGGConfig
from koopsim.presets import PRESETS

NAMES = [f"{task}/sim-{kind}" for task in ("copy", "cifar10", "mnist", "image") for kind in ("single", "two")]
NAMES.append("image/sim-rff")
SEED = 0


def theirs_of(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Their network at a preset's sizes, and inputs as it takes them and as ours does."""
    c = PRESETS[name].model
    assert isinstance(c, SIMConfig)
    net: Any = paper_networks()
    tiers = {"tier_dim": c.lift_dim, "rev_dim": c.hidden}
    if isinstance(c.fourier, FourierConfig):
        tiers = {"first_tier_dim": c.lift_dim, "second_tier_dim": c.fourier.features, "rev_dim": c.hidden}
        tiers["bandwidth"] = c.fourier.bandwidth
    which, lift = "Two" if c.fourier else "Single", c.lift
    if isinstance(lift, TCNConfig):
        x = torch.randint(0, 10, (4, 120))
        sizes = [lift.channels] * lift.levels
        model = getattr(net, f"{which}TierTempConvNet")(1, c.outputs, sizes, lift.kernel, 0.0, **tiers)
        return model, x.double()[:, None], x
    if isinstance(lift, VGGConfig):
        depth, side, _ = lift.image
        x = torch.randn(8, *lift.image, dtype=torch.float64)
        return getattr(net, f"{which}TierConvNet")(side, c.outputs, depth, lift.channels, **tiers), x, x
    x = torch.rand(64, 2, dtype=torch.float64)
    if isinstance(lift, IdentityConfig):
        assert c.fourier
        width, bandwidth = c.fourier.features, c.fourier.bandwidth
        return net.SingleTierFourierNet(2, c.outputs, width, c.hidden, bandwidth=bandwidth), x, x
    assert isinstance(lift, MLPConfig)
    return getattr(net, f"{which}TierFcNet")(2, c.outputs, lift.width, **tiers), x, x


def randomised(model: nn.Module, x: Tensor) -> nn.Module:
    """Weights that let a signal through (some of theirs begin as a constant), and statistics for BatchNorm."""
    model = model.double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                fan = parameter[0].numel() if parameter.dim() > 1 else 100
                parameter.copy_(torch.randn_like(parameter) * (2 / fan) ** 0.5)
        if hasattr(model, "rff"):
            model.rff.norm = torch.tensor(model.rff.linear_cos.out_features, dtype=torch.float64).sqrt()
        model(x)
    return model.eval()


def in_our_order(theirs: Any) -> Iterator[Tensor]:
    """Their numbers as our state dict has them: lift, psi, V, U, nu, h."""
    if hasattr(theirs, "tcn"):
        for block in theirs.tcn.network:
            for conv in (block.conv1, block.conv2):
                yield conv.weight_v.transpose(1, 2).flatten(1)
                yield conv.weight_g.flatten()
                yield conv.bias
            if block.downsample is not None:
                yield block.downsample.weight.squeeze(-1)
                yield block.downsample.bias
        yield from theirs.linear.state_dict().values()
    elif hasattr(theirs, "basis"):
        yield from theirs.basis.state_dict().values()
    V = theirs.v.weight
    if hasattr(theirs, "rff"):
        yield theirs.rff.linear_sin.weight
        V = V.roll(V.shape[1] // 2, dims=1)
    yield from (V, theirs.u.weight)
    yield from (*theirs.inverse_basis.state_dict().values(), *theirs.Wout.state_dict().values())


def compared(name: str) -> dict[str, Any]:
    torch.manual_seed(SEED)
    theirs, their_x, our_x = theirs_of(name)
    theirs, ours = randomised(theirs, their_x), koopsim.build(name).double().eval()
    state = dict(zip(ours.state_dict(), in_our_order(theirs), strict=True))
    ours.load_state_dict(state)
    with torch.no_grad():
        want, got = theirs(their_x), ours(our_x)
    size = float(want.abs().max())
    counts = [sum(p.numel() for p in model.parameters() if p.requires_grad) for model in (theirs, ours)]
    assert counts[0] == counts[1], counts
    return {"name": name, "parameters": counts[1], "size": size, "difference": float((got - want).abs().max()) / size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the folder of the public code that has sim/net.py: its src")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ[VARIABLE] = str(arguments.path)
    warnings.simplefilter("ignore", FutureWarning)  # theirs has PyTorch's first weight_norm
    write(arguments.out, {"seed": SEED, "rows": [compared(name) for name in NAMES]})


if __name__ == "__main__":
    main()
