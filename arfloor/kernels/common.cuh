// What every protocol shares: arguments, memory accesses, sequence numbers, bounded spins, arithmetic.
//
// No header is included, so that NVRTC alone compiles it. Macros choose the build:
//   ARF_DTYPE 0 float32, 1 float16, 2 bfloat16     ARF_WORLD ranks          ARF_HOST 1: host path
//   ARF_SHOT 1, 2, or 4 (island-aware two-shot)    ARF_STAGED 1: one stream out, one in, at a time
//   ARF_PULL 1: readers fetch (flag only)          ARF_LINE 16 to 512       ARF_TAG64 1: 64-bit tags
//   ARF_QUANT 1: int8, 2: fp8 on the wire (line, one-shot; quantised.cuh)
//   ARF_FUSED 1, 2: residual add and RMSNorm follow (one-shot only; fused.cuh)
// For tests only: ARF_STALL (random stalls), ARF_TEAR (lines written in two halves, the tag first),
// ARF_COUNT_TEARS, and ARF_UNSAFE_HASH, _PARITY, _REGIONS, _SIGNED, _SLOTS, each of which removes a safeguard.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#ifndef ARF_STAGED
#define ARF_STAGED 0
#endif
#ifndef ARF_PULL
#define ARF_PULL 0
#endif
#ifndef ARF_TAG64
#define ARF_TAG64 0
#endif
#ifdef ARF_LINE  // bytes that travel and are checked together
#define UNIT ARF_LINE
#else
#define UNIT 16
#endif
#ifndef ARF_THREADS
#define ARF_THREADS (ARF_WORLD == 2 || (ARF_WORLD == 4 && ARF_SHOT == 1) ? 1024 : 512)
#endif

// Mirrored by arfloor.backends.ours.Args.
struct Args {
  u64 in;                // this rank's input and output, device addresses; may be equal
  u64 out;
  u64 nbytes;            // of the message
  u64 state;             // local memory: error word (u64), torn lines (u64), padding to 64 B, then a counter a warp
  u64 phase2, phase3;    // offsets of the second and third area in a region
  u64 spin_ns;           // a spin that lasts longer is an error
  u32 units;             // packets that hold the message; `chunk` of them belong to one owner
  u32 chunk;
  u32 tiles;             // warps' worth of packets in the message (one-shot) or a chunk (the others)
  u32 capacity;          // units (packets) that a source's part of a region holds
  u32 rank;
  u32 epoch;             // grows when ranks meet again after an error
  u32 lookahead;         // how many tiles a warp sends ahead of the one it waits for
  u32 alignment;         // of in, out: the largest power of two up to 16 that divides both
  u32 stall_ns;          // ARF_STALL: the longest stall
  u32 pace;              // SM cycles between the sends of consecutive tiles; 0: as fast as they go
  u32 lag;               // SM cycles from a send to the first poll, and of an odd rank from poll to poll
  u32 window;            // how many warps of a block poll at a time; 0: all
#ifdef ARF_FUSED         // see fused.cuh
  u64 residual, weight;  // device addresses; the message is rows of the same dtype
  u64 partials;          // local memory: `pieces` sums of squares a row, 8 bytes each (ARF_FUSED 1)
  u32 row;               // bytes of a row
  u32 pieces;            // ARF_FUSED 1: slots a row; 2: tiles a row, each of a warp
  float eps, inverse;    // inverse: 1 / elements of a row
#endif
  u64 slab[ARF_WORLD];   // where this plan's region of each rank's slab is mapped here
};

// ---------------------------------------------------------------------------------------- memory

// Lines and packets: one 16-byte access a lane. PTX calls a vector access several scalar ones in any order,
// so nothing here trusts 16 bytes to arrive as one: LL checks each 8, line checks a hash.
__device__ __forceinline__ void store_sys(u64 at, const u32 (&w)[4]) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
}
__device__ __forceinline__ void load_sys(u64 at, u32 (&w)[4]) {
  asm volatile("ld.relaxed.sys.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "l"(at)
               : "memory");
}
__device__ __forceinline__ u64 load_acquire_sys(u64 at) {
  u64 v;
  asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
  return v;
}
__device__ __forceinline__ void store_release_sys(u64 at, u64 v) {
  asm volatile("st.release.sys.global.b64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
__device__ __forceinline__ u32 load_gpu32(u64 at) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}
__device__ __forceinline__ u64 load_gpu64(u64 at) {
  u64 v;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
  return v;
}
__device__ __forceinline__ void store_gpu32(u64 at, u32 v) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}
__device__ __forceinline__ u64 now_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

__device__ __forceinline__ u64 cycles() {
  u64 t;
  asm volatile("mov.u64 %0, %clock64;" : "=l"(t));
  return t;
}

// ------------------------------------------------------------------------------------- sequences

// 0 marks memory nobody wrote. After 2^32 - 1, which is odd, comes 2, so that parity goes on alternating.
__device__ __forceinline__ u32 next_sequence(u32 s) { return s + 1 == 0 ? 2 : s + 1; }

__device__ __forceinline__ bool reached(u32 flag, u32 wanted) {
#ifdef ARF_UNSAFE_SIGNED
  return flag >= wanted;
#else
  return flag != 0 && (int)(flag - wanted) >= 0;
#endif
}

__device__ __forceinline__ u32 parity_of(u32 s) {
#ifdef ARF_UNSAFE_PARITY
  return 0;
#else
  return s & 1;
#endif
}

// ---------------------------------------------------------------------------------- errors, spins

#define ARF_STATE_COUNTERS 64  // offset of the first counter in the state

// The error word: kind in bits 0-7 (1: waited too long), rank waited for in 8-15, block in 16-31, sequence above.
__device__ __forceinline__ void report(const Args& a, u32 source, u32 sequence) {
  u64 word = 1ull | ((u64)source << 8) | ((u64)(blockIdx.x & 0xffff) << 16) | ((u64)sequence << 32);
  u64 old;
  asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(old)
               : "l"(a.state), "l"(0ull), "l"(word)
               : "memory");
}

struct Spin {
  u64 start;
  u32 polls;
};

// Called after a poll in vain: whether it is time to look at the clock.
__device__ __forceinline__ bool tired(Spin& spin) { return (++spin.polls & 63) == 0; }
// Then: true when the wait is over for good: too long, or another warp gave up already.
__device__ __forceinline__ bool give_up(Spin& spin, const Args& a) {
  u64 now = now_ns();
  if (spin.start == 0) spin.start = now;
  return now - spin.start > a.spin_ns || load_gpu64(a.state) != 0;
}

#ifdef ARF_STALL
__device__ __forceinline__ void stall(const Args& a, u32 sequence, u32 where) {
  u32 x = sequence * 0x9E3779B1u ^ (a.rank * 0x85EBCA77u + (blockIdx.x * 32 + threadIdx.x / 32) * 0xC2B2AE3Du + where);
  x ^= x >> 15; x *= 0x2C1B3C6Du; x ^= x >> 12; x *= 0x297A2D39u; x ^= x >> 15;
  if ((x & 15) != 0) return;  // one in 16, for up to stall_ns
  u64 until = now_ns() + (u64)(x >> 8) % (a.stall_ns + 1);
  while (now_ns() < until) { }
}
#else
#define stall(a, sequence, where) ((void)0)
#endif

// ------------------------------------------------------------------------------------- arithmetic

#if ARF_DTYPE == 0
#define ARF_PER_WORD 1
#define ARF_ITEM 4
#define ARF_NAN_WORD 0x7fffffffu
#else
#define ARF_PER_WORD 2
#define ARF_ITEM 2
#define ARF_NAN_WORD 0x7fff7fffu
#endif

// The elements of a 32-bit word as floats, and back, rounded to nearest even.
__device__ __forceinline__ void unpack(u32 w, float (&f)[ARF_PER_WORD]) {
#if ARF_DTYPE == 0
  f[0] = __uint_as_float(w);
#elif ARF_DTYPE == 1
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(f[0]), "=f"(f[1]) : "r"(w));
#else
  f[0] = __uint_as_float(w << 16);
  f[1] = __uint_as_float(w & 0xffff0000u);
#endif
}
__device__ __forceinline__ u32 pack(const float (&f)[ARF_PER_WORD]) {
  u32 w;
#if ARF_DTYPE == 0
  w = __float_as_uint(f[0]);
#elif ARF_DTYPE == 1
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(f[1]), "f"(f[0]));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(f[1]), "f"(f[0]));
#endif
  return w;
}

// The own contribution stands in its place among the others'; the first term is taken as it is: 0 + -0 would
// lose a sign.
struct Sum {
  float f[4][ARF_PER_WORD];
};

// sum = words, when first; else sum += words.
__device__ __forceinline__ void accumulate(Sum& sum, const u32 (&w)[4], bool first) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float f[ARF_PER_WORD];
    unpack(w[j], f);
#pragma unroll
    for (int e = 0; e < ARF_PER_WORD; ++e) sum.f[j][e] = first ? f[e] : sum.f[j][e] + f[e];
  }
}
__device__ __forceinline__ void rounded(const Sum& sum, u32 (&w)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) w[j] = pack(sum.f[j]);
}

// ------------------------------------------------------------------------------ the user's buffers

// What a vector access cannot do: buffers less aligned than it, and the message's tail, element by element.
// Kept out of line: a kernel that runs between matrix products finds its code gone from the caches, and
// fetches what it steps over too.
__device__ __noinline__ uint4 load_tail(u64 from, u64 bytes, u32 words) {
  u32 w[4] = {0, 0, 0, 0};
#pragma unroll
  for (u32 j = 0; j < 4; ++j) {
    if (j >= words) break;
#if ARF_ITEM == 4
    if (4 * j < bytes) w[j] = *(const u32*)(from + 4 * j);
#else
    if (4 * j < bytes) w[j] = *(const u16*)(from + 4 * j);
    if (4 * j + 2 < bytes) w[j] |= (u32)(*(const u16*)(from + 4 * j + 2)) << 16;
#endif
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}
__device__ __noinline__ void store_tail(u64 to, u64 bytes, u32 words, uint4 v) {
  const u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (u32 j = 0; j < 4; ++j) {
    if (j >= words) break;
#if ARF_ITEM == 4
    if (4 * j < bytes) *(u32*)(to + 4 * j) = w[j];
#else
    if (4 * j < bytes) *(u16*)(to + 4 * j) = (u16)w[j];
    if (4 * j + 2 < bytes) *(u16*)(to + 4 * j + 2) = (u16)(w[j] >> 16);
#endif
  }
}

// `words` 32-bit words of the message from byte `at`; what lies beyond its end reads as zero. VECTOR: the
// bytes one access moves.
template <int VECTOR>
__device__ __forceinline__ void load_user(const Args& a, u64 base, u64 at, u32 words, u32 (&w)[4]) {
  w[0] = w[1] = w[2] = w[3] = 0;
  if (__builtin_expect(at + words * 4 <= a.nbytes && a.alignment >= VECTOR, 1)) {
    if (VECTOR == 16) {
      uint4 v = *(const uint4*)(base + at);
      w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else if (VECTOR == 8) {
      uint2 v = *(const uint2*)(base + at);
      w[0] = v.x, w[1] = v.y;
      if (words == 4) {
        uint2 u = *(const uint2*)(base + at + 8);
        w[2] = u.x, w[3] = u.y;
      }
    } else {
#pragma unroll
      for (u32 j = 0; j < 4; ++j)
        if (j < words) w[j] = *(const u32*)(base + at + 4 * j);
    }
  } else if (at < a.nbytes) {
    uint4 v = load_tail(base + at, a.nbytes - at, words);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
  }
}

template <int VECTOR>
__device__ __forceinline__ void store_user(const Args& a, u64 at, u32 words, const u32 (&w)[4]) {
  u64 base = a.out;
  if (__builtin_expect(at + words * 4 <= a.nbytes && a.alignment >= VECTOR, 1)) {
    if (VECTOR == 16) {
      *(uint4*)(base + at) = make_uint4(w[0], w[1], w[2], w[3]);
    } else if (VECTOR == 8) {
      *(uint2*)(base + at) = make_uint2(w[0], w[1]);
      if (words == 4) *(uint2*)(base + at + 8) = make_uint2(w[2], w[3]);
    } else {
#pragma unroll
      for (u32 j = 0; j < 4; ++j)
        if (j < words) *(u32*)(base + at + 4 * j) = w[j];
    }
  } else if (at < a.nbytes) {
    store_tail(base + at, a.nbytes - at, words, make_uint4(w[0], w[1], w[2], w[3]));
  }
}

// ------------------------------------------------------------------------------ areas of a slab region

// Who holds what is in transit: the writer when memory is the host's, or when readers pull; else the reader.
#define ARF_WRITER_HOLDS (ARF_HOST || ARF_PULL)

// Place i of a part of a phase's area at `base`; an area has two buffers of `parts` parts of `capacity` units.
__device__ __forceinline__ u64 place(u64 base, u32 parity, u32 parts, u32 part, u64 capacity, u64 i) {
  return base + ((u64)(parity * parts + part) * capacity + i) * UNIT;
}
// Where this rank puts what `to` alone reads, and where it finds what `from` put for it alone.
__device__ __forceinline__ u64 outbox(const Args& a, u64 phase, u32 parity, u32 to, u64 capacity, u64 i) {
  if (ARF_WRITER_HOLDS) return place(a.slab[a.rank] + phase, parity, ARF_WORLD, to, capacity, i);
  return place(a.slab[to] + phase, parity, ARF_WORLD, a.rank, capacity, i);
}
__device__ __forceinline__ u64 inbox(const Args& a, u64 phase, u32 parity, u32 from, u64 capacity, u64 i) {
  if (ARF_WRITER_HOLDS) return place(a.slab[from] + phase, parity, ARF_WORLD, a.rank, capacity, i);
  return place(a.slab[a.rank] + phase, parity, ARF_WORLD, from, capacity, i);
}
// The same for what everyone reads: a writer that holds it writes it once.
__device__ __forceinline__ u64 shared_outbox(const Args& a, u64 phase, u32 parity, u32 to, u64 i) {
  if (ARF_WRITER_HOLDS) return place(a.slab[a.rank] + phase, parity, 1, 0, a.capacity, i);
  return outbox(a, phase, parity, to, a.capacity, i);
}
__device__ __forceinline__ u64 shared_inbox(const Args& a, u64 phase, u32 parity, u32 from, u64 i) {
  if (ARF_WRITER_HOLDS) return place(a.slab[from] + phase, parity, 1, 0, a.capacity, i);
  return inbox(a, phase, parity, from, a.capacity, i);
}

#ifdef ARF_UNSAFE_REGIONS
#define PHASE2 0
#else
#define PHASE2 a.phase2
#endif

#define ARF_KERNEL(body)                                                                                 \
  extern "C" __global__ void __launch_bounds__(ARF_THREADS) all_reduce(const __grid_constant__ Args a) { \
    body(a);                                                                                             \
  }
