// Enough of CUDA C++ to run the kernels on a CPU: a thread of the system is a block, its CUDA threads are fibers
// that take turns, and what synchronises a warp or a block waits for the others to arrive. It shows that indices,
// tags, sums and barriers are right; it says nothing about a GPU's memory model or speed.

#include <ucontext.h>
#include <sched.h>
#include <time.h>
#include <cmath>
#include <cstring>
#include <cstdint>
#include <thread>
#include <vector>
#include <atomic>
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __global__
#define __grid_constant__
#define __launch_bounds__(x)
#define __shared__ static thread_local
struct D3 { unsigned x, y, z; };
struct uint4 { unsigned x, y, z, w; }; struct uint2 { unsigned x, y; };
static inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d) { return {a, b, c, d}; }
static inline uint2 make_uint2(unsigned a, unsigned b) { return {a, b}; }
struct Lanes { int arrived = 0; int gen = 0; uint64_t val[32]; };
struct Meeting { int arrived = 0, gen = 0, n = 0, orv = 0, result = 0; };
struct Fiber { ucontext_t ctx; D3 tid; bool done = false; std::vector<char> stack; };
static thread_local std::vector<Fiber>* fibers; static thread_local std::vector<Lanes>* warps;
static thread_local Meeting* blk; static thread_local int cur; static thread_local ucontext_t sched_ctx;
static thread_local D3 bid, bdim, gdim;
#define threadIdx ((*fibers)[cur].tid)
#define blockIdx bid
#define blockDim bdim
#define gridDim gdim
static inline void yield_() { int me = cur; swapcontext(&(*fibers)[me].ctx, &sched_ctx); }
static inline Lanes& W() { return (*warps)[cur / 32]; }
static inline void wsync() { Lanes& w = W(); int g = w.gen; if (++w.arrived == 32) { w.arrived = 0; w.gen++; } else while (w.gen == g) yield_(); }
static inline uint64_t xch(uint64_t v, int partner) { W().val[cur % 32] = v; wsync(); uint64_t r = W().val[partner]; wsync(); return r; }
static inline unsigned __shfl_xor_sync(unsigned, unsigned v, int x) { return (unsigned)xch(v, (cur % 32) ^ x); }
static inline int __shfl_xor_sync(unsigned, int v, int x) { return (int)xch((unsigned)v, (cur % 32) ^ x); }
static inline unsigned long long __shfl_xor_sync(unsigned, unsigned long long v, int x) { return xch(v, (cur % 32) ^ x); }
static inline float __shfl_xor_sync(unsigned, float v, int x) { unsigned u; memcpy(&u, &v, 4); u = (unsigned)xch(u, (cur % 32) ^ x); memcpy(&v, &u, 4); return v; }
static inline int __any_sync(unsigned, int p) { W().val[cur % 32] = p != 0; wsync(); int r = 0; for (int i = 0; i < 32; i++) r |= (int)W().val[i]; wsync(); return r; }
static inline int __all_sync(unsigned, int p) { return !__any_sync(0, !p); }
static inline void __syncwarp() { wsync(); }
static inline int __syncthreads_or(int p) { Meeting& b = *blk; int g = b.gen; b.orv |= p != 0; if (++b.arrived == b.n) { b.arrived = 0; b.result = b.orv; b.orv = 0; b.gen++; } else while (b.gen == g) yield_(); return b.result; }
static inline void __syncthreads() { __syncthreads_or(0); }
static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static inline int __ffs(unsigned x) { return __builtin_ffs(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline unsigned long long now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static inline unsigned bf16(float f) { unsigned u = __float_as_uint(f); if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff; return (u + 0x7fff + (u >> 16 & 1)) >> 16; }
static inline unsigned rounded_to_integer(float x) { return x > 4e9f ? 0xffffffffu : (unsigned)nearbyintf(x); }

// The end of a fiber: it is never resumed.
static void finish() {
  (*fibers)[cur].done = true;
  while (true) yield_();
}
// All CUDA threads of one block, in turns, until each has finished.
static void run_fibers(void (*enter)(), unsigned index, unsigned blocks, unsigned threads) {
  const size_t stack = 1 << 16;
  std::vector<Fiber> made(threads);
  std::vector<Lanes> lanes(threads / 32);
  Meeting meeting;
  meeting.n = threads;
  fibers = &made, warps = &lanes, blk = &meeting;
  bid = {index, 0, 0}, bdim = {threads, 1, 1}, gdim = {blocks, 1, 1};
  for (unsigned i = 0; i < threads; i++) {
    made[i].tid = {i, 0, 0};
    made[i].stack.resize(stack);
    getcontext(&made[i].ctx);
    made[i].ctx.uc_stack.ss_sp = made[i].stack.data(), made[i].ctx.uc_stack.ss_size = stack;
    made[i].ctx.uc_link = &sched_ctx;
    makecontext(&made[i].ctx, enter, 0);
  }
  for (bool left = true; left;) {
    left = false;
    for (unsigned i = 0; i < threads; i++) {
      if (made[i].done) continue;
      cur = i;
      swapcontext(&sched_ctx, &made[i].ctx);
      left |= !made[i].done;
    }
    sched_yield();
  }
}

// A vector access is four, in any order.
static inline void store_words(unsigned* to, const unsigned (&w)[4]) {
  for (int q = 3; q >= 0; q--) __atomic_store_n(to + q, w[q], __ATOMIC_RELEASE);
}
static inline void load_words(const unsigned* from, unsigned (&w)[4]) {
  for (int q = 3; q >= 0; q--) w[q] = __atomic_load_n(from + q, __ATOMIC_ACQUIRE);
}
static inline unsigned long long compare_and_swap(unsigned long long* at, unsigned long long word) {
  unsigned long long old = 0;
  __atomic_compare_exchange_n(at, &old, word, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return old;
}
static inline unsigned atomicAdd(unsigned* at, unsigned v) { return __atomic_fetch_add(at, v, __ATOMIC_RELAXED); }
static inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long v) {
  return __atomic_fetch_add(at, v, __ATOMIC_RELAXED);
}
static inline unsigned atomicExch(unsigned* at, unsigned v) { return __atomic_exchange_n(at, v, __ATOMIC_RELAXED); }
// One who polls lets the other lanes go on, as independent thread scheduling does.
static inline unsigned long long polled(unsigned long long* at) {
  yield_();
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
