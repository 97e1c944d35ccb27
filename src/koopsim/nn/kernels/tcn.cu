// The causal convolutions of a TCN, all layers in one kernel forward and one backward, for GPUs with thread block clusters.
//
//     a_l = relu(W_l * h_l + b_l)     h_{l+1} = a_l, or relu(a_l + s) in the second layer of a block     (see tcn.py)
//
// A cluster of CLUSTER blocks has a sequence, each block a stretch of it, and every block a copy of the whole h in its
// own shared memory. A layer is computed stretch by stretch; what a block finds it writes into the shared memory of all
// blocks that will look at it (forward: later ones, backward: earlier ones), and a barrier ends the layer.
// A thread has one time step and OUTS output channels, its neighbours in the warp the next time steps and the same
// channels: a weight is one broadcast for the warp, and is used OUTS times less often than it would be by a thread a
// channel. Taps before the beginning are skipped. The gradients of all weights come from a third kernel, whose blocks
// have a layer and some rows each. All arithmetic is float32.
// Behind cluster.cu. C is even, K a multiple of 4, OUTS divides C. Given by the compiler's command line: C channels, K taps, L layers,
// I inputs, OUTS, CLUSTER, THREADS, BYTES where x is of bytes, SPLIT 2 where two threads share the taps of an output,
// BLOCKS that a multiprocessor has room for: the compiler would leave registers for more, and wait for every number.
//
// tests/nn/kernels/test_tcn_cluster.py runs this file on a CPU too, with threads for threads (EMULATED).

#ifdef BYTES  // symbols as a task keeps them: x needs no kernel that makes numbers of them
typedef unsigned char Input;
#define BELOW(at) (from_x ? (float)x[at] : inputs[at])
#else
typedef float Input;
#define BELOW(at) inputs[at]
#endif

#ifndef SPLIT
#define SPLIT 1
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#define TAPS (K / SPLIT)  // a thread's
#define G (C / 2)
#define GROUPS (C / OUTS)
#define LAYER (C * K * C)
#define ROWS 32  // of the weights' gradients, taken at a time
#define HALF ((G + 3) / 4 * 4)  // the place for half of a row's channels there: whole vectors of four

// y[o] = sum over TAPS taps k and channels of w[o][k] . from[t + (TAPS-1-k) step]; what lies outside of 0..T-1 is zero.
__device__ __forceinline__ void convolved(float* y, const float* from, const float* w, int t, int T, int step) {
    UNROLL for (int o = 0; o < OUTS; o++) y[o] = 0.0f;
    UNROLL for (int k = 0; k < TAPS; k += 2) {
        int t0 = t + (TAPS - 1 - k) * step, t1 = t + (TAPS - 2 - k) * step;
        bool in0 = t0 >= 0 && t0 < T, in1 = t1 >= 0 && t1 < T;
        if (in0 || in1) {
            float x[2 * C];
            UNROLL for (int c = 0; c < C; c += 2) {
                float2 p = in0 ? load2(from + t0 * C + c) : float2{0.0f, 0.0f};
                float2 q = in1 ? load2(from + t1 * C + c) : float2{0.0f, 0.0f};
                x[c] = p.x, x[c + 1] = p.y, x[C + c] = q.x, x[C + c + 1] = q.y;
            }
            UNROLL for (int e = 0; e < 2 * C; e += 4) {
                UNROLL for (int o = 0; o < OUTS; o++) {
                    float4 u = *(const float4*)(w + o * (K * C) + k * C + e);
                    y[o] += u.x * x[e] + u.y * x[e + 1] + u.z * x[e + 2] + u.w * x[e + 3];
                }
            }
        }
    }
}

// W (L, C, K, C) of a model into shared memory, outputs and inputs exchanged.
__device__ __forceinline__ void load_turned(float* w, const float* W) {
    for (int i = threadIdx.x; i < L * LAYER / 4; i += THREADS) {
        const float4 v = ((const float4*)W)[i];
        const float each[4] = {v.x, v.y, v.z, v.w};
        UNROLL for (int e = 0; e < 4; e++) {
            const int n = 4 * i + e, in = n % C, k = n / C % K, out = n / (C * K) % C, l = n / LAYER;
            w[l * LAYER + in * (K * C) + k * C + out] = each[e];
        }
    }
}

// Where a block stands: its stretch of the sequence that its cluster has.
struct Place {
    unsigned rank;
    int stretch, first, rows;
    long long sequence, model;
};

__device__ __forceinline__ Place placed(int T, int each) {
    Place p;
    p.rank = cluster_rank();
    p.stretch = (T + CLUSTER - 1) / CLUSTER, p.first = p.rank * p.stretch;
    p.rows = T - p.first < p.stretch ? T - p.first : p.stretch;
    p.sequence = blockIdx.x / CLUSTER, p.model = p.sequence / each;
    return p;
}

// All that this block's threads have of a layer: of each time step t and channels o0, o0 + 1, ... `early` (t, o0) and, with
// what `convolved` finds, `late` (t, o0, y). With SPLIT 2 there are threads enough for twice as many: the second half of
// them has the later taps and hands its sums over in `shared`, a stretch.
template <class Early, class Late>
__device__ __forceinline__ void each_item(
    const Place& p, const float* from, const float* w, float* shared, int T, int step, Early early, Late late) {
    const int count = p.rows * GROUPS;
    float y[OUTS];
#if SPLIT == 1
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const int t = p.first + i % p.rows, o0 = i / p.rows * OUTS;
        early(t, o0);
        convolved(y, from, w + o0 * (K * C), t, T, step);
        late(t, o0, y);
    }
#else
    const int thread = threadIdx.x, half = thread >= count, i = half ? thread - count : thread;
    const bool here = i < count;  // of a block without a time step nobody is
    const int t = here ? p.first + i % p.rows : 0, o0 = here ? i / p.rows * OUTS : 0;
    if (here) {
        if (!half) early(t, o0);
        convolved(y, from, w + o0 * (K * C) + half * TAPS * C, half ? t : t + (K - TAPS) * step, T, step);
        if (half) UNROLL for (int o = 0; o < OUTS; o++) shared[o * count + i] = y[o];
    }
    block_sync();
    if (here && !half) {
        UNROLL for (int o = 0; o < OUTS; o++) y[o] += shared[o * count + i];
        late(t, o0, y);
    }
#endif
}

// The state of layer l, this block's stretch of it, from `whole` and `middle` into one of them: after the layer's ReLU,
// and after the block's where the layer is the second of one. a: where this stretch of what is before the latter goes.
__device__ __forceinline__ void layer_forward(
    int l, const Place& p, float* whole, float* middle, const float* w, const float* bias, const Input* x,
    const float* R, const float* r, float* a, float* shared, int T, int projected) {
    const bool second = l % 2 == 1;
    const float* from = second ? middle : whole;
    float* to = second ? whole : middle;
    const auto nothing = [](int, int) {};
    each_item(p, from, w + l * LAYER, shared, T, -(1 << (l / 2)), nothing, [&](int t, int o0, float* y) {
        const int at = t * C + o0;
        UNROLL for (int o = 0; o < OUTS; o++) y[o] = rectified(y[o] + bias[l * C + o0 + o]);
        if (second) {
            if (a) UNROLL for (int o = 0; o < OUTS; o++) a[at - p.first * C + o] = y[o];
            if (l == 1 && projected) {  // x again from outside: others may have overwritten it here
                UNROLL for (int o = 0; o < OUTS; o++) {
                    float s = r[o0 + o];
                    for (int c = 0; c < I; c++) s += R[(o0 + o) * I + c] * x[t * I + c];
                    y[o] = rectified(y[o] + s);
                }
            } else {
                UNROLL for (int o = 0; o < OUTS; o++) y[o] = rectified(y[o] + whole[at + o]);
            }
        }
        UNROLL for (int o = 0; o < OUTS; o++) to[at + o] = y[o];
    });
}

// This block's stretch of a state to the blocks from `begin` to `end`.
__device__ __forceinline__ void tell(const Place& p, float* state, int begin, int end) {
    for (int i = threadIdx.x; i < p.rows * G; i += THREADS) {
        const int at = p.first * C + 2 * i;
        const float2 v = load2(state + at);
        for (int other = begin; other <= end; other++)
            if (other != (int)p.rank) store_at(other, state + at, v);
    }
}

// The same, `own` being where the stretch begins, to its place outside: while the others are waited for.
__device__ __forceinline__ void keep(const Place& p, const float* own, float* outside) {
    for (int i = threadIdx.x; i < p.rows * G; i += THREADS) store2(outside + p.first * C + 2 * i, load2(own + 2 * i));
}

// The last block that layer l looks back from to this one's stretch, and the first that it looks ahead from backward.
__device__ __forceinline__ int last_reader(const Place& p, int l) {
    const int block = (p.first + p.rows - 1 + (K - 1) * (1 << (l / 2))) / p.stretch;
    return block < CLUSTER ? block : CLUSTER - 1;
}
__device__ __forceinline__ int first_reader(const Place& p, int l) {
    const int t = p.first - (K - 1) * (1 << (l / 2));
    return t > 0 ? t / p.stretch : 0;
}

// Weights, biases and x into shared memory; the weights of all layers but the first are on their way.
__device__ __forceinline__ void begin_forward(
    const Place& p, float* w, float* whole, float* bias, const Input* x, const float* W, const float* b, int T) {
    W += p.model * (L * LAYER);
    for (int i = threadIdx.x; i < LAYER / 4; i += THREADS) fetch4(w + 4 * i, W + 4 * i);
    end_of_group();
    for (int i = LAYER / 4 + threadIdx.x; i < L * LAYER / 4; i += THREADS) fetch4(w + 4 * i, W + 4 * i);
    end_of_group();
    for (int i = threadIdx.x; i < L * C; i += THREADS) bias[i] = b[p.model * (L * C) + i];
    for (int i = threadIdx.x; i < T * C; i += THREADS) whole[i] = i % C < I ? (float)x[i / C * I + i % C] : 0.0f;
    wait_for_groups<1>();
}

// grid: CLUSTER blocks for each sequence; `each`: sequences of a model. projected: the first block's residual is R x + r.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, BLOCKS) temporal_forward(
    const Input* x, const float* R, const float* r, const float* W, const float* b, float* last, float* h, float* a,
    int T, int sequences, int each, int projected) {
    float *w = SHARED, *whole = w + L * LAYER, *middle = whole + T * C, *bias = middle + T * C, *inner = bias + L * C;
    const Place p = placed(T, each);
    float* shared = inner + p.stretch * C;
    const long long plane = (long long)sequences * T * C, begin = p.sequence * T * C;
    x += p.sequence * T * I, R += p.model * (C * I), r += p.model * C;
    cluster_arrive();  // this block is there and may be written to; nobody does before the first layer's end
    begin_forward(p, w, whole, bias, x, W, b, T);
    block_sync();
    for (int l = 0; l < L; l++) {
        float* state = l % 2 ? whole : middle;
        layer_forward(l, p, whole, middle, w, bias, x, R, r, inner, shared, T, projected);
        if (l == 0) wait_for_groups<0>();  // the weights of the other layers
        block_sync();
        if (l == 0) cluster_wait();  // all blocks are there
        if (l < L - 1) tell(p, state, p.rank + 1, last_reader(p, l + 1)), cluster_arrive();
        keep(p, state + p.first * C, l < L - 1 ? h + l * plane + begin : last + begin);
        if (l % 2) keep(p, inner, a + (l / 2) * plane + begin);
        if (l < L - 1) cluster_wait();
    }
}

#ifdef HIDDEN
#define FOURS(n) (((n) + 3) / 4 * 4)
#define FIRST (C * FOURS(HIDDEN) + FOURS(HIDDEN))  // numbers of a layer of the head: weights (in, out), then biases
#define SECOND (HIDDEN * FOURS(HIDDEN) + FOURS(HIDDEN))
#define THIRD (HIDDEN * FOURS(OUTPUTS) + FOURS(OUTPUTS))

// to[j][t] = relu(b[j] + sum over c of from[t step + c stride] w[c][j]), or without the ReLU into to[t][j], which has OUT.
template <int IN, int OUT, bool INNER>
__device__ __forceinline__ void dense(const float* from, int step, int stride, const float* w, float* to, int rows) {
    const int wide = FOURS(OUT);
    for (int i = threadIdx.x; i < rows * (wide / 4); i += THREADS) {
        const int t = i % rows, j = i / rows * 4;
        float4 y = *(const float4*)(w + IN * wide + j);
        UNROLL for (int c = 0; c < IN; c++) {
            const float v = from[t * step + c * stride];
            const float4 u = *(const float4*)(w + c * wide + j);
            y.x += v * u.x, y.y += v * u.y, y.z += v * u.z, y.w += v * u.w;
        }
        const float each[4] = {y.x, y.y, y.z, y.w};
        UNROLL for (int e = 0; e < 4; e++) {
            if (INNER) to[(j + e) * rows + t] = rectified(each[e]);
            else if (j + e < OUT) to[t * OUT + j + e] = each[e];
        }
    }
}

// An answer: the layers, and of their last state h_L the head w3 relu(w2 relu(w1 h_L + b1) + b2) + b3, into y (.., T, OUTPUTS).
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS) temporal_answer(
    const Input* x, const float* R, const float* r, const float* W, const float* b, const float* head, float* y, int T,
    int projected) {
    float *w = SHARED, *top = w + L * LAYER, *whole = top + FIRST + SECOND + THIRD, *bias = whole + T * C;
    const Place p = placed(T, 1 << 30);
    float *middle = bias + L * C, *hidden = middle, *later = hidden + p.stretch * FOURS(HIDDEN);
    x += p.sequence * T * I;
    begin_forward(p, w, whole, bias, x, W, b, T);
    for (int i = threadIdx.x; i < (FIRST + SECOND + THIRD) / 4; i += THREADS) ((float4*)top)[i] = ((const float4*)head)[i];
    cluster_sync();
    for (int l = 0; l < L; l++) {
        layer_forward(l, p, whole, middle, w, bias, x, R, r, nullptr, nullptr, T, projected);
        if (l == 0) wait_for_groups<0>();
        block_sync();
        if (l < L - 1) tell(p, l % 2 ? whole : middle, p.rank + 1, last_reader(p, l + 1)), cluster_sync();
    }
    dense<C, HIDDEN, true>(whole + p.first * C, C, 1, top, hidden, p.rows);
    block_sync();
    dense<HIDDEN, HIDDEN, true>(hidden, 1, p.rows, top + FIRST, later, p.rows);
    block_sync();
    dense<HIDDEN, OUTPUTS, false>(later, 1, p.rows, top + FIRST + SECOND, y + (p.sequence * T + p.first) * OUTPUTS, p.rows);
}
#endif

// g (L + 1 or more, sequences, T, C): gradients before the ReLU of each layer, and behind them before the first block's.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, BLOCKS) temporal_backward(
    const float* W, const float* last, const float* h, const float* a, const float* dy, float* g_out, int T,
    int sequences, int each) {
    float *w = SHARED, *from = w + L * LAYER, *to = from + T * C, *skip = to + T * C;
    const Place p = placed(T, each);
    float *shared = skip + p.stretch * C, below[OUTS], inner[OUTS];
    const long long plane = (long long)sequences * T * C, begin = p.sequence * T * C;
    cluster_arrive();  // this block is there
    load_turned(w, W + p.model * (L * LAYER));
    for (int i = threadIdx.x; i < p.rows * G; i += THREADS) {
        const int at = p.first * C + 2 * i;
        float2 y = load2(dy + begin + at), v = load2(last + begin + at);
        y.x = passed(y.x, v.x), y.y = passed(y.y, v.y);
        store2(skip + 2 * i, y);
        if (L == 2) store2(g_out + L * plane + begin + at, y);
        v = load2(a + (L / 2 - 1) * plane + begin + at);
        y.x = passed(y.x, v.x), y.y = passed(y.y, v.y);
        store2(from + at, y);
    }
    block_sync();
    cluster_wait();  // all blocks are there
    tell(p, from, first_reader(p, L - 1), p.rank);
    cluster_arrive();
    keep(p, from + p.first * C, g_out + (L - 1) * plane + begin);
    cluster_wait();
    for (int l = L - 1; l > 0; l--) {
        const bool opens = l % 2 == 0;  // the first layer of its block: the residual's gradient joins in
        const auto early = [&](int t, int o0) {  // they take their time
            UNROLL for (int o = 0; o < OUTS; o++) {
                below[o] = h[(l - 1) * plane + begin + t * C + o0 + o];
                inner[o] = opens ? a[(l / 2 - 1) * plane + begin + t * C + o0 + o] : 1.0f;
            }
        };
        each_item(p, from, w + l * LAYER, shared, T, 1 << (l / 2), early, [&](int t, int o0, float* y) {
            const int at = t * C + o0, own = at - p.first * C;
            UNROLL for (int o = 0; o < OUTS; o++) {
                y[o] = passed(opens ? y[o] + skip[own + o] : y[o], below[o]);
                if (opens) skip[own + o] = y[o];
                if (l == 2) g_out[L * plane + begin + at + o] = y[o];
                to[at + o] = passed(y[o], inner[o]);
            }
        });
        block_sync();
        if (l > 1) tell(p, to, first_reader(p, l - 1), p.rank), cluster_arrive();
        keep(p, to + p.first * C, g_out + (l - 1) * plane + begin);
        if (l > 1) cluster_wait();
        float* turned = from;
        from = to, to = turned;
    }
}

// dW_l[o][k][c] = sum over rows of g[r][o] h_l[r - (K-1-k) dilation][c], and db_l[o] = sum of g[r][o].
// grid: (L or L + 1 with the residual, parts, models); a block has K C 2 threads, each a tap, an input, half of the outputs.
// rows: of a model, its sequences one after the other. sums (parts, models, size): dW, db, dR, dr one after the other.
extern "C" __global__ void __launch_bounds__(2 * K * C) temporal_weights(
    const float* g, const float* h, const Input* x, float* sums, int T, int rows, int chunk, int size) {
    float *tile = SHARED, *columns = tile + ROWS * 2 * HALF;
    const int layer = blockIdx.x, part = blockIdx.y, model = blockIdx.z, models = gridDim.z;
    const bool residual = layer == L, from_x = layer == 0 || residual;
    const int side = threadIdx.x / (K * C), k = threadIdx.x % (K * C) / C, c = threadIdx.x % C;
    const int back = residual ? 0 : (K - 1 - k) << (layer / 2), width = from_x ? I : C;
    const bool mine = c < width && (!residual || k == K - 1);
    const long long begin = (long long)model * rows;
    g += ((long long)layer * models * rows + begin) * C;
    x += begin * I;
    const float* inputs = from_x ? (const float*)x : h + ((long long)(layer - 1) * models * rows + begin) * C;
    const int end = (part + 1) * chunk < rows ? (part + 1) * chunk : rows;
    float total[G] = {}, column = 0.0f;
    for (int start = part * chunk; start < end; start += ROWS) {
        const int count = end - start < ROWS ? end - start : ROWS;
        block_sync();
        for (int i = threadIdx.x; i < ROWS * C; i += 2 * K * C) {  // a step of whole rows: a thread has one column
            const float v = i < count * C ? g[(long long)start * C + i] : 0.0f;
            tile[i / C * (2 * HALF) + i % C / G * HALF + i % C % G] = v;
            column += v;
        }
        block_sync();
        int t = start % T;
        UNROLL for (int n = 0; n < ROWS; n++) {
            const long long at = (long long)(start + n - back) * width + c;
            const float v = mine && n < count && t >= back ? BELOW(at) : 0.0f;
            float row[HALF];
            UNROLL for (int o = 0; o < HALF; o += 4) *(float4*)(row + o) = *(const float4*)(tile + (2 * n + side) * HALF + o);
            UNROLL for (int o = 0; o < G; o++) total[o] += row[o] * v;
            t = t + 1 == T ? 0 : t + 1;
        }
    }
    sums += ((long long)part * models + model) * size;
    const int weights = L * C * K * C, behind = weights + L * C;
    UNROLL for (int o = 0; o < G; o++) {
        const int out = side * G + o;
        if (!residual) sums[layer * (C * K * C) + out * (K * C) + k * C + c] = total[o];
        if (residual && mine) sums[behind + out * I + c] = total[o];
    }
    columns[threadIdx.x] = column;
    block_sync();
    if (threadIdx.x < C) {
        float whole = 0.0f;
        for (int i = threadIdx.x; i < 2 * K * C; i += C) whole += columns[i];
        sums[residual ? behind + C * I + threadIdx.x : weights + layer * C + threadIdx.x] = whole;
    }
}
