// Flag: a block writes its data, then each rank a flag with the sequence (release); a reader's block acquires the
// flags of its namesakes, then reads. Cheap on the wire, dear in time: the release waits for all its data.
//
// A block owns the same places of every chunk on every rank, so one flag a block, source and phase suffices.
// Flags are not doubled as data is: a peer's next flag may replace this one unread, so a reader accepts later
// sequences too, compared as signed differences so that they may pass 2^32.

#define PAYLOAD 16
#define VECTOR 16
#define FLAG_STRIDE 64

struct Block {
  const Args& a;
  u32 sequence, parity;
  u32* failed;  // in shared memory

  __device__ __forceinline__ Block(const Args& args, u32* shared) : a(args), failed(shared) {}

  __device__ __forceinline__ u64 counter() const { return a.state + ARF_STATE_COUNTERS + 4ull * blockIdx.x; }

  __device__ __forceinline__ bool enter() {
    u32 before = load_gpu32(counter());
    if (threadIdx.x == 0) *failed = load_gpu64(a.state) != 0;
    sequence = next_sequence(before);
    parity = parity_of(sequence);
    __syncthreads();
    return *failed == 0;
  }
  __device__ __forceinline__ void leave() {
    __syncthreads();
    if (threadIdx.x == 0) store_gpu32(counter(), sequence);
  }

  // The flag that `source` raises for this block in a phase, as `holder` holds it.
  __device__ __forceinline__ u64 flag(u32 holder, u32 phase, u32 source) const {
#ifdef ARF_UNSAFE_REGIONS
    phase = 0;
#endif
    return a.slab[holder] + a.phase3 + ((u64)(phase * ARF_WORLD + source) * gridDim.x + blockIdx.x) * FLAG_STRIDE;
  }
  // All of this block's writes so far become visible before the flag: the barrier, then a release.
  __device__ __forceinline__ void raise(u32 phase) const {
    __syncthreads();
    stall(a, sequence, 5);
    u64 word = (u64)a.epoch << 32 | sequence;
    u32 t = threadIdx.x;
#if ARF_HOST
    if (t == 0) store_release_sys(flag(a.rank, phase, a.rank), word);
#else
    if (t > 0 && t < ARF_WORLD) store_release_sys(flag((a.rank + t) % ARF_WORLD, phase, a.rank), word);
#endif
  }
  __device__ __forceinline__ bool wait(u32 phase) const {
    u32 from = threadIdx.x;
    stall(a, sequence, 7);
    if (from < ARF_WORLD && from != a.rank) {
      u64 at = flag(ARF_HOST ? from : a.rank, phase, from);
      Spin spin = {0, 0};
      while (true) {
        u64 word = load_acquire_sys(at);
        if ((u32)(word >> 32) == a.epoch && reached((u32)word, sequence)) break;
        if (tired(spin) && give_up(spin, a)) {
          report(a, from, sequence);
          *failed = 1;
          break;
        }
      }
    }
    __syncthreads();
    return *failed == 0;
  }

  __device__ __forceinline__ void put(u64 at, const u32 (&w)[4], bool valid) const {
    if (valid) store_sys(at, w);
    stall(a, sequence, 11);
  }
  __device__ __forceinline__ void put_all(u64 phase, u64 i, const u32 (&w)[4], bool valid) const {
#if ARF_WRITER_HOLDS
    put(shared_outbox(a, phase, parity, 0, i), w, valid);
#else
#pragma unroll 1
    for (u32 k = 1; k < ARF_WORLD; ++k) put(shared_outbox(a, phase, parity, (a.rank + k) % ARF_WORLD, i), w, valid);
#endif
  }
};

__device__ __forceinline__ void sum_in_order(const Args& a, const u32 (&own)[4], const u64 (&from)[ARF_WORLD], u32 (&result)[4]) {
  u32 got[ARF_WORLD][4];
#pragma unroll
  for (u32 p = 0; p < ARF_WORLD; ++p)
    if (p != a.rank) load_sys(from[p], got[p]);
  Sum sum;
#pragma unroll
  for (u32 p = 0; p < ARF_WORLD; ++p) {
    u32 words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = p == a.rank ? own[j] : got[p][j];
    accumulate(sum, words, p == 0);
  }
  rounded(sum, result);
}

__device__ __forceinline__ void poison(const Args& a, u32 units, u32 chunks) {
  const u32 nan[4] = {ARF_NAN_WORD, ARF_NAN_WORD, ARF_NAN_WORD, ARF_NAN_WORD};
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < units; i += gridDim.x * blockDim.x)
    for (u32 c = 0; c < chunks; ++c) store_user<VECTOR>(a, ((u64)c * units + i) * PAYLOAD, 4, nan);
}

#if ARF_SHOT == 1
__device__ __forceinline__ void sum_of(const Block& b, u32 i, u32 (&result)[4]) {
  u32 own[4];
  u64 from[ARF_WORLD];
  load_user<VECTOR>(b.a, b.a.in, (u64)i * PAYLOAD, 4, own);
#pragma unroll
  for (u32 p = 0; p < ARF_WORLD; ++p) from[p] = shared_inbox(b.a, 0, b.parity, p, i);
  sum_in_order(b.a, own, from, result);
}
#endif

#ifdef ARF_FUSED
// Sums, and what follows them. Warps keep the places they have in EACH, and stay whole at the message's end.
__device__ __forceinline__ void fused(Block& b, bool good) {
  const Args& a = b.a;
  const u32 lane = threadIdx.x % 32, count = gridDim.x * blockDim.x / 32;
  const u32 first = (blockIdx.x * blockDim.x + threadIdx.x) / 32, tiles = (a.units + 31) / 32;
  Epilogue<32 * PAYLOAD, VECTOR> epilogue(a, b.sequence);
  if (good) {
    u32 last = first;
    for (u32 tile = first; tile < tiles; tile += count) {
      const u32 i = tile * 32 + lane;
      u32 result[4] = {0, 0, 0, 0};
      epilogue.prepare(tile, 0, (u64)i * PAYLOAD, 4);
      if (i < a.units) sum_of(b, i, result);
      epilogue.take(0, result);
      last = tile;
    }
    bool fine = first >= tiles || epilogue.normalise(0);
    for (u32 tile = first; fine && tile < last; tile += count) {
      epilogue.prepare(tile, 0, ((u64)tile * 32 + lane) * PAYLOAD, 4);
      fine = epilogue.normalise(0);
    }
    if (!fine) *b.failed = 1;
    __syncthreads();
    good = *b.failed == 0;
  }
  if (good) b.leave();
  else
    for (u32 tile = first; tile < tiles; tile += count) epilogue.spoil(tile, 0, ((u64)tile * 32 + lane) * PAYLOAD, 4);
}
#endif

#define EACH(i, n) for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += gridDim.x * blockDim.x)

__device__ __forceinline__ void body(const Args& a) {
  __shared__ u32 failed;
  Block b(a, &failed);
  const u32 units = a.units, chunk = a.chunk;
  (void)chunk;
  bool good = b.enter();
#if ARF_SHOT == 1
  if (good) {
    EACH(i, units) {
      u32 own[4];
      load_user<VECTOR>(a, a.in, (u64)i * PAYLOAD, 4, own);
      b.put_all(0, i, own, true);
    }
    b.raise(0);
    good = b.wait(0);
  }
#ifdef ARF_FUSED
  fused(b, good);
#else
  if (good) EACH(i, units) {
    u32 result[4];
    sum_of(b, i, result);
    store_user<VECTOR>(a, (u64)i * PAYLOAD, 4, result);
  }
  if (good) b.leave();
  else poison(a, units, 1);
#endif
#else
  if (good) {
    EACH(i, chunk) {
#pragma unroll 1
      for (u32 k = 1; k < ARF_WORLD; ++k) {
        u32 to = (a.rank + k) % ARF_WORLD;
        u64 unit = (u64)to * chunk + i;
        u32 words[4];
        load_user<VECTOR>(a, a.in, unit * PAYLOAD, 4, words);
        b.put(outbox(a, 0, b.parity, to, a.capacity, i), words, unit < units);
      }
    }
    b.raise(0);
    good = b.wait(0);
  }
  if (good) {
    EACH(i, chunk) {
      u64 unit = (u64)a.rank * chunk + i;
      if (unit >= units) break;
      u32 own[4], result[4];
      u64 from[ARF_WORLD];
      load_user<VECTOR>(a, a.in, unit * PAYLOAD, 4, own);
#pragma unroll
      for (u32 p = 0; p < ARF_WORLD; ++p) from[p] = inbox(a, 0, b.parity, p, a.capacity, i);
      sum_in_order(a, own, from, result);
      b.put_all(a.phase2, i, result, true);
      store_user<VECTOR>(a, unit * PAYLOAD, 4, result);
    }
    b.raise(1);
    good = b.wait(1);
  }
  if (good) EACH(i, chunk) {
#pragma unroll
    for (u32 p = 0; p < ARF_WORLD; ++p) {
      u64 unit = (u64)p * chunk + i;
      u32 words[4];
      if (p == a.rank || unit >= units) continue;
      load_sys(shared_inbox(a, a.phase2, b.parity, p, i), words);
      store_user<VECTOR>(a, unit * PAYLOAD, 4, words);
    }
  }
  if (good) b.leave();
  else poison(a, chunk, ARF_WORLD);
#endif
}

ARF_KERNEL(body)
