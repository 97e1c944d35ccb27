// CUDA kernels of tensor cores on a CPU: a thread is a fibre, which runs until it waits for others. The first thread, and
// the first warp, is as far ahead of the rest as barriers allow, and what is fetched arrives when it is waited for: what
// a missing barrier would spoil is spoilt every time.
#define EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define UNROLL
#define UNROLL2
#define UNROLL4
#define UNROLL8
#define SHARED ((float*)own_memory.data())
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
struct Index { volatile unsigned x, y, z; };
static Index threadIdx, blockIdx, gridDim;
static std::vector<uint4> own_memory;

// Under ThreadSanitizer fibres are threads of their own, which only barriers order: what is not ordered is said.
#ifdef WATCHED_thread
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
struct Own {  // while it lives, what the emulator itself reads and writes is nobody's concern
    Own() { AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0); }
    ~Own() { AnnotateIgnoreWritesEnd("", 0), AnnotateIgnoreReadsEnd("", 0); }
};
static std::vector<void*> known;  // the sanitizer's name of each fibre: blocks share them
static void watch_switch(void* to) { __tsan_switch_to_fiber(to, 1); }
static void* watched() { return __tsan_get_current_fiber(); }
static void* watched(unsigned fibre) {
    while (known.size() <= fibre) known.push_back(__tsan_create_fiber(0));
    return known[fibre];
}
static void forget() {  // it knows 8,128 threads at a time, those of all libraries together
    for (void* one : known) __tsan_destroy_fiber(one);
    known.clear();
}
static void before(void* later) { __tsan_release(later); }
static void behind(void* earlier) { __tsan_acquire(earlier); }
#else
struct Own { ~Own() {} };
static void watch_switch(void*) {}
static void* watched(unsigned = 0) { return nullptr; }
static void forget() {}
static void before(void*) {}
static void behind(void*) {}
#endif

struct Fibre {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
};
static void* watched_scheduler;
static char begun, ended;  // of a block
static std::vector<std::unique_ptr<Fibre>> fibres;
static ucontext_t scheduler;
static std::function<void()> work;
static bool moved;  // whether anybody got on since all were asked last

static void give_way() {
    const unsigned mine = threadIdx.x;
    watch_switch(watched_scheduler);
    swapcontext(&fibres[mine]->context, &scheduler);
}
static void begin() {
    behind(&begun);
    work();
    before(&ended);
    {
        Own own;
        fibres[threadIdx.x]->done = moved = true;
    }
    give_way();
}

struct Barrier {
    unsigned waiting = 0, round = 0;
    char order[2];
    void wait(unsigned count) {
        Own own;
        const unsigned mine = round;
        before(order + mine % 2);
        if (++waiting == count)
            waiting = 0, round++, moved = true;
        else
            while (round == mine) give_way();
        behind(order + mine % 2);
    }
};
static Barrier everybody;
static std::map<int, Barrier> groups;
#ifdef PLANTED_barrier  // a fault for test_sanitized.py to find
static void block_sync() {}
#else
static void block_sync() { everybody.wait(fibres.size()); }
#endif
#ifdef PLANTED_memory  // the same
static int part_of(int bytes) { return bytes / 2; }
#else
static int part_of(int bytes) { return bytes; }
#endif
static Barrier& of_group(int group) {
    Own own;
    return groups[group];
}
static void group_sync(int group, int threads) { of_group(group).wait(threads); }

struct Fetch { char *to; const char* from; };
static std::vector<std::vector<Fetch>> fetches;  // of each thread
static void fetch4(float* to, const float* from) { fetches[threadIdx.x].push_back({(char*)to, (const char*)from}); }
static void end_of_group() {}
template <int LEFT> static void wait_for_groups() {
    static_assert(LEFT == 0);
    for (auto [to, from] : fetches[threadIdx.x]) std::memcpy(to, from, 16);
    fetches[threadIdx.x].clear();
}

struct Warp {
    Barrier barrier;
    const char* rows[32];
    unsigned a[32][4], b[32][2];
};
static std::vector<Warp> warps;
static Warp& warp() { return warps[threadIdx.x / 32]; }
static void warp_sync() { warp().barrier.wait(32); }

typedef const char* Place;
static Place place_of(const void* p) { return (Place)p; }
static unsigned short number_at(const char* row, int n) { return ((const unsigned short*)row)[n]; }

template <int COUNT, bool FLIP> static void load_matrices(unsigned* to, Place at) {
    const int lane = threadIdx.x % 32, of = lane / 4, two = lane % 4 * 2;
    warp().rows[lane] = at;
    warp_sync();
    for (int n = 0; n < COUNT; n++) {
        const char** rows = warp().rows + 8 * n;
        if (lane / 8 == n && (size_t)at % 16) std::fprintf(stderr, "a row that is not aligned\n"), std::abort();
        const unsigned first = FLIP ? number_at(rows[two], of) : number_at(rows[of], two);
        to[n] = first | (FLIP ? number_at(rows[two + 1], of) : number_at(rows[of], two + 1)) << 16;
    }
    warp_sync();
}

static float from_bits(unsigned bits) {
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
}
static float half_of(unsigned both, int which) { return from_bits(which ? both & 0xffff0000u : both << 16); }

template <int INNER> static void multiplied(float* c, const unsigned* a, const unsigned* b) {
    const int lane = threadIdx.x % 32;
    std::memcpy(warp().a[lane], a, INNER / 4 * 4);
    std::memcpy(warp().b[lane], b, INNER / 8 * 4);
    warp_sync();
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4, below = i / 2, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < INNER; k++) {
            const float left = half_of(warp().a[row * 4 + k % 8 / 2][k / 8 * 2 + below], k % 2);
            c[i] += left * half_of(warp().b[column * 4 + k % 8 / 2][k / 8], k % 2);
        }
    }
    warp_sync();
}
static void multiply16(float* c, const unsigned* a, const unsigned* b) { multiplied<16>(c, a, b); }
static void multiply8(float* c, const unsigned* a, const unsigned* b) { multiplied<8>(c, a, b); }

static unsigned nearest(float v) {  // to even
    unsigned bits;
    std::memcpy(&bits, &v, 4);
    return std::isnan(v) ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
static unsigned rounded(float first, float second) { return nearest(first) | nearest(second) << 16; }

#include "cluster.cu"
#include "mma.cu"

// One block after the other.
template <class F> static void launch(int blocks, int threads, int bytes, F kernel) {
    Own own;
    watched_scheduler = watched();
    for (int each = 0; each < blocks; each++) {
        const unsigned nan = 0xffffffffu;
        own_memory = std::vector<uint4>((part_of(bytes) + 15) / 16, {nan, nan, nan, nan});  // no larger than it is asked for
        blockIdx.x = each, gridDim.x = blocks, work = kernel;
        everybody = {}, groups.clear(), fibres.clear(), warps.assign((threads + 31) / 32, {});
        fetches.assign(threads, {});
        for (int i = 0; i < threads; i++) {
            fibres.push_back(std::make_unique<Fibre>());
            Fibre& own = *fibres.back();
            own.stack.resize(1 << 16), own.done = false;
            getcontext(&own.context);
            own.context.uc_stack.ss_sp = own.stack.data(), own.context.uc_stack.ss_size = own.stack.size();
            makecontext(&own.context, begin, 0);
        }
        before(&begun);
        for (bool left = true, any = true; left;) {
            if (!any) std::fprintf(stderr, "threads wait for each other\n"), std::abort();
            left = any = false;
            for (int from = 0; from < threads; from += 32) {
                do {
                    moved = false;
                    for (int i = from; i < from + 32 && i < threads; i++)
                        if (!fibres[i]->done) {
                            threadIdx.x = i;
                            watch_switch(watched(i));
                            swapcontext(&scheduler, &fibres[i]->context);
                        }
                    any |= moved;
                } while (moved);
            }
            for (auto& fibre : fibres) left |= !fibre->done;
        }
        behind(&ended);
    }
    forget();
}
