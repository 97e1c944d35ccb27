"""Pieces of a step of sixteen pictures, as the library has them and as products with their passes fused; scratch."""

import argparse, json, sys
import torch, triton, triton.language as tl
from koopsim.nn.kernels import pixels
from koopsim.nn.kernels.bias_relu import bias_relu_of_models, bias_relu_backward


@triton.jit
def _layer(x, w, b, y, a, sums, rows, K: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
           BACK: tl.constexpr):
    """y = relu(x w^T + b), w (H, K); BACK: y = [a > 0] x w, w (K, H), and its sums."""
    tile, model, models = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    r = tile * BM + tl.arange(0, BM)
    h = tl.arange(0, H)
    k = tl.arange(0, BK)
    xp = x + (model * rows + r)[:, None] * K + k[None, :]
    if BACK:
        wp = w + model * K * H + k[:, None] * H + h[None, :]
        acc = tl.zeros((BM, H), tl.float32)
    else:
        wp = w + model * K * H + h[None, :] * K + k[:, None]
        acc = tl.zeros((BM, H), tl.float32) + tl.load(b + model * H + h)[None, :]
    for start in range(0, K, BK):
        acc = tl.dot(tl.load(xp), tl.load(wp), acc)
        xp += BK
        if BACK:
            wp += BK * H
        else:
            wp += BK
    here = (model * rows + r)[:, None] * H + h[None, :]
    if BACK:
        acc = tl.where(tl.load(a + here) > 0, acc, 0.0)
        tl.store(sums + (tile * models + model) * H + h, tl.sum(acc, 0))
    else:
        acc = tl.where(acc < 0, 0.0, acc)
    tl.store(y + here, acc.to(y.dtype.element_ty))


@triton.jit
def _tma(x, w, b, y, rows, K: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, TILES: tl.constexpr):
    """y = relu(x w^T + b) by descriptors: x (P R, K), w (P H, K), y (P R, H)."""
    model = tl.program_id(1)
    h = tl.arange(0, H)
    bias = tl.load(b + model * H + h)
    for i in range(TILES):
        row = model * rows + (tl.program_id(0) * TILES + i) * BM
        acc = tl.zeros((BM, H), tl.float32) + bias[None, :]
        for k in range(0, K, BK):
            acc = tl.dot(x.load([row, k]), w.load([model * H, k]).T, acc)
        acc = tl.where(acc < 0, 0.0, acc)
        y.store([row, 0], acc.to(tl.bfloat16))


@triton.jit
def _masked(y, dy, dx, sums, rows, chunk, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr):
    part, model, models = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    c = tl.arange(0, BLOCK)
    total = tl.zeros((TILE, BLOCK), tl.float32)
    for start in tl.range(0, chunk, TILE, num_stages=STAGES):
        r = part * chunk + start + tl.arange(0, TILE)
        inside = (r < rows)[:, None] & (c < WIDTH)[None, :]
        here = (model * rows + r)[:, None] * WIDTH + c[None, :]
        value = tl.load(y + here, mask=inside, other=0.0)
        gradient = tl.load(dy + here, mask=inside, other=0.0)
        gradient = tl.where(value > 0, gradient, 0.0)
        tl.store(dx + here, gradient, mask=inside)
        total += gradient.to(tl.float32)
    tl.store(sums + (part * models + model) * WIDTH + c, tl.sum(total, 0), mask=c < WIDTH)


def masked(y, dy, tile, warps, stages, most):
    models, rows, width = y.shape
    parts = max(1, min(most // models, triton.cdiv(rows, tile)))
    chunk = tile * triton.cdiv(rows, tile * parts)
    dx, sums = torch.empty_like(y), y.new_empty(parts, models, width, dtype=torch.float32)
    _masked[(parts, models)](y, dy, dx, sums, rows, chunk, WIDTH=width, BLOCK=width, TILE=tile, STAGES=stages, num_warps=warps)
    return dx, sums.sum(0)


def timed(call, n=20):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        call()
    g.replay(); torch.cuda.synchronize()
    s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    s.record()
    for _ in range(n):
        g.replay()
    e.record(); torch.cuda.synchronize()
    return s.elapsed_time(e) / n


def main():
    P, R, M, H = 16, 65536, 512, 256
    torch.manual_seed(0)
    dev, kind = "cuda", torch.bfloat16
    phi = torch.randn(P, R, M, device=dev).to(kind).mul_(0.0625 * 1.4)
    t = torch.rand(P, R, 3, device=dev)
    W1, W2 = (torch.randn(P, H, n, device=dev) / n**.5 for n in (M, H))
    b1, b2 = (torch.randn(P, H, device=dev) * .1 for _ in "12")
    C, c = torch.randn(P, 3, H, device=dev) / 16, torch.randn(P, 3, device=dev)
    w1, w2 = W1.to(kind), W2.to(kind)
    found = {}
    def say(name, ms, err=None):
        found[name] = ms
        print(f"{name:50} {ms:.4f} ms" + (f"  err {err:.1e}" if err is not None else ""), flush=True)
    def attempt(name, call, want=None, get=None):
        try:
            ms = timed(call)
            err = None if want is None else float((get().float() - want.float()).norm() / want.float().norm())
            say(name, ms, err)
        except Exception as error:
            print(name, "FAILED", str(error)[:300], flush=True)
    weights = [W1, b1, W2, b2, C, c]
    say("whole op", timed(lambda: pixels._run(phi, weights, t, False)))
    from koopsim.nn.kernels import relu_layer as rl
    own = pixels.divides
    pixels.divides = lambda x, H: False
    say("whole op, library's first layer", timed(lambda: pixels._run(phi, weights, t, False)))
    pixels.divides = own
    for S in (1, 4, 8):
        pixels.SLICES = S
        say(f"whole op, {S} slices", timed(lambda: pixels._run(phi, weights, t, False)))
    pixels.SLICES = 2
    a = bias_relu_of_models(torch.bmm(phi, w1.mT), b1)
    x2 = torch.bmm(a, w2.mT)
    d2, sums, ends = pixels._last(x2, b2, C, c, t, False)
    dx = torch.bmm(d2, w2)
    d1, db1 = bias_relu_backward(a, dx)
    attempt("bias_relu back", lambda: bias_relu_backward(a, dx))
    attempt("layer", lambda: rl.relu_layer(phi, w1, b1))
    for tile, warps, stages, parts in [(2, 2, 4, 2112), (2, 2, 3, 2112), (2, 2, 5, 2112), (2, 2, 4, 1056), (2, 2, 4, 2640), (2, 2, 4, 3168), (4, 4, 4, 1056), (4, 4, 4, 1584), (4, 2, 4, 2112), (4, 2, 4, 1584), (1, 1, 4, 4224)]:
        pixels.TILE, pixels.PARTS, pixels.LAUNCH = tile, parts, {"num_warps": warps, "STAGES": stages}
        attempt(f"end tile {tile} warps {warps} stages {stages} parts {parts}", lambda: pixels._last(x2, b2, C, c, t, False), d2, lambda: pixels._last(x2, b2, C, c, t, False)[0])
    pixels.TILE, pixels.PARTS, pixels.LAUNCH = 2, 2112, {"num_warps": 2, "STAGES": 4}
    del a, x2, d2, dx, d1
    for n in (2, 4):
        side = [torch.cuda.Stream() for _ in range(n)]
        def spread():
            main, found = torch.cuda.current_stream(), []
            for i, stream in enumerate(side):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    own = slice(i * P // n, (i + 1) * P // n)
                    found.append(pixels._run(phi[own], [w[own] for w in weights], t[own], False))
            for stream in side:
                main.wait_stream(stream)
            return found
        attempt(f"whole op on {n} streams", spread)
        def staggered():  # the second half begins when the first has its first layer
            main, found = torch.cuda.current_stream(), []
            return found
    json.dump(found, open(sys.argv[1], "w"), indent=1)


if __name__ == "__main__":
    main()
