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
def _last(x, w, b, C, c, t, d, sums, ends, rows, K: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    tile, model, models = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    r = tile * BM + tl.arange(0, BM)
    h = tl.arange(0, H)
    k = tl.arange(0, BK)
    xp = x + (model * rows + r)[:, None] * K + k[None, :]
    wp = w + model * K * H + h[None, :] * K + k[:, None]
    z = tl.zeros((BM, H), tl.float32) + tl.load(b + model * H + h)[None, :]
    for start in range(0, K, BK):
        z = tl.dot(tl.load(xp), tl.load(wp), z)
        xp += BK
        wp += BK
    z = tl.where(z < 0, 0.0, z)
    C += model * 3 * H + h
    c += model * 3
    colours = t + (model * rows + r) * 3
    sums += (tile * models + model) * 4 * H + h
    ends += (tile * models + model) * 4
    C0, C1, C2 = tl.load(C), tl.load(C + H), tl.load(C + 2 * H)
    e0 = tl.sum(z * C0[None, :], 1) + tl.load(c) - tl.load(colours)
    e1 = tl.sum(z * C1[None, :], 1) + tl.load(c + 1) - tl.load(colours + 1)
    e2 = tl.sum(z * C2[None, :], 1) + tl.load(c + 2) - tl.load(colours + 2)
    tl.store(sums, tl.sum(z * e0[:, None], 0))
    tl.store(sums + H, tl.sum(z * e1[:, None], 0))
    tl.store(sums + 2 * H, tl.sum(z * e2[:, None], 0))
    g = e0[:, None] * C0[None, :] + e1[:, None] * C1[None, :] + e2[:, None] * C2[None, :]
    g = tl.where(z > 0, g, 0.0)
    tl.store(sums + 3 * H, tl.sum(g, 0))
    tl.store(d + (model * rows + r)[:, None] * H + h[None, :], g.to(d.dtype.element_ty))
    tl.store(ends, tl.sum(e0, 0))
    tl.store(ends + 1, tl.sum(e1, 0))
    tl.store(ends + 2, tl.sum(e2, 0))
    tl.store(ends + 3, tl.sum(e0 * e0 + e1 * e1 + e2 * e2, 0))


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
    say("whole op", timed(lambda: pixels._run(phi, [W1, b1, W2, b2, C, c], t, False)))
    a = bias_relu_of_models(torch.bmm(phi, w1.mT), b1)
    x2 = torch.bmm(a, w2.mT)
    d2, sums, ends = pixels._last(x2, b2, C, c, t, False)
    dx = torch.bmm(d2, w2)
    d1, db1 = bias_relu_backward(a, dx)
    attempt("bmm1", lambda: torch.bmm(phi, w1.mT))
    attempt("bias_relu", lambda: bias_relu_of_models(x2, b1))
    attempt("bmm2", lambda: torch.bmm(a, w2.mT))
    for tile, warps, stages, parts in [(8, 4, 4, 1056), (8, 4, 2, 1056), (8, 4, 1, 1056), (8, 4, 1, 2112), (8, 4, 1, 8448), (4, 4, 4, 2112), (4, 4, 1, 2112), (16, 8, 4, 1056), (16, 8, 1, 1056), (8, 8, 4, 1056), (4, 2, 4, 2112)]:
        pixels.TILE, pixels.PARTS, pixels.LAUNCH = tile, parts, {"num_warps": warps, "STAGES": stages}
        attempt(f"end tile {tile} warps {warps} stages {stages} parts {parts}", lambda: pixels._last(x2, b2, C, c, t, False), d2, lambda: pixels._last(x2, b2, C, c, t, False)[0])
    attempt("bmm back", lambda: torch.bmm(d2, w2))
    attempt("bias_relu back", lambda: bias_relu_backward(a, dx))
    attempt("over rows 1", lambda: pixels._over_rows(d1, phi))
    attempt("over rows 2", lambda: pixels._over_rows(d2, a))
    for S in (1, 2, 4, 16):
        pixels.SLICES = S
        attempt(f"over rows 1, {S} slices", lambda: pixels._over_rows(d1, phi))
        attempt(f"over rows 2, {S} slices", lambda: pixels._over_rows(d2, a))
    pixels.SLICES = 8
    hb1 = b1.to(kind)
    out = torch.empty_like(a)
    def epilogue():
        for p in range(P):
            torch.ops.aten._addmm_activation.out(hb1[p], phi[p], w1[p].mT, use_gelu=False, out=out[p])
    attempt("16 x addmm_activation", epilogue, a, lambda: out)
    y, s1 = torch.empty_like(a), torch.empty(R // 64, P, H, device=dev)
    s4, e4 = torch.empty(R // 64, P, 4, H, device=dev), torch.empty(R // 64, P, 4, device=dev)
    for BM, BK, warps, stages in [(128, 64, 8, 3), (128, 64, 8, 4), (128, 32, 8, 4), (128, 128, 8, 2), (64, 64, 4, 3), (64, 64, 8, 3), (64, 64, 4, 2)]:
        o = {"num_warps": warps, "num_stages": stages}
        attempt(f"fused layer {BM} {BK} {o}", lambda: _layer[(R // BM, P)](phi, w1, b1, y, y, s1, R, K=M, H=H, BM=BM, BK=BK, BACK=False, **o), a, lambda: y)
        attempt(f"fused back {BM} {BK} {o}", lambda: _layer[(R // BM, P)](d2, w2, b1, y, a, s1, R, K=H, H=H, BM=BM, BK=BK, BACK=True, **o), d1, lambda: y)
        attempt(f"fused last {BM} {BK} {o}", lambda: _last[(R // BM, P)](a, w2, b2, C, c, t, y, s4, e4, R, K=H, H=H, BM=BM, BK=BK, **o), d2, lambda: y)
    json.dump(found, open(sys.argv[1], "w"), indent=1)


if __name__ == "__main__":
    main()
