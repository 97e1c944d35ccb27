"""Gradients of a model under torch.compile on a batch of one, tensor by tensor against float64, for several inputs.

    python benchmarks/compiled_gradients.py [--model mnist/sim-single] [--device cuda] [--out FILE]

For each seed: the error of eager and of compiled gradients, relative to the largest entry of float64's. A fault is
wrong for every input; a ReLU or a pooling within rounding of its kink is wrong for some, and for eager as well. `twins`
leaves koopsim's own kernels out of the compiled model, `layout` the compiler's choice of channels last, `padding` its
padding of rows. `looped` sums in a loop where the compiler would take a whole row at once, behind a mask; `unfused` has
a kernel for every operation; `decomposed` stops before the compiler's own code, after its rewriting of operations.
"""

import argparse
import copy
from pathlib import Path

import torch
from verbs import write

import koopsim
from koopsim.export import example
from koopsim.nn.sim import SIM
from koopsim.presets import PRESETS


def gradients(model: torch.nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    y = model(x)
    found = torch.autograd.grad(y.square().mean(), [p for _, p in named], allow_unused=True)
    pairs = zip(named, found, strict=True)
    return {"y": y.detach(), **{n: g.detach().clone() for (n, _), g in pairs if g is not None}}


def errors(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> dict[str, float]:
    sizes = {n: float(w.abs().max()) for n, w in want.items()}
    return {n: float((got[n] - w).abs().max()) / sizes[n] for n, w in want.items() if sizes[n] > 1e-12}


WAYS: dict[str, dict] = {
    "compiled": {},
    "twins": {},
    "layout": {"options": {"layout_optimization": False}},
    "padding": {"options": {"comprehensive_padding": False}},
    "looped": {"options": {"triton.persistent_reductions": False}},
    "unfused": {"options": {"max_fusion_size": 1}},
    "decomposed": {"backend": "aot_eager_decomp_partition"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mnist/sim-single")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    model, rows = koopsim.build(arguments.model).to(arguments.device).train(), []
    exact, config = copy.deepcopy(model).double(), PRESETS[arguments.model].model
    inputs = []
    for seed in range(arguments.seeds):
        torch.manual_seed(100 + seed)
        x = example(config, batch=1, length=520)[0]  # always the same
        inputs.append((torch.randn(x.shape) if seed else x).to(arguments.device))
    want = [gradients(exact, x.double()) for x in inputs]
    fused = SIM.fused
    for way in ["eager", *arguments.ways]:
        torch._dynamo.reset()
        SIM.fused = (lambda self, phi: False) if way == "twins" else fused
        twin = copy.deepcopy(model)
        run = twin if way == "eager" else torch.compile(twin, **WAYS[way])
        for seed, x in enumerate(inputs):
            found = errors({n.removeprefix("_orig_mod."): g for n, g in gradients(run, x).items()}, want[seed])
            worst = max(found, key=lambda n: found[n])
            rows.append({"way": way, "seed": seed, "worst": worst, "error": found[worst], "errors": found})
            write(arguments.out, {"rows": rows}) if arguments.out else None
            print(f"{way} seed {seed}: worst {worst} {found[worst]:.1e}, y {found['y']:.1e}", flush=True)


if __name__ == "__main__":
    main()
