// What kernels of the tensor cores are made of: a warp's 8 x 8 matrices and their products. It stands behind cluster.cu
// and before their own file when they are compiled; the tests bring their own of these (EMULATED).
//
// Numbers are bfloat16 in memory, two in a word, eight in a piece of 16 bytes; sums are float32.

#ifndef EMULATED
#define UNROLL2 _Pragma("unroll 2")
#define UNROLL4 _Pragma("unroll 4")
#define UNROLL8 _Pragma("unroll 8")

typedef unsigned Place;  // in shared memory, in bytes
__device__ __forceinline__ Place place_of(const void* p) { return (Place)__cvta_generic_to_shared(p); }

// COUNT matrices; lane l says where row l % 8 of matrix l / 8 begins. A lane gets two neighbours of row lane / 4, or,
// FLIP, of column lane / 4.
template <int COUNT, bool FLIP>
__device__ __forceinline__ void load_matrices(unsigned* to, Place at) {
    if constexpr (COUNT == 4 && FLIP)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
    else if constexpr (COUNT == 4)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
    else if constexpr (COUNT == 2 && FLIP)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(to[0]), "=r"(to[1]) : "r"(at) : "memory");
    else if constexpr (COUNT == 2)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(to[0]), "=r"(to[1]) : "r"(at) : "memory");
    else if constexpr (FLIP)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(to[0]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(to[0]) : "r"(at) : "memory");
}

// c (16 x 8) += a (16 x 16) b (16 x 8), and with 8 in the place of the inner 16.
__device__ __forceinline__ void multiply16(float* c, const unsigned* a, const unsigned* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply8(float* c, const unsigned* a, const unsigned* b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

// Two numbers rounded to bfloat16, the first in the lower half.
__device__ __forceinline__ unsigned rounded(float first, float second) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
__device__ __forceinline__ float from_bits(unsigned bits) { return __uint_as_float(bits); }

// A barrier of some of a block's warps, so many threads.
__device__ __forceinline__ void group_sync(int group, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}
#endif

__device__ __forceinline__ float lower(unsigned both) { return from_bits(both << 16); }
__device__ __forceinline__ float upper(unsigned both) { return from_bits(both & 0xffff0000u); }

// A piece as eight numbers.
__device__ __forceinline__ void numbers(const uint4& v, float* to) {
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
    UNROLL for (int j = 0; j < 4; j++) to[2 * j] = lower(words[j]), to[2 * j + 1] = upper(words[j]);
}

// COUNT matrices, four at once; `step` bytes from one four to the next. Where three are left a fourth is read and
// nobody looks at it, so there is room for COUNT rounded up to four.
template <int COUNT, bool FLIP>
__device__ __forceinline__ void load_all(unsigned* to, Place at, int step) {
    UNROLL for (int n = 0; n + 4 <= COUNT; n += 4) load_matrices<4, FLIP>(to + n, at + n / 4 * step);
    constexpr int DONE = COUNT / 4 * 4, LEFT = COUNT % 4;
    if constexpr (LEFT > 0) load_matrices<LEFT == 3 ? 4 : LEFT, FLIP>(to + DONE, at + DONE / 4 * step);
}
