// What a Transformer cell does with each time step by itself: all but attention, forward and transposed (see cell.py).
//
// A block has ROWS steps of a sample, with the weights and their rows in shared memory. A thread has one step, its
// neighbours in the warp the next ones; the outputs are divided among the block's PARTS warps, so that a weight is one
// broadcast, and what one warp finds the others read from shared memory. Statistics of a row are taken by every warp.
// A sample that is left out ends at once; its result is zero, and nobody looks at it.
//
// Rows for attention are as in relative.cu; the other tensors are (samples, T, width). Weights have a row for each
// output, rounded up to whole vectors of four. All arithmetic is float32.
// Behind nn/kernels/cluster.cu. Given by the compiler's command line: D wide, H heads of E, INNER, ROWS, THREADS.
// tests/implicit/kernels/test_cell_kernels.py runs this file on a CPU too, with threads for threads (EMULATED).

#ifdef EMULATED
#include <cmath>
#endif
#define FOURS(n) (((n) + 3) / 4 * 4)
#define ODD(n) ((n) | 1)  // numbers of a row in shared memory: neighbours lie in different banks
#define HE (H * E)
#define PARTS (THREADS / ROWS)
#define EACH(n) (((n) + PARTS - 1) / PARTS)
#define Q_ROW FOURS(E)
#define KV_ROW FOURS(2 * E + 1)
#define SEEN_ROW FOURS(2 * E + 2)
#define DKV_ROW FOURS(2 * E)
#define U_ROW FOURS(3 * E)
#define NOBODY 1e30f  // log2 of the sum of a query that is not there: its chances are zero
#define EPS 1e-5f     // of layer_norm

// Where a thread stands.
struct Place {
    long long sample;
    int first, row, part, t, count;
};

__device__ __forceinline__ Place placed(int T) {
    Place p;
    const int tiles = (T + ROWS - 1) / ROWS;
    p.sample = blockIdx.x / tiles, p.first = blockIdx.x % tiles * ROWS;
    p.row = threadIdx.x % ROWS, p.part = threadIdx.x / ROWS, p.t = p.first + p.row;
    p.count = T - p.first < ROWS ? T - p.first : ROWS;
    return p;
}

__device__ __forceinline__ void copy(float* to, const float* from, int count) {
    for (int i = threadIdx.x; i < count / 4; i += THREADS) ((float4*)to)[i] = ((const float4*)from)[i];
}

// A block's rows of (samples, T, N) into shared memory; those past the end are zero.
template <int N>
__device__ __forceinline__ void fetch(float* tile, const float* from, const Place& p, int T) {
    from += (p.sample * T + p.first) * N;
    for (int i = threadIdx.x; i < ROWS * N; i += THREADS)
        tile[i / N * ODD(N) + i % N] = i < p.count * N ? from[i] : 0.0f;
}

// And back; with `more` the sum of both.
template <int N>
__device__ __forceinline__ void put(float* to, const float* tile, const float* more, const Place& p, int T) {
    const long long at = (p.sample * T + p.first) * N;
    for (int i = threadIdx.x; i < p.count * N; i += THREADS)
        to[at + i] = tile[i / N * ODD(N) + i % N] + (more ? more[at + i] : 0.0f);
}

template <int N>
__device__ __forceinline__ void nothing(float* to, const Place& p, int T) {
    for (int i = threadIdx.x; i < p.count * N; i += THREADS) to[(p.sample * T + p.first) * N + i] = 0.0f;
}

// A row into registers, zero where it is rounded up.
template <int N>
__device__ __forceinline__ void row_of(float* x, const float* tile) {
    UNROLL for (int c = 0; c < FOURS(N); c++) x[c] = c < N ? tile[c] : 0.0f;
}

// w.x in four sums: none waits long for the one before.
template <int N>
__device__ __forceinline__ float product(const float* x, const float* w) {
    float4 y = {0.0f, 0.0f, 0.0f, 0.0f};
    UNROLL for (int c = 0; c < FOURS(N); c += 4) {
        const float4 u = *(const float4*)(w + c);
        y.x += u.x * x[c], y.y += u.y * x[c + 1], y.z += u.z * x[c + 2], y.w += u.w * x[c + 3];
    }
    return (y.x + y.y) + (y.z + y.w);
}

// x -> (x - mean) / std, and 1 / std.
template <int N>
__device__ __forceinline__ float normalise(float* x) {
    float mean = 0.0f, square = 0.0f;
    UNROLL for (int c = 0; c < N; c++) mean += x[c];
    mean /= N;
    UNROLL for (int c = 0; c < N; c++) x[c] -= mean, square += x[c] * x[c];
    const float scale = 1.0f / sqrtf(square / N + EPS);
    UNROLL for (int c = 0; c < N; c++) x[c] *= scale;
    return scale;
}

// The gradient g after a layer norm of x -> before it.
template <int N>
__device__ __forceinline__ void normalise_back(float* g, float* x) {
    const float scale = normalise<N>(x);
    float mean = 0.0f, along = 0.0f;
    UNROLL for (int c = 0; c < N; c++) mean += g[c], along += g[c] * x[c];
    mean /= N, along /= N;
    UNROLL for (int c = 0; c < N; c++) g[c] = scale * (g[c] - mean - x[c] * along);
}

template <int N>
__device__ __forceinline__ void load_row(float* row, const float* from) {
    UNROLL for (int c = 0; c < N; c += 4) {
        const float4 v = *(const float4*)(from + c);
        row[c] = v.x, row[c + 1] = v.y, row[c + 2] = v.z, row[c + 3] = v.w;
    }
}

template <int N>
__device__ __forceinline__ void store_row(float* to, const float* row) {
    UNROLL for (int c = 0; c < N; c += 4) *(float4*)(to + c) = float4{row[c], row[c + 1], row[c + 2], row[c + 3]};
}

// q, k, v = W LN(z) + u, into rows of heads. W (3, H, E, FOURS(D)), u (samples, H, T, U_ROW), bias: r_w first.
extern "C" __global__ void __launch_bounds__(THREADS) cell_project(
    const float* z, const float* u, const float* W, const float* bias, float* q, float* kv,
    const unsigned char* active, int T, int TP) {
    const Place p = placed(T);
    if (active && !active[p.sample]) return;
    float *w = SHARED, *tile = w + 3 * HE * FOURS(D), x[FOURS(D)];
    copy(w, W, 3 * HE * FOURS(D));
    fetch<D>(tile, z, p, T);
    block_sync();
    row_of<D>(x, tile + p.row * ODD(D));
    normalise<D>(x);
    for (int h = p.part; h < H && p.t < TP; h += PARTS) {
        const long long head = p.sample * H + h;
        float y[U_ROW], q_row[Q_ROW] = {}, kv_row[KV_ROW] = {};
        if (p.t < T) {
            load_row<U_ROW>(y, u + (head * T + p.t) * U_ROW);
            UNROLL for (int n = 0; n < 3; n++)
                UNROLL for (int e = 0; e < E; e++) y[n * E + e] += product<D>(x, w + ((n * H + h) * E + e) * FOURS(D));
            UNROLL for (int e = 0; e < E; e++) {
                q_row[e] = y[e], kv_row[e] = y[E + e], kv_row[E + e] = y[2 * E + e];
                kv_row[2 * E] += bias[h * E + e] * y[E + e];
            }
        }
        store_row<Q_ROW>(q + (head * TP + p.t) * Q_ROW, q_row);
        store_row<KV_ROW>(kv + (head * TP + p.t) * KV_ROW, kv_row);
    }
}

// a = z + W_o o + b_o, n = LN(a), out = n + W_2 relu(W_1 n + b_1) + b_2; `a` and what the ReLU lets through are kept.
extern "C" __global__ void __launch_bounds__(THREADS, D <= 40 ? 3 : 1) cell_finish(
    const float* o, const float* z, const float* W_o, const float* W_1, const float* W_2, const float* b_o,
    const float* b_1, const float* b_2, float* out, float* a, float* inner, const unsigned char* active, int T) {
    const Place p = placed(T);
    if (active && !active[p.sample]) return nothing<D>(out, p, T);
    float *w_o = SHARED, *w_1 = w_o + D * FOURS(HE), *w_2 = w_1 + INNER * FOURS(D), *seen = w_2 + D * FOURS(INNER);
    float *state = seen + ROWS * ODD(HE), *hidden = state + ROWS * ODD(D), *mine = state + p.row * ODD(D);
    copy(w_o, W_o, D * FOURS(HE)), copy(w_1, W_1, INNER * FOURS(D)), copy(w_2, W_2, D * FOURS(INNER));
    fetch<HE>(seen, o, p, T), fetch<D>(state, z, p, T);
    block_sync();
    float x[FOURS(HE)], n[FOURS(D)], y[FOURS(INNER)];
    row_of<HE>(x, seen + p.row * ODD(HE));
    UNROLL for (int i = 0; i < EACH(D); i++) {
        const int j = p.part * EACH(D) + i;
        if (j < D) mine[j] += product<HE>(x, w_o + j * FOURS(HE)) + b_o[j];
    }
    block_sync();
    row_of<D>(n, mine);
    if (a) put<D>(a, state, nullptr, p, T);
    normalise<D>(n);
    UNROLL for (int i = 0; i < EACH(INNER); i++) {
        const int j = p.part * EACH(INNER) + i;
        if (j < INNER) hidden[p.row * ODD(INNER) + j] = rectified(product<D>(n, w_1 + j * FOURS(D)) + b_1[j]);
    }
    block_sync();  // everybody has its row of the state: it can take the answer
    if (inner) put<INNER>(inner, hidden, nullptr, p, T);
    row_of<INNER>(y, hidden + p.row * ODD(INNER));
    if (p.part == 0) UNROLL for (int c = 0; c < D; c++) mine[c] = n[c];
    block_sync();
    UNROLL for (int i = 0; i < EACH(D); i++) {
        const int j = p.part * EACH(D) + i;
        if (j < D) mine[j] += product<INNER>(y, w_2 + j * FOURS(INNER)) + b_2[j];
    }
    block_sync();
    put<D>(out, state, nullptr, p, T);
}

// y -> da, the gradient before the second layer norm, and rows of queries for relative.cu. Weights are transposed.
extern "C" __global__ void __launch_bounds__(THREADS) cell_finish_back(
    const float* given, const float* a, const float* inner, const float* o, const float* q, const float* sizes,
    const float* W_2, const float* W_1, const float* W_o, float* da, float* rows, const unsigned char* active, int T,
    int TP) {
    const Place p = placed(T);
    if (active && !active[p.sample]) return;
    float *w_2 = SHARED, *w_1 = w_2 + INNER * FOURS(D), *w_o = w_1 + D * FOURS(INNER), *tile = w_o + HE * FOURS(D);
    float *state = tile + ROWS * ODD(D), *hidden = state + ROWS * ODD(D);
    float *mine = tile + p.row * ODD(D), *between = hidden + p.row * ODD(INNER);
    copy(w_2, W_2, INNER * FOURS(D)), copy(w_1, W_1, D * FOURS(INNER)), copy(w_o, W_o, HE * FOURS(D));
    fetch<D>(tile, given, p, T), fetch<D>(state, a, p, T), fetch<INNER>(hidden, inner, p, T);
    block_sync();
    float g[FOURS(D)], x[FOURS(D)], y[FOURS(INNER)];
    row_of<D>(g, mine);
    UNROLL for (int i = 0; i < EACH(INNER); i++) {
        const int j = p.part * EACH(INNER) + i;
        if (j < INNER) between[j] = passed(product<D>(g, w_2 + j * FOURS(D)), between[j]);
    }
    block_sync();
    row_of<INNER>(y, between);
    UNROLL for (int i = 0; i < EACH(D); i++) {
        const int j = p.part * EACH(D) + i;
        if (j < D) mine[j] += product<INNER>(y, w_1 + j * FOURS(INNER));
    }
    block_sync();
    row_of<D>(g, mine), row_of<D>(x, state + p.row * ODD(D));
    normalise_back<D>(g, x);
    block_sync();
    if (p.part == 0) UNROLL for (int c = 0; c < D; c++) mine[c] = g[c];
    for (int h = p.part; h < H && p.t < TP; h += PARTS) {
        const long long at = (p.sample * H + h) * TP + p.t;
        float row[SEEN_ROW] = {}, own[Q_ROW];
        row[2 * E + 1] = NOBODY;
        if (p.t < T) {
            load_row<Q_ROW>(own, q + at * Q_ROW);
            row[2 * E + 1] = sizes[at];
            UNROLL for (int e = 0; e < E; e++) {
                row[e] = own[e], row[E + e] = product<D>(g, w_o + (h * E + e) * FOURS(D));
                row[2 * E] += row[E + e] * o[((p.sample * T + p.t) * H + h) * E + e];
            }
        }
        store_row<SEEN_ROW>(rows + at * SEEN_ROW, row);
    }
    block_sync();
    put<D>(da, tile, nullptr, p, T);
}

// out = da + the gradient W^T (dq, dk, dv) taken through the first layer norm. W (D, FOURS(3 HE)).
extern "C" __global__ void __launch_bounds__(THREADS) cell_project_back(
    const float* dq, const float* dkv, const float* da, const float* z, const float* W, float* out,
    const unsigned char* active, int T, int TP) {
    const Place p = placed(T);
    if (active && !active[p.sample]) return nothing<D>(out, p, T);
    const int wide = FOURS(3 * HE);
    float *w = SHARED, *state = w + D * wide, *tile = state + ROWS * ODD(D), *found = tile + ROWS * ODD(wide);
    copy(w, W, D * wide);
    fetch<D>(state, z, p, T);
    for (int i = threadIdx.x; i < ROWS * (wide - 3 * HE); i += THREADS)
        tile[i % ROWS * ODD(wide) + 3 * HE + i / ROWS] = 0.0f;
    for (int h = p.part; h < H; h += PARTS) {
        const long long at = (p.sample * H + h) * TP + p.t;
        float *to = tile + p.row * ODD(wide) + h * E, q_row[Q_ROW] = {}, kv_row[DKV_ROW] = {};
        if (p.t < T) load_row<Q_ROW>(q_row, dq + at * Q_ROW), load_row<DKV_ROW>(kv_row, dkv + at * DKV_ROW);
        UNROLL for (int e = 0; e < E; e++) to[e] = q_row[e], to[HE + e] = kv_row[e], to[2 * HE + e] = kv_row[E + e];
    }
    block_sync();
    float y[EACH(D)] = {}, g[FOURS(D)], x[FOURS(D)];
    const float* mine = tile + p.row * ODD(wide);
    for (int c = 0; c < wide; c += 4) {
        UNROLL for (int i = 0; i < EACH(D); i++) {
            const int j = p.part * EACH(D) + i < D ? p.part * EACH(D) + i : D - 1;
            const float4 v = *(const float4*)(w + j * wide + c);
            y[i] += v.x * mine[c] + v.y * mine[c + 1] + v.z * mine[c + 2] + v.w * mine[c + 3];
        }
    }
    float* to = found + p.row * ODD(D);
    UNROLL for (int i = 0; i < EACH(D); i++) if (p.part * EACH(D) + i < D) to[p.part * EACH(D) + i] = y[i];
    block_sync();
    row_of<D>(g, to), row_of<D>(x, state + p.row * ODD(D));
    normalise_back<D>(g, x);
    block_sync();
    if (p.part == 0) UNROLL for (int c = 0; c < D; c++) to[c] = g[c];
    block_sync();
    put<D>(out, found, da, p, T);
}
