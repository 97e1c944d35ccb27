// One image's answer of a VGG with its head, in one kernel, for GPUs with thread block clusters: batch 1 is latency.
//
//     conv, ReLU, conv, pool, ReLU, conv, ReLU, conv, pool, ReLU, w1, ReLU, w2, ReLU, w3            (see fuse.py)
//
// A cluster has an image, a block a strip of its rows and one of HALVES parts of the output channels. A layer's result
// is written into the shared memory of the blocks that will look at it: those of the same strip, and of the strips
// above and below where a row is at the edge; a barrier ends the layer. A thread has four neighbouring pixels and Q
// channels, of a part of the input channels where there are more threads than that; the parts are summed up in order.
// Everything that does not depend on the image lies ready in `packed`, for each block as its shared memory will have
// it. All arithmetic is float32.
// Behind cluster.cu. H and W are multiples of 4. Given by the compiler's command line: D depth, C channels, H and W of
// the image, HIDDEN, OUTPUTS, CLUSTER, HALVES, Q, THREADS.

#define STRIPS (CLUSTER / HALVES)
#define FOURS(n) (((n) + 3) / 4 * 4)
#define UNITS ((H / 4 + STRIPS - 1) / STRIPS)  // rows of a strip after both poolings
#define ROWS1 (4 * UNITS)
#define ROWS2 (2 * UNITS)
#define STRIDE1 (FOURS(W) + 4)  // of a row: a column of zeros on the left, some on the right
#define STRIDE2 (FOURS(W / 2) + 4)
#define OWN ((C + HALVES - 1) / HALVES)  // output channels of a block
#define OG ((OWN + Q - 1) / Q)
#define TAPS FOURS(3 * Q)  // a row of a kernel for Q channels
#define CONV(in) ((in) * 3 * OG * TAPS)
#define FEATURES (OG * Q * UNITS * (W / 4))  // of a block
#define IMAGE (D * (ROWS1 + 2) * STRIDE1)
#define PLANES1 (C * (ROWS1 + 2) * STRIDE1)
#define PLANES2 (C * (ROWS2 + 2) * STRIDE2)
#define FIRST FOURS(CONV(D) + 4 * OG * Q)  // numbers that are fetched first: the first kernel and all biases
#define HEAD (FEATURES * HIDDEN + HIDDEN + HIDDEN * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS)
#define PACKED (FIRST + 3 * CONV(C) + FOURS(HEAD))

// Sums of products, part by part of the input channels, into scratch[pixel and channel][part and place].
template <int IN, int ROWS, int WIDE, int STRIDE>
struct Convolution {
    static constexpr int ACROSS = FOURS(WIDE) / 4, ITEMS = ROWS * ACROSS * OG;
    static constexpr int MOST = ITEMS >= THREADS ? 1 : THREADS / ITEMS, PARTS = MOST < IN ? MOST : IN;
    static constexpr int EACH = (IN + PARTS - 1) / PARTS, ALL = PARTS * ITEMS, STEP = ALL + 8;  // 8: other banks

    static __device__ __forceinline__ void run(const float* in, const float* w, float* scratch) {
        for (int i = threadIdx.x; i < ALL; i += THREADS) {
            const int item = i % ITEMS, begin = i / ITEMS * EACH, end = begin + EACH < IN ? begin + EACH : IN;
            const int og = item / (ROWS * ACROSS), row = item / ACROSS % ROWS, at = 4 * (item % ACROSS);
            float sum[Q][4] = {};
            for (int c = begin; c < end; c++) {
                UNROLL for (int ky = 0; ky < 3; ky++) {
                    const float* from = in + (c * (ROWS + 2) + row + ky) * STRIDE + at;
                    const float* kernel = w + ((c * 3 + ky) * OG + og) * TAPS;
                    const float4 u = *(const float4*)from;
                    const float2 v = load2(from + 4);
                    const float x[6] = {u.x, u.y, u.z, u.w, v.x, v.y};
                    float k[TAPS];
                    UNROLL for (int n = 0; n < TAPS; n += 4) *(float4*)(k + n) = *(const float4*)(kernel + n);
                    UNROLL for (int kx = 0; kx < 3; kx++)
                        UNROLL for (int q = 0; q < Q; q++)
                            UNROLL for (int p = 0; p < 4; p++) sum[q][p] += k[kx * Q + q] * x[p + kx];
                }
            }
            UNROLL for (int q = 0; q < Q; q++)
                UNROLL for (int p = 0; p < 4; p++) scratch[(4 * q + p) * STEP + i] = sum[q][p];
        }
    }

    // The result for the channel n of this block at a pixel.
    static __device__ __forceinline__ float total(const float* scratch, int n, int row, int column) {
        const int item = (n / Q * ROWS + row) * ACROSS + column / 4;
        const float* from = scratch + (4 * (n % Q) + column % 4) * STEP + item;
        float sum = 0.0f;
        UNROLL for (int part = 0; part < PARTS; part++) sum += from[part * ITEMS];
        return sum;
    }

    static __device__ __forceinline__ float pooled(const float* scratch, int n, int row, int column) {
        const float above = larger(total(scratch, n, 2 * row, 2 * column), total(scratch, n, 2 * row, 2 * column + 1));
        const float below = larger(total(scratch, n, 2 * row + 1, 2 * column), total(scratch, n, 2 * row + 1, 2 * column + 1));
        return larger(above, below);
    }
};

// A number for the planes (C, ROWS + 2, STRIDE) of every block that looks at this row.
template <int ROWS, int STRIDE>
__device__ __forceinline__ void publish(float* planes, int channel, int row, int column, float v, int strip) {
    float* plane = planes + channel * (ROWS + 2) * STRIDE + column + 1;
    UNROLL for (int half = 0; half < HALVES; half++) {
        store_at(strip * HALVES + half, plane + (row + 1) * STRIDE, v);
        if (row == 0 && strip > 0) store_at((strip - 1) * HALVES + half, plane + (ROWS + 1) * STRIDE, v);
        if (row == ROWS - 1 && strip + 1 < STRIPS) store_at((strip + 1) * HALVES + half, plane, v);
    }
}

__device__ __forceinline__ void fetch(float* to, const float* from, int count) {
    for (int i = 4 * threadIdx.x; i < count; i += 4 * THREADS) fetch4(to + i, from + i);
    end_of_group();
}

// x (images, D, H, W) -> y (images, OUTPUTS); packed (CLUSTER, PACKED). grid: CLUSTER blocks for each image.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS) image_answer(
    const float* x, const float* packed, float* y) {
    float *w1 = SHARED, *biases = w1 + CONV(D), *w2 = w1 + FIRST, *w3 = w2 + CONV(C), *w4 = w3 + CONV(C);
    float *head = w4 + CONV(C), *image = head + FOURS(HEAD), *a = image + IMAGE, *b = a + PLANES1, *e = b + PLANES2;
    float *scratch = e + PLANES2, *gathered = a, *features = b;  // the last two: when nobody looks at a and b any more
    const unsigned rank = cluster_rank();
    const int strip = rank / HALVES, half = rank % HALVES, top = strip * ROWS1;
    const int own = top >= H ? 0 : C - half * OWN < OWN ? C - half * OWN : OWN;  // channels; of an empty strip none
    const long long which = blockIdx.x / CLUSTER;
    packed += (long long)rank * PACKED;
    fetch(w1, packed, FIRST);
    fetch(w2, packed + FIRST, PACKED - FIRST);
    for (int i = threadIdx.x; i < PLANES1 + 2 * PLANES2; i += THREADS) a[i] = 0.0f;
    for (int i = threadIdx.x; i < IMAGE; i += THREADS) {
        const int column = i % STRIDE1 - 1, row = top - 1 + i / STRIDE1 % (ROWS1 + 2), c = i / (STRIDE1 * (ROWS1 + 2));
        const bool inside = column >= 0 && column < W && row >= 0 && row < H;
        image[i] = inside ? x[((which * D + c) * H + row) * W + column] : 0.0f;
    }
    wait_for_groups<1>();
    cluster_sync();  // all blocks are there, their planes are zero

    typedef Convolution<D, ROWS1, W, STRIDE1> One;
    One::run(image, w1, scratch);
    block_sync();
    for (int i = threadIdx.x; i < own * ROWS1 * W; i += THREADS) {
        const int n = i / (ROWS1 * W), row = i / W % ROWS1, column = i % W;
        const float v = rectified(One::total(scratch, n, row, column) + biases[n]);
        publish<ROWS1, STRIDE1>(a, half * OWN + n, row, column, v, strip);
    }
    wait_for_groups<0>();
    cluster_sync();

    typedef Convolution<C, ROWS1, W, STRIDE1> Two;
    Two::run(a, w2, scratch);
    block_sync();
    for (int i = threadIdx.x; i < own * ROWS2 * (W / 2); i += THREADS) {
        const int n = i / (ROWS2 * (W / 2)), row = i / (W / 2) % ROWS2, column = i % (W / 2);
        const float v = rectified(Two::pooled(scratch, n, row, column) + biases[OG * Q + n]);
        publish<ROWS2, STRIDE2>(b, half * OWN + n, row, column, v, strip);
    }
    cluster_sync();

    typedef Convolution<C, ROWS2, W / 2, STRIDE2> Three;
    Three::run(b, w3, scratch);
    block_sync();
    for (int i = threadIdx.x; i < own * ROWS2 * (W / 2); i += THREADS) {
        const int n = i / (ROWS2 * (W / 2)), row = i / (W / 2) % ROWS2, column = i % (W / 2);
        const float v = rectified(Three::total(scratch, n, row, column) + biases[2 * OG * Q + n]);
        publish<ROWS2, STRIDE2>(e, half * OWN + n, row, column, v, strip);
    }
    cluster_sync();

    Three::run(e, w4, scratch);
    block_sync();
    for (int i = threadIdx.x; i < FEATURES; i += THREADS) {
        const int n = i / (UNITS * (W / 4)), row = i / (W / 4) % UNITS, column = i % (W / 4);
        features[i] = n < own ? rectified(Three::pooled(scratch, n, row, column) + biases[3 * OG * Q + n]) : 0.0f;
    }
    block_sync();

    constexpr int PARTS = THREADS / HIDDEN > 1 ? THREADS / HIDDEN : 1;
    for (int i = threadIdx.x; i < PARTS * HIDDEN; i += THREADS) {
        float sum = 0.0f;
        UNROLL for (int n = i / HIDDEN; n < FEATURES; n += PARTS) sum += features[n] * head[n * HIDDEN + i % HIDDEN];
        scratch[i] = sum;
    }
    block_sync();
    for (int j = threadIdx.x; j < HIDDEN; j += THREADS) {
        float sum = 0.0f;
        UNROLL for (int part = 0; part < PARTS; part++) sum += scratch[part * HIDDEN + j];
        store_at(0, gathered + rank * HIDDEN + j, sum);
    }
    cluster_sync();
    if (rank != 0) return;

    head += FEATURES * HIDDEN;
    float *hidden = scratch, *later = scratch + HIDDEN;
    for (int j = threadIdx.x; j < HIDDEN; j += THREADS) {
        float sum = head[j];
        UNROLL for (int other = 0; other < CLUSTER; other++) sum += gathered[other * HIDDEN + j];
        hidden[j] = rectified(sum);
    }
    last_block_sync();
    head += HIDDEN;
    for (int j = threadIdx.x; j < HIDDEN; j += THREADS) {
        float sum = head[HIDDEN * HIDDEN + j];
        UNROLL for (int c = 0; c < HIDDEN; c++) sum += head[c * HIDDEN + j] * hidden[c];
        later[j] = rectified(sum);
    }
    last_block_sync();
    head += HIDDEN * HIDDEN + HIDDEN;
    for (int j = threadIdx.x; j < OUTPUTS; j += THREADS) {
        float sum = head[HIDDEN * OUTPUTS + j];
        UNROLL for (int c = 0; c < HIDDEN; c++) sum += head[c * OUTPUTS + j] * later[c];
        y[which * OUTPUTS + j] = sum;
    }
}
