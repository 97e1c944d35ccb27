// A 3 x 3 convolution of P channels to P, stride 1, zeros around, by tensor cores: a BatchNorm and a ReLU on the way in,
// sums for the next one on the way out. Behind conv_tile.cu.
//
//     y_po = sum over taps t and channels c of  u_{p+t,c} w_{otc},     u = x  or  relu(scale x + shift)
//     TURNED, the gradient of its input:  y_pc = sum over t, o of  x_{p-t,o} w_{otc}
//
// A block has all weights in shared memory, and one band after the other; what it stores is at least half of what it
// reads, and while it does either the other blocks of its multiprocessor multiply. A warp has MT times 16 pixels of the
// band and all channels: the pixels' matrices are read from the tile as it lies, moved by the tap. The result goes back
// through the tile, whose pixels nobody needs any more, so that memory is written in whole pieces, and the thread that
// writes a piece adds it up:
//
//     SUMS 1: of y and y^2, as rounded          SUMS 2: of dz and dz xhat, dz = y where scale v + shift > 0, v in `seen`
//
// into sums (2, P, parts), in a fixed order. More of the command line: MT, WARPS, BLOCKS (of a multiprocessor),
// NORMED, TURNED, SUMS.

#define THREADS_CONV (WARPS * 32)
#define EACH_CONV (THREADS_CONV / PIECES)  // pixels that are stored at once
#define NT (P / 8)
#define MATRIX (P * SPAN)  // a tap's weights

typedef float Products[MT][NT][4];

__device__ __forceinline__ void load_weights(char* weights, const uint4* kernel) {  // (out, taps, in)
    for (int i = threadIdx.x; i < 9 * P * PIECES; i += THREADS_CONV) {
        const int o = i / (9 * PIECES), tap = i / PIECES % 9;
        fetch_or_clear(weights + tap * MATRIX + o * SPAN + i % PIECES * 16, kernel + i, true);
    }
}

// The sixteens of channels, then the eight that are left of them.
__device__ __forceinline__ void multiply_band(Products& sums, const char* tile, const char* weights) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = lane / 8 % 2, eighth = lane % 8;
    Place a[MT];
    UNROLL for (int m = 0; m < MT; m++) {
        const int p = (warp * MT + m) * 16 + half * 8 + eighth;
        a[m] = place_of(tile + corner(p < PIXELS ? p : PIXELS - 1) + lane / 16 * 16);
    }
    constexpr int NEXT = TURNED ? 16 * SPAN : 32, STEP16 = TURNED ? 32 : 16 * SPAN, STEP8 = TURNED ? 64 : 32 * SPAN;
    const Place b16 = place_of(weights) + (TURNED ? (half * 8 + eighth) * SPAN + lane / 16 * 16
                                                  : (lane / 16 * 8 + eighth) * SPAN + half * 16);
    const Place b8 = place_of(weights) + P / 16 * NEXT + (TURNED ? eighth * SPAN + lane / 8 * 16 : lane * SPAN);
    UNROLL for (int tap = 0; tap < 9; tap++) {
        const int moved = (tap / 3 * WIDE + tap % 3) * SPAN, of_tap = (TURNED ? 8 - tap : tap) * MATRIX;
        UNROLL for (int k = 0; k < P / 16; k++) {
            unsigned b[(2 * NT + 3) / 4 * 4];
            load_all<2 * NT, TURNED>(b, b16 + of_tap + k * NEXT, STEP16);
            UNROLL for (int m = 0; m < MT; m++) {
                unsigned own[4];
                load_matrices<4, false>(own, a[m] + moved + k * 32);
                UNROLL for (int n = 0; n < NT; n++) multiply16(sums[m][n], own, b + 2 * n);
            }
        }
        if constexpr (P % 16 != 0) {
            unsigned b[(NT + 3) / 4 * 4];
            load_all<NT, TURNED>(b, b8 + of_tap, STEP8);
            UNROLL for (int m = 0; m < MT; m++) {
                unsigned own[2];
                load_matrices<2, false>(own, a[m] + moved + P / 16 * 32);
                UNROLL for (int n = 0; n < NT; n++) multiply8(sums[m][n], own, b + n);
            }
        }
    }
}

__device__ __forceinline__ void to_tile(char* tile, const Products& sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int below = 0; below < 2; below++) {
            const int p = (warp * MT + m) * 16 + below * 8 + lane / 4;
            if (p >= PIXELS) continue;
            char* pixel = tile + corner(p) + CENTRE + lane % 4 * 4;
            UNROLL for (int n = 0; n < NT; n++)
                *(unsigned*)(pixel + n * 16) = rounded(sums[m][n][2 * below], sums[m][n][2 * below + 1]);
        }
}

// Sums of this thread's eight channels; for SUMS 2 with rows (mean, 1/std, scale, shift) of the table.
__device__ __forceinline__ void add_up(float (&sums)[2][8], const uint4& v, const uint4& seen, const float* table, int piece) {
    float y[8], x[8];
    numbers(v, y);
    if constexpr (SUMS == 1) {
        UNROLL for (int j = 0; j < 8; j++) sums[0][j] += y[j], sums[1][j] += y[j] * y[j];
    } else {
        numbers(seen, x);
        UNROLL for (int j = 0; j < 8; j++) {
            const float* own = table + piece * 8 + j;
            const float dz = passed(y[j], x[j] * own[2 * P] + own[3 * P]);
            sums[0][j] += dz, sums[1][j] += dz * (x[j] - own[0]);
        }
    }
}

// The band's rows that are in the image, from the tile to memory.
__device__ __forceinline__ void store_band(
    const char* tile, uint4* y, const uint4* seen, const float* table, int rows, float (&sums)[2][8]) {
    const int piece = threadIdx.x % PIECES, first = threadIdx.x / PIECES, all = rows * W;
    if (first >= EACH_CONV) return;
    UNROLL4 for (int p = first; p < all; p += EACH_CONV) {
        const uint4 v = *(const uint4*)(tile + corner(p) + CENTRE + piece * 16);
        if constexpr (SUMS == 1) add_up(sums, v, v, table, piece);
        if constexpr (SUMS == 2) add_up(sums, v, seen[p * PIECES + piece], table, piece);
        y[p * PIECES + piece] = v;
    }
}

// All threads' sums, in the order of the threads, into (2, P, parts): a part for each block, zero in those that are left.
__device__ __forceinline__ void leave_sums(
    float* scratch, const float (&own)[2][8], const float* table, float* sums, int parts) {
    const int piece = threadIdx.x % PIECES, first = threadIdx.x / PIECES;
    if (first < EACH_CONV)
        UNROLL for (int which = 0; which < 2; which++)
            UNROLL for (int j = 0; j < 8; j++)
                scratch[(which * P + piece * 8 + j) * EACH_CONV + first] = own[which][j];
    block_sync();
    for (int c = threadIdx.x; c < 2 * P; c += THREADS_CONV) {
        float total = 0.0f;
        for (int n = 0; n < EACH_CONV; n++) total += scratch[c * EACH_CONV + n];
        if (SUMS == 2 && c >= P) total *= table[c];  // row 1: 1/std
        for (int part = blockIdx.x; part < parts; part += gridDim.x)
            sums[c * parts + part] = part == blockIdx.x ? total : 0.0f;
    }
}

// x, y and seen (images, H, W, P), kernel (P, 9, P); tables (6, P): `before` of x, `after` of seen. Any grid up to the
// number of parts.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) convolution(
    const uint4* x, const uint4* kernel, const float* before, const uint4* seen, const float* after, uint4* y, float* sums,
    int images, int parts) {
    char *tile = (char*)SHARED, *weights = tile + TILE;
    float own[2][8] = {};
    load_weights(weights, kernel);
    clear_sides(tile, threadIdx.x, THREADS_CONV);
    for (int band = blockIdx.x; band < images * BANDS; band += gridDim.x) {
        const int top = band % BANDS * BAND, rows = H - top < BAND ? H - top : BAND;
        const long long image = (long long)(band / BANDS) * H * W * PIECES, begin = image + top * W * PIECES;
        load_tile<THREADS_CONV, NORMED>(tile, x + image, before, top, threadIdx.x);
        fetched();  // the weights, too
        block_sync();
        Products products = {};
        multiply_band(products, tile, weights);
        block_sync();  // nobody looks at the tile's pixels any more
        to_tile(tile, products);
        block_sync();
        store_band(tile, y + begin, SUMS == 2 ? seen + begin : seen, after, rows, own);
        block_sync();
    }
    if constexpr (SUMS > 0) leave_sums((float*)tile, own, after, sums, parts);
}
