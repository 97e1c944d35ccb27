// The gradient of a 3 x 3 convolution's weights by tensor cores; the sum over pixels is the inner one. Behind
// conv_tile.cu.
//
//     dw_otc = sum over images and pixels p of  g_po u_{p+t,c},        u = x  or  relu(scale x + shift)
//
// Rows of the product are all pairs (tap, channel), in blocks of eight, columns the channels o. A group of warps has a
// band at a time: the tile of u and, one pixel after the other, the gradient; each warp has MT times 16 rows, and keeps
// their sums for all bands of its group. GROUPS of them are in a block: while one fetches, another multiplies. In the
// end their sums are added, in order, and each block leaves a part; `weight_sums` adds the parts. From the last band to
// the first: the kernel before has read the gradient from the first to the last, which is still in the cache.
// More of the command line: MT, WARPS (of a group), GROUPS, NORMED.

#define NT (P / 8)
#define ROWS8 (9 * PIECES)  // blocks of eight rows
#define GROUP (WARPS * 32)
#define GRADIENT (SIXTEENS * 16 * SPAN)
#define EIGHTS (2 * NT)

typedef float Products[MT][NT][4];

// The gradient's pixels of a band, zero beyond the image and the last pixel.
__device__ __forceinline__ void load_gradient(char* to, const uint4* image, int top, int thread) {
    constexpr int EACH = GROUP / PIECES, ALL = SIXTEENS * 16;
    const int piece = thread % PIECES, first = thread / PIECES, inside = (H - top < BAND ? H - top : BAND) * W;
    if (first >= EACH) return;
    for (int p = first; p < ALL; p += EACH)
        fetch_or_clear(to + p * SPAN + piece * 16, image + (top * W + p) * PIECES + piece, p < inside);
}

// Sixteen pixels at a time. The rows of a matrix in shared memory are pixels: both factors are turned as they are read.
__device__ __forceinline__ void multiply_band(Products& sums, const char* tile, const char* gradient, int warp) {
    const int lane = threadIdx.x % 32, half = lane / 8 % 2, eighth = lane % 8, pixel = lane / 16 * 8 + eighth;
    int rows[MT];  // where a lane's block of eight rows begins, from its pixel
    UNROLL for (int m = 0; m < MT; m++) {
        const int wanted = 2 * (warp * MT + m) + half, block = wanted < ROWS8 ? wanted : ROWS8 - 1, tap = block / PIECES;
        rows[m] = (tap / 3 * WIDE + tap % 3) * SPAN + block % PIECES * 16;
    }
    const Place from = place_of(tile), b = place_of(gradient) + (half * 8 + eighth) * SPAN + lane / 16 * 16;
    UNROLL2 for (int k = 0; k < SIXTEENS; k++) {
        const int p = k * 16 + pixel;
        const Place a = from + corner(p < PIXELS ? p : PIXELS - 1);  // beyond the last the gradient is zero
        unsigned columns[(EIGHTS + 3) / 4 * 4];
        load_all<EIGHTS, true>(columns, b + k * 16 * SPAN, 32);
        UNROLL for (int m = 0; m < MT; m++) {
            unsigned own[4];
            load_matrices<4, true>(own, a + rows[m]);
            UNROLL for (int n = 0; n < NT; n++) multiply16(sums[m][n], own, columns + 2 * n);
        }
    }
}

// The groups' sums through shared memory to the first group, in order.
__device__ __forceinline__ void gather(Products& sums, float* scratch, int group, int thread) {
    UNROLL for (int other = 1; other < GROUPS; other++) {
        block_sync();
        UNROLL for (int i = 0; i < MT * NT * 4; i++) {
            float* place = scratch + i * GROUP + thread;
            if (group == other) *place = sums[i / (NT * 4)][i / 4 % NT][i % 4];
        }
        block_sync();
        UNROLL for (int i = 0; i < MT * NT * 4; i++)
            if (group == 0) sums[i / (NT * 4)][i / 4 % NT][i % 4] += scratch[i * GROUP + thread];
    }
}

// Into (P, 9, P): lanes of a column write eight channels beside each other.
__device__ __forceinline__ void leave(float* part, const Products& sums, int warp) {
    const int lane = threadIdx.x % 32;
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int below = 0; below < 2; below++) {
            const int block = 2 * (warp * MT + m) + below;
            if (block >= ROWS8) continue;
            float* to = part + block * 8 + lane / 4;
            UNROLL for (int n = 0; n < NT; n++)
                UNROLL for (int j = 0; j < 2; j++)
                    to[(n * 8 + lane % 4 * 2 + j) * 9 * P] = sums[m][n][2 * below + j];
        }
}

// x and gradient (images, H, W, P), before (6, P) the table of x -> parts (blocks, P, 9, P).
extern "C" __global__ void __launch_bounds__(GROUPS* WARPS * 32, 1) convolution_weights(
    const uint4* x, const uint4* gradient, const float* before, float* parts, int images) {
    const int group = threadIdx.x / GROUP, thread = threadIdx.x % GROUP, warp = thread / 32;
    char *tile = (char*)SHARED + group * (TILE + GRADIENT), *pixels = tile + TILE;
    Products sums = {};
    clear_sides(tile, thread, GROUP);
    for (int band = images * BANDS - 1 - blockIdx.x * GROUPS - group; band >= 0; band -= gridDim.x * GROUPS) {
        const int top = band % BANDS * BAND;
        const long long image = (long long)(band / BANDS) * H * W * PIECES;
        load_gradient(pixels, gradient + image, top, thread);
        load_tile<GROUP, NORMED>(tile, x + image, before, top, thread);
        fetched();
        group_sync(group, GROUP);
        multiply_band(sums, tile, pixels, warp);
        group_sync(group, GROUP);
    }
    gather(sums, (float*)SHARED, group, thread);
    if (group == 0) leave(parts + (long long)blockIdx.x * 9 * P * P, sums, warp);
}

// parts (count, 9 P P) -> dw in bfloat16: 32 numbers a block, eight threads share a number's parts.
extern "C" __global__ void __launch_bounds__(256) weight_sums(const float* parts, unsigned short* dw, int count) {
    float* scratch = SHARED;
    const int at = blockIdx.x * 32 + threadIdx.x % 32, slice = threadIdx.x / 32;
    float sum = 0.0f;
    UNROLL8 for (int n = slice; n < count; n += 8) sum += parts[(long long)n * 9 * P * P + at];
    scratch[threadIdx.x] = sum;
    block_sync();
    if (slice > 0) return;
    UNROLL for (int n = 1; n < 8; n++) sum += scratch[n * 32 + threadIdx.x];
    dw[at] = (unsigned short)rounded(sum, sum);
}
