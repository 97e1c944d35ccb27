// The causal convolutions of a TCN, all layers in one kernel forward and one backward, for GPUs with thread block clusters.
//
//     a_l = relu(W_l * h_l + b_l)     h_{l+1} = a_l, or relu(a_l + s) in the second layer of a block     (see tcn.py)
//
// A cluster of CLUSTER blocks has a sequence, each block a stretch of it, and every block a copy of the whole h in its
// own shared memory. A layer is computed stretch by stretch; what a block finds it writes into the shared memory of all
// blocks that will look back at it (forward: the later ones, backward: the earlier ones), and a barrier ends the layer.
// A thread has one time step and two output channels, 2 g and 2 g + 1, and skips the taps that lie before the beginning;
// with half of the taps a thread it took 1.7 times as long. The gradients of all weights come from a third kernel, whose
// blocks have a layer and some rows each. All arithmetic is float32.
// C is even, K a multiple of 4. Given by the compiler's command line: C channels, K taps, L layers, I inputs, CLUSTER, THREADS.
//
// tests/nn/kernels/test_tcn_cluster.py runs this file on a CPU too, with threads for threads (EMULATED).

#define G (C / 2)
#define PAIR (2 * K * C + 4)  // weights of two output channels; 4 more, so that the pairs lie in different banks
#define LAYER (G * PAIR)
#define ROWS 32  // of the weights' gradients, taken at a time
#define HALF ((G + 3) / 4 * 4)  // the place for half of a row's channels there: whole vectors of four

#ifndef EMULATED
extern __shared__ float4 shared_memory[];
#define SHARED ((float*)shared_memory)
#define UNROLL _Pragma("unroll")

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

__device__ __forceinline__ void block_sync() { __syncthreads(); }

// Two numbers to the same place of another block's shared memory.
__device__ __forceinline__ void store_at(unsigned rank, float* local, float2 v) {
    unsigned here = (unsigned)__cvta_generic_to_shared(local), there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(v.x), "f"(v.y) : "memory");
}
#endif

// A nan stays one, which a maximum would not leave.
__device__ __forceinline__ float rectified(float v) { return v < 0.0f ? 0.0f : v; }
__device__ __forceinline__ float passed(float v, float by) { return by > 0.0f ? v : 0.0f; }

__device__ __forceinline__ float2 load2(const float* p) { return *(const float2*)p; }
__device__ __forceinline__ void store2(float* p, float2 v) { *(float2*)p = v; }

// sum over taps k and channels of w[2g or 2g+1][k] . from[t + (K-1-k) step]; what lies outside of 0..T-1 is zero.
__device__ __forceinline__ float2 convolved(const float* from, const float* w, int t, int g, int T, int step) {
    float2 y = {0.0f, 0.0f};
    w += g * PAIR;
    UNROLL for (int k = 0; k < K; k += 2) {
        int t0 = t + (K - 1 - k) * step, t1 = t + (K - 2 - k) * step;
        bool in0 = t0 >= 0 && t0 < T, in1 = t1 >= 0 && t1 < T;
        if (in0 || in1) {
            float x[2 * C];
            UNROLL for (int c = 0; c < C; c += 2) {
                float2 p = in0 ? load2(from + t0 * C + c) : float2{0.0f, 0.0f};
                float2 q = in1 ? load2(from + t1 * C + c) : float2{0.0f, 0.0f};
                x[c] = p.x, x[c + 1] = p.y, x[C + c] = q.x, x[C + c + 1] = q.y;
            }
            UNROLL for (int e = 0; e < 2 * C; e += 4) {
                float4 u = *(const float4*)(w + k * C + e), v = *(const float4*)(w + K * C + k * C + e);
                y.x += u.x * x[e] + u.y * x[e + 1] + u.z * x[e + 2] + u.w * x[e + 3];
                y.y += v.x * x[e] + v.y * x[e + 1] + v.z * x[e + 2] + v.w * x[e + 3];
            }
        }
    }
    return y;
}

// W (L, C, K, C) of a model into shared memory, pair by pair of output channels; TURNED: outputs and inputs exchanged.
template <bool TURNED>
__device__ __forceinline__ void load_weights(float* w, const float* W) {
    for (int i = threadIdx.x; i < L * C * K * C; i += THREADS) {
        int in = i % C, k = i / C % K, out = i / (C * K) % C, l = i / (C * K * C);
        int o = TURNED ? in : out, c = TURNED ? out : in;
        w[l * LAYER + (o / 2) * PAIR + (o % 2) * (K * C) + k * C + c] = W[i];
    }
}

// grid: CLUSTER blocks for each sequence; `each`: sequences of a model. projected: the first block's residual is R x + r.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS) temporal_forward(
    const float* x, const float* R, const float* r, const float* W, const float* b, float* last, float* h, float* a,
    int T, int sequences, int each, int projected) {
    float *w = SHARED, *whole = w + L * LAYER, *middle = whole + T * C, *bias = middle + T * C;
    const unsigned rank = cluster_rank();
    const long long sequence = blockIdx.x / CLUSTER, model = sequence / each;
    const int stretch = (T + CLUSTER - 1) / CLUSTER, first = rank * stretch;
    const int rows = T - first < stretch ? T - first : stretch;
    const long long plane = (long long)sequences * T * C, begin = sequence * T * C;
    x += sequence * T * I;
    load_weights<false>(w, W + model * (L * C * K * C));
    for (int i = threadIdx.x; i < L * C; i += THREADS) bias[i] = b[model * (L * C) + i];
    for (int i = threadIdx.x; i < T * C; i += THREADS) whole[i] = i % C < I ? x[i / C * I + i % C] : 0.0f;
    cluster_sync();  // all blocks are there, and ready to be written to
    for (int l = 0; l < L; l++) {
        const bool second = l % 2 == 1;
        const float* from = second ? middle : whole;
        float* to = second ? whole : middle;
        for (int i = threadIdx.x; i < rows * G; i += THREADS) {
            const int t = first + i / G, g = i % G, at = t * C + 2 * g;
            float2 y = convolved(from, w + l * LAYER, t, g, T, -(1 << (l / 2)));
            y.x = rectified(y.x + bias[l * C + 2 * g]), y.y = rectified(y.y + bias[l * C + 2 * g + 1]);
            if (second) {
                store2(a + (l / 2) * plane + begin + at, y);
                float2 s;
                if (l == 1 && projected) {  // x again from outside: others may have overwritten it here
                    const float* weight = R + model * (C * I) + 2 * g * I;
                    s.x = r[model * C + 2 * g], s.y = r[model * C + 2 * g + 1];
                    for (int c = 0; c < I; c++) s.x += weight[c] * x[t * I + c], s.y += weight[I + c] * x[t * I + c];
                } else {
                    s = load2(whole + at);
                }
                y.x = rectified(y.x + s.x), y.y = rectified(y.y + s.y);
            }
            if (l == L - 1) {
                store2(last + begin + at, y);
            } else {
                store2(h + l * plane + begin + at, y);
                for (unsigned other = rank; other < CLUSTER; other++) store_at(other, to + at, y);
            }
        }
        if (l < L - 1) cluster_sync();
    }
}

// g (L + 1 or more, sequences, T, C): gradients before the ReLU of each layer, and behind them before the first block's.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS) temporal_backward(
    const float* W, const float* last, const float* h, const float* a, const float* dy, float* g_out, int T,
    int sequences, int each) {
    float *w = SHARED, *from = w + L * LAYER, *to = from + T * C, *skip = to + T * C;
    const unsigned rank = cluster_rank();
    const long long sequence = blockIdx.x / CLUSTER, model = sequence / each;
    const int stretch = (T + CLUSTER - 1) / CLUSTER, first = rank * stretch;
    const int rows = T - first < stretch ? T - first : stretch;
    const long long plane = (long long)sequences * T * C, begin = sequence * T * C;
    load_weights<true>(w, W + model * (L * C * K * C));
    cluster_sync();
    for (int i = threadIdx.x; i < rows * G; i += THREADS) {
        const int t = first + i / G, g = i % G, at = t * C + 2 * g;
        float2 y = load2(dy + begin + at), v = load2(last + begin + at);
        y.x = passed(y.x, v.x), y.y = passed(y.y, v.y);
        store2(skip + at - first * C, y);
        if (L == 2) store2(g_out + L * plane + begin + at, y);
        v = load2(a + (L / 2 - 1) * plane + begin + at);
        y.x = passed(y.x, v.x), y.y = passed(y.y, v.y);
        store2(g_out + (L - 1) * plane + begin + at, y);
        for (unsigned other = 0; other <= rank; other++) store_at(other, from + at, y);
    }
    cluster_sync();
    for (int l = L - 1; l > 0; l--) {
        const bool opens = l % 2 == 0;  // the first layer of its block: the residual's gradient joins in
        for (int i = threadIdx.x; i < rows * G; i += THREADS) {
            const int t = first + i / G, g = i % G, at = t * C + 2 * g;
            float2 below = load2(h + (l - 1) * plane + begin + at), inner = {1.0f, 1.0f};  // early: they take their time
            if (opens) inner = load2(a + (l / 2 - 1) * plane + begin + at);
            float2 y = convolved(from, w + l * LAYER, t, g, T, 1 << (l / 2));
            if (opens) {
                float2 s = load2(skip + at - first * C);
                y.x += s.x, y.y += s.y;
            }
            y.x = passed(y.x, below.x), y.y = passed(y.y, below.y);
            if (opens) {
                store2(skip + at - first * C, y);
                if (l == 2) store2(g_out + L * plane + begin + at, y);
                y.x = passed(y.x, inner.x), y.y = passed(y.y, inner.y);
            }
            store2(g_out + (l - 1) * plane + begin + at, y);
            if (l > 1)
                for (unsigned other = 0; other <= rank; other++) store_at(other, to + at, y);
        }
        if (l > 1) cluster_sync();
        float* turned = from;
        from = to, to = turned;
    }
}

// dW_l[o][k][c] = sum over rows of g[r][o] h_l[r - (K-1-k) dilation][c], and db_l[o] = sum of g[r][o].
// grid: (L or L + 1 with the residual, parts, models); a block has K C 2 threads, each a tap, an input, half of the outputs.
// rows: of a model, its sequences one after the other. sums (parts, models, size): dW, db, dR, dr one after the other.
extern "C" __global__ void __launch_bounds__(2 * K * C) temporal_weights(
    const float* g, const float* h, const float* x, float* sums, int T, int rows, int chunk, int size) {
    float *tile = SHARED, *columns = tile + ROWS * 2 * HALF;
    const int layer = blockIdx.x, part = blockIdx.y, model = blockIdx.z, models = gridDim.z;
    const bool residual = layer == L, from_x = layer == 0 || residual;
    const int side = threadIdx.x / (K * C), k = threadIdx.x % (K * C) / C, c = threadIdx.x % C;
    const int back = residual ? 0 : (K - 1 - k) << (layer / 2), width = from_x ? I : C;
    const bool mine = c < width && (!residual || k == K - 1);
    const long long begin = (long long)model * rows;
    g += ((long long)layer * models * rows + begin) * C;
    const float* inputs = from_x ? x + begin * I : h + ((long long)(layer - 1) * models * rows + begin) * C;
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
            const float v = mine && n < count && t >= back ? inputs[(long long)(start + n - back) * width + c] : 0.0f;
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
