// Causal attention with relative positions, and its gradient: score(i, j) = (q_i + r_w).k_j + (q_i + r_r).R_{i-j}.
//
// A block has TILE consecutive queries of a head (or keys, for their gradient), a thread four of them, and LANES threads
// all of them; each such group of threads walks over its own share of the other side, four at a time, and at the end the
// shares are added up in shared memory. Rows of the other side are the same for all lanes of a group, one load of the
// warp. Four queries and four keys have seven differences i - j, of which four are new from step to step: R lies
// component by component, (E + 1, length), so that these four are one vector; the last component is r_r.R_n.
// Scores are in powers of two: c = log2(e) / sqrt(E) is in W_q, u_q, r_w and r_r already (cell.py).
//
// Rows, each for (sample, head, t < TP = T rounded up to 4), zero from T on:
//     q      E                                      kv     k, v, r_w.k
//     seen   q, do, do.o, log2 of the sum           dq     E           dkv    dk, dv
// Behind nn/kernels/cluster.cu. Given by the compiler's command line: H heads, E, LANES, THREADS.
// tests/implicit/kernels/test_cell_kernels.py runs this file on a CPU too, with threads for threads (EMULATED).

#define FOURS(n) (((n) + 3) / 4 * 4)
#define Q_ROW FOURS(E)
#define KV_ROW FOURS(2 * E + 1)
#define SEEN_ROW FOURS(2 * E + 2)
#define DKV_ROW FOURS(2 * E)
#define TILE (4 * LANES)
#define SPLITS (THREADS / LANES)
#define FRONT 131  // where R_0 stands: what is read before it, of keys after a query, is masked
#define FAR 16.0f  // powers of two that a score may be above the reference before sums are scaled anew
#define LN2 0.6931471805599453f

#ifdef EMULATED
#include <cmath>
#define LEAST (-INFINITY)
static float power(float v) { return exp2f(v); }
#else
#define LEAST __int_as_float(0xff800000)
__device__ __forceinline__ float power(float v) {
    float p;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"(v));
    return p;
}
#endif

template <int N>
__device__ __forceinline__ void load_row(float* to, const float* from) {
    UNROLL for (int c = 0; c < N; c += 4) {
        const float4 v = *(const float4*)(from + c);
        to[c] = v.x, to[c + 1] = v.y, to[c + 2] = v.z, to[c + 3] = v.w;
    }
}

// R of seven differences: r[e][a - b + 3] for the a-th query and b-th key of a step.
template <int ALL>
struct Window {
    float r[ALL][8];
    // Four of them, the lower or the upper half.
    __device__ __forceinline__ void read(const float* table, int length, int at, int half) {
        UNROLL for (int e = 0; e < ALL; e++) {
            const float4 v = *(const float4*)(table + e * length + at);
            r[e][half] = v.x, r[e][half + 1] = v.y, r[e][half + 2] = v.z, r[e][half + 3] = v.w;
        }
    }
    __device__ __forceinline__ void move(int from, int to) {
        UNROLL for (int e = 0; e < ALL; e++) UNROLL for (int n = 0; n < 4; n++) r[e][to + n] = r[e][from + n];
    }
};

// What is added to a score: minus infinity where a key is after its query. i - j is a multiple of four between the
// firsts of a step, so a pair is one of two kinds: a >= b or a < b.
struct Mask {
    float later, same;
    __device__ __forceinline__ Mask(int gap) : later(gap > 0 ? 0.0f : LEAST), same(gap >= 0 ? 0.0f : LEAST) {}
    __device__ __forceinline__ float at(int a, int b) const { return a >= b ? same : later; }
};

// Where a thread stands: its four, and which steps of the other side are its own.
struct Place {
    long long head;
    int first, mine, split, begin, end;
};

// Tiles with the longest way begin. One tile is not full: of queries the first, which begins before 0, and of keys the
// last, since these have the shortest way.
__device__ __forceinline__ Place placed(int TP, bool of_keys) {
    Place p;
    const int tiles = (TP + TILE - 1) / TILE, tile = blockIdx.x % tiles;
    p.head = blockIdx.x / tiles;
    p.first = of_keys ? tile * TILE : TP - (tile + 1) * TILE;
    p.mine = p.first + 4 * (threadIdx.x % LANES), p.split = threadIdx.x / LANES;
    const int start = of_keys ? p.first / 4 : 0, stop = (of_keys ? TP : p.first + TILE) / 4;
    const int each = (stop - start + SPLITS - 1) / SPLITS;
    p.begin = start + p.split * each, p.end = p.begin + each < stop ? p.begin + each : stop;
    return p;
}

// Whether the n-th of a tile is there.
__device__ __forceinline__ bool there(const Place& p, int n, int end) { return p.first + n >= 0 && p.first + n < end; }

struct Sums {
    float content[4][E], position[4][E], top[4], total[4], found[4][E];
};

// The reference of a query's powers moves to the largest score so far, where that is far above or the first.
__device__ __forceinline__ void move_reference(Sums& s, float (*score)[4], const float* most) {
    UNROLL for (int a = 0; a < 4; a++) {
        if (most[a] > (s.total[a] > 0.0f ? FAR : LEAST)) {
            const float fade = s.total[a] > 0.0f ? power(-most[a]) : 0.0f;
            s.top[a] += most[a], s.total[a] *= fade;
            UNROLL for (int e = 0; e < E; e++) s.found[a][e] *= fade;
            UNROLL for (int b = 0; b < 4; b++) score[a][b] -= most[a];
        }
    }
}

__device__ __forceinline__ void attend(Sums& s, const Window<E>& w, const float* kv, int gap) {
    float score[4][4], most[4], rows[4][KV_ROW];
    const Mask mask(gap);
    UNROLL for (int b = 0; b < 4; b++) load_row<KV_ROW>(rows[b], kv + b * KV_ROW);
    UNROLL for (int b = 0; b < 4; b++) {
        UNROLL for (int a = 0; a < 4; a++) {
            float v = mask.at(a, b) - s.top[a];
            UNROLL for (int e = 0; e < E; e++) v += s.content[a][e] * rows[b][e];
            UNROLL for (int e = 0; e < E; e++) v += s.position[a][e] * w.r[e][a - b + 3];
            score[a][b] = v;
        }
    }
    bool moves = false;
    UNROLL for (int a = 0; a < 4; a++) {
        most[a] = fmaxf(fmaxf(score[a][0], score[a][1]), fmaxf(score[a][2], score[a][3]));
        moves = moves || most[a] > (s.total[a] > 0.0f ? FAR : LEAST);
    }
    if (moves) move_reference(s, score, most);
    UNROLL for (int b = 0; b < 4; b++) {
        UNROLL for (int a = 0; a < 4; a++) {
            const float p = power(score[a][b]);
            s.total[a] += p;
            UNROLL for (int e = 0; e < E; e++) s.found[a][e] += p * rows[b][E + e];
        }
    }
}

// Shares of the keys, (split, top, total and what was found, query), become answers.
__device__ __forceinline__ void add_up(const float* share, float* o, float* size, int i) {
    float top = LEAST, total = 0.0f, found[E] = {};
    for (int n = 0; n < SPLITS; n++) top = larger(top, share[n * (E + 2) * TILE]);
    for (int n = 0; n < SPLITS; n++) {
        const float* part = share + n * (E + 2) * TILE;
        const float weight = power(part[0] - top);
        total += weight * part[TILE];
        UNROLL for (int e = 0; e < E; e++) found[e] += weight * part[(2 + e) * TILE];
    }
    const float share_of_one = 1.0f / total;
    UNROLL for (int e = 0; e < E; e++) o[(long long)i * (H * E) + e] = found[e] * share_of_one;
    if (size) size[i] = top + log2f(total);
}

// o (samples, T, H, E), and where asked for log2 of the sums, (samples, H, TP). bias: r_w and r_r, (2, H, E).
extern "C" __global__ void __launch_bounds__(THREADS) relative_attention(
    const float* __restrict__ q, const float* __restrict__ kv, const float* __restrict__ table,
    const float* __restrict__ bias, float* o, float* sizes, const unsigned char* active, int T, int TP, int length) {
    const Place p = placed(TP, false);
    const int head = p.head % H;
    const long long sample = p.head / H;
    if (active && !active[sample]) return;
    q += p.head * TP * Q_ROW, kv += p.head * TP * KV_ROW, table += (long long)head * (E + 1) * length;
    Sums s = {};
    UNROLL for (int a = 0; a < 4; a++) {
        float row[Q_ROW] = {};
        if (p.mine >= 0) load_row<Q_ROW>(row, q + (p.mine + a) * Q_ROW);
        UNROLL for (int e = 0; e < E; e++) {
            s.content[a][e] = row[e] + bias[head * E + e];
            s.position[a][e] = row[e] + bias[(H + head) * E + e];
        }
    }
    Window<E> w;
    if (p.begin < p.end) w.read(table, length, p.mine - 4 * p.begin + FRONT + 1, 4);
    for (int n = p.begin; n < p.end; n++) {
        w.read(table, length, p.mine - 4 * n + FRONT - 3, 0);
        attend(s, w, kv + 4 * n * KV_ROW, p.mine - 4 * n);
        w.move(0, 4);
    }
    float* share = SHARED + p.split * (E + 2) * TILE + (p.mine - p.first);
    UNROLL for (int a = 0; a < 4; a++) {
        share[a] = s.total[a] == 0.0f ? LEAST : s.top[a], share[TILE + a] = s.total[a];
        UNROLL for (int e = 0; e < E; e++) share[(2 + e) * TILE + a] = s.found[a][e];
    }
    block_sync();
    for (int i = threadIdx.x; i < TILE; i += THREADS)
        if (there(p, i, T))
            add_up(SHARED + i, o + (sample * T * H + head) * E, sizes ? sizes + p.head * TP : nullptr, p.first + i);
}

// Shares (split, N, TILE) added up into rows of ROW.
template <int N, int ROW>
__device__ __forceinline__ void add_rows(const Place& p, float (*found)[N], float* out, int TP) {
    float* share = SHARED + p.split * N * TILE + (p.mine - p.first);
    UNROLL for (int a = 0; a < 4; a++) UNROLL for (int e = 0; e < N; e++) share[e * TILE + a] = found[a][e];
    block_sync();
    for (int i = threadIdx.x; i < TILE; i += THREADS) {
        UNROLL for (int e = 0; e < N && there(p, i, TP); e++) {
            float total = 0.0f;
            for (int n = 0; n < SPLITS; n++) total += SHARED[(n * N + e) * TILE + i];
            out[(p.first + i) * ROW + e] = total;
        }
    }
}

// dq_i = ln 2 sum_j ds_ij (k_j + R_{i-j}), ds = p (do.v - delta).
extern "C" __global__ void __launch_bounds__(THREADS) relative_of_queries(
    const float* __restrict__ seen, const float* __restrict__ kv, const float* __restrict__ table, float* dq,
    const unsigned char* active, int TP, int length) {
    const Place p = placed(TP, false);
    if (active && !active[p.head / H]) return;
    seen += p.head * TP * SEEN_ROW, kv += p.head * TP * KV_ROW, table += (p.head % H) * (E + 1) * length;
    float mine[4][SEEN_ROW], found[4][E] = {};
    UNROLL for (int a = 0; a < 4; a++) {
        UNROLL for (int c = 0; c < SEEN_ROW; c++) mine[a][c] = 0.0f;
        if (p.mine >= 0) load_row<SEEN_ROW>(mine[a], seen + (p.mine + a) * SEEN_ROW);
    }
    Window<E + 1> w;
    if (p.begin < p.end) w.read(table, length, p.mine - 4 * p.begin + FRONT + 1, 4);
    for (int n = p.begin; n < p.end; n++) {
        const Mask mask(p.mine - 4 * n);
        w.read(table, length, p.mine - 4 * n + FRONT - 3, 0);
        UNROLL for (int b = 0; b < 4; b++) {
            float row[KV_ROW];
            load_row<KV_ROW>(row, kv + (4 * n + b) * KV_ROW);
            UNROLL for (int a = 0; a < 4; a++) {
                float x[E], v = mask.at(a, b) - mine[a][2 * E + 1], d = -mine[a][2 * E];
                v += row[2 * E] + w.r[E][a - b + 3];
                UNROLL for (int e = 0; e < E; e++) x[e] = row[e] + w.r[e][a - b + 3];
                UNROLL for (int e = 0; e < E; e++) v += mine[a][e] * x[e];
                UNROLL for (int e = 0; e < E; e++) d += mine[a][E + e] * row[E + e];
                d *= power(v);
                UNROLL for (int e = 0; e < E; e++) found[a][e] += d * x[e];
            }
        }
        w.move(0, 4);
    }
    UNROLL for (int a = 0; a < 4; a++) UNROLL for (int e = 0; e < E; e++) found[a][e] *= LN2;
    add_rows<E, Q_ROW>(p, found, dq + p.head * TP * Q_ROW, TP);
}

// dk_j = ln 2 sum_i ds_ij (q_i + r_w), dv_j = sum_i p_ij do_i.
extern "C" __global__ void __launch_bounds__(THREADS) relative_of_keys(
    const float* __restrict__ seen, const float* __restrict__ kv, const float* __restrict__ table,
    const float* __restrict__ bias, float* dkv, const unsigned char* active, int TP, int length) {
    const Place p = placed(TP, true);
    const int head = p.head % H;
    if (active && !active[p.head / H]) return;
    seen += p.head * TP * SEEN_ROW, kv += p.head * TP * KV_ROW, table += (long long)head * (E + 1) * length;
    float mine[4][KV_ROW], found[4][2 * E] = {}, total[4] = {};
    UNROLL for (int b = 0; b < 4; b++) {
        UNROLL for (int c = 0; c < KV_ROW; c++) mine[b][c] = 0.0f;
        if (p.mine < TP) load_row<KV_ROW>(mine[b], kv + (p.mine + b) * KV_ROW);
    }
    Window<E + 1> w;
    if (p.begin < p.end) w.read(table, length, 4 * p.begin - p.mine + FRONT - 3, 0);
    for (int n = p.begin; n < p.end; n++) {
        const Mask mask(4 * n - p.mine);
        w.read(table, length, 4 * n - p.mine + FRONT + 1, 4);
        UNROLL for (int a = 0; a < 4; a++) {
            float row[SEEN_ROW];
            load_row<SEEN_ROW>(row, seen + (4 * n + a) * SEEN_ROW);
            UNROLL for (int b = 0; b < 4; b++) {
                float v = mask.at(a, b) - row[2 * E + 1], d = -row[2 * E];
                v += mine[b][2 * E] + w.r[E][a - b + 3];
                UNROLL for (int e = 0; e < E; e++) v += row[e] * (mine[b][e] + w.r[e][a - b + 3]);
                UNROLL for (int e = 0; e < E; e++) d += row[E + e] * mine[b][E + e];
                const float chance = power(v);
                d *= chance, total[b] += d;
                UNROLL for (int e = 0; e < E; e++) found[b][e] += d * row[e];
                UNROLL for (int e = 0; e < E; e++) found[b][E + e] += chance * row[E + e];
            }
        }
        w.move(4, 0);
    }
    UNROLL for (int b = 0; b < 4; b++)
        UNROLL for (int e = 0; e < E; e++) found[b][e] = LN2 * (found[b][e] + total[b] * bias[head * E + e]);
    add_rows<2 * E, DKV_ROW>(p, found, dkv + p.head * TP * DKV_ROW, TP);
}
