// What kernels for thread block clusters are made of; it stands before their own file when they are compiled.
//
// The tests build such kernels for a CPU, with threads for threads, and bring their own of these (EMULATED).

#ifndef EMULATED
extern __shared__ float4 shared_memory[];
#define SHARED ((float*)shared_memory)
#define UNROLL _Pragma("unroll")

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Two halves of a barrier: what is written between them need not be there for the others, and does not keep them waiting.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() { cluster_arrive(), cluster_wait(); }

__device__ __forceinline__ void block_sync() { __syncthreads(); }
__device__ __forceinline__ void last_block_sync() { __syncthreads(); }  // where the other blocks have gone

__device__ __forceinline__ unsigned place_at(unsigned rank, const float* local) {
    unsigned here = (unsigned)__cvta_generic_to_shared(local), there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    return there;
}

// One or two numbers to the same place of another block's shared memory.
__device__ __forceinline__ void store_at(unsigned rank, float* local, float v) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(place_at(rank, local)), "f"(v) : "memory");
}
__device__ __forceinline__ void store_at(unsigned rank, float* local, float2 v) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(place_at(rank, local)), "f"(v.x), "f"(v.y) : "memory");
}

// Four numbers from outside into shared memory, on their way while the thread goes on.
__device__ __forceinline__ void fetch4(float* to, const float* from) {
    unsigned there = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(there), "l"(from) : "memory");
}
__device__ __forceinline__ void end_of_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the last so many groups of this thread's are there; a barrier tells the others.
template <int LEFT>
__device__ __forceinline__ void wait_for_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
#endif

// A nan stays one, which a maximum would not leave.
__device__ __forceinline__ float rectified(float v) { return v < 0.0f ? 0.0f : v; }
__device__ __forceinline__ float passed(float v, float by) { return by > 0.0f ? v : 0.0f; }
__device__ __forceinline__ float larger(float u, float v) { return v > u || v != v ? v : u; }

__device__ __forceinline__ float2 load2(const float* p) { return *(const float2*)p; }
__device__ __forceinline__ void store2(float* p, float2 v) { *(float2*)p = v; }
