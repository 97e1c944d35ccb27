// A band of an image in shared memory, as a convolution's products look at it. Behind mma.cu.
//
// A picture is (images, H, W, P) in bfloat16, a pixel P / 8 pieces of 16 bytes. A band has BAND of an image's rows; its
// tile has a row above and below and a column left and right of them as well, zero where the image ends. Pixels lie
// SPAN bytes apart, an odd number of pieces, so that the eight rows of a matrix, pixels or weights, begin in eight
// different groups of banks. A thread always has the same piece of a pixel: what belongs to its eight channels is read
// once. Given by the compiler's command line: P, H, W, BAND, FLIGHT (loads of a thread that are on their way at once).

#define PIECES (P / 8)
#define SPAN ((PIECES | 1) * 16)
#define WIDE (W + 2)
#define PIXELS (BAND * W)
#define BANDS ((H + BAND - 1) / BAND)
#define SIXTEENS ((PIXELS + 15) / 16)
#define TILE ((BAND + 2) * WIDE * SPAN)

// Where in the tile pixel p of the band is, seen from the tap at the upper left; its own place is CENTRE further.
#define CENTRE ((WIDE + 1) * SPAN)
__device__ __forceinline__ int corner(int p) { return (p / W * WIDE + p % W) * SPAN; }

// Rows of a table (rows, P) of floats, for the eight channels of a piece.
__device__ __forceinline__ void of_piece(const float* table, int row, int piece, float* to) {
    UNROLL for (int j = 0; j < 8; j++) to[j] = table[row * P + piece * 8 + j];
}

// relu(scale v + shift), eight channels of a pixel.
__device__ __forceinline__ uint4 normalised(const uint4& v, const float* scale, const float* shift) {
    float z[8];
    numbers(v, z);
    UNROLL for (int j = 0; j < 8; j++) z[j] = rectified(z[j] * scale[j] + shift[j]);
    return {rounded(z[0], z[1]), rounded(z[2], z[3]), rounded(z[4], z[5]), rounded(z[6], z[7])};
}

// A piece on its way while the thread goes on, or zeros.
__device__ __forceinline__ void fetch_or_clear(char* to, const uint4* from, bool inside) {
    if (inside) fetch4((float*)to, (const float*)from);
    else *(uint4*)to = {0, 0, 0, 0};
}
// All that this thread has fetched is there; a barrier tells the others.
__device__ __forceinline__ void fetched() {
    end_of_group();
    wait_for_groups<0>();
}

// The columns left and right of the tile's pixels: zero for good.
__device__ __forceinline__ void clear_sides(char* tile, int thread, int threads) {
    for (int i = thread; i < 2 * (BAND + 2) * PIECES; i += threads) {
        const int side = i / PIECES, row = side / 2, column = side % 2 * (W + 1);
        *(uint4*)(tile + (row * WIDE + column) * SPAN + i % PIECES * 16) = {0, 0, 0, 0};
    }
}

// The pixels and the rows above and below them, of the band that begins at row `top` of an image. NORM: what lies
// there is before a normalisation and a ReLU, whose scale and shift are rows 2 and 3 of the table. Else it is fetched.
template <int COUNT, bool NORM>
__device__ __forceinline__ void load_tile(char* tile, const uint4* image, const float* table, int top, int thread) {
    constexpr int EACH = COUNT / PIECES, ALL = (BAND + 2) * W;
    const int piece = thread % PIECES, first = thread / PIECES;
    if (first >= EACH) return;
    if constexpr (!NORM) {
        for (int p = first; p < ALL; p += EACH) {
            const int row = top - 1 + p / W;
            char* to = tile + corner(p) + SPAN + piece * 16;
            fetch_or_clear(to, image + (row * W + p % W) * PIECES + piece, row >= 0 && row < H);
        }
        return;
    }
    float scale[8], shift[8];
    of_piece(table, 2, piece, scale), of_piece(table, 3, piece, shift);
    for (int begin = first; begin < ALL; begin += FLIGHT * EACH) {
        uint4 v[FLIGHT];
        UNROLL for (int n = 0; n < FLIGHT; n++) {
            const int p = begin + n * EACH, row = top - 1 + p / W;
            v[n] = {0, 0, 0, 0};
            if (p < ALL && row >= 0 && row < H) v[n] = image[(row * W + p % W) * PIECES + piece];
        }
        UNROLL for (int n = 0; n < FLIGHT; n++) {
            const int p = begin + n * EACH, row = top - 1 + p / W;
            if (p >= ALL) continue;
            if (row >= 0 && row < H) v[n] = normalised(v[n], scale, shift);  // beyond the image it stays zero
            *(uint4*)(tile + corner(p) + SPAN + piece * 16) = v[n];
        }
    }
}
