// A warp as a worker on self-validating packets (line, LL), for the shots of shots.cuh: no barrier anywhere.
//
// A warp owns the same places of every chunk in every phase, reads a place of the input before it writes it
// (so in place is safe), and keeps a sequence counter of its own. The grid is fixed for a plan, so that all
// counters of all ranks always agree. Buffers alternate by the sequence's parity: finishing operation s + 1
// needs every peer's s + 1, sent after its s ended, so a peer's s + 2 finds s read.
//
// Loops run over tiles (32 lanes' worth of packets), the same number of times for every lane of a warp.

#define TILE (32 / LANES)
#define FULL 0xffffffffu
#define NONE 0xffffffffu
#define ISLAND (ARF_WORLD / 2)
#if defined(ARF_FUSED) && ARF_FUSED == 2
#define ARF_BY_ROW 1
#else
#define ARF_BY_ROW 0
#endif

struct Worker {
  const Args& a;
  Codec codec;
  u32 own;           // this warp among the grid's: its counter
  u32 index, count;  // its first tile, and how far to the next
  u32 sequence, parity;
  u32 inner;  // this lane's packet within a tile
  u64 error, began;

  // Counter and error word are on their way from here on, beside the first loads of the input.
  __device__ __forceinline__ Worker(const Args& args) : a(args) {
    index = own = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    count = blockDim.x / 32 * gridDim.x;
#if ARF_BY_ROW
    index = threadIdx.x / 32 < a.pieces ? blockIdx.x * a.pieces + threadIdx.x / 32 : a.tiles;
    count = a.pieces * gridDim.x;
#endif
    inner = threadIdx.x % 32 / LANES;
    sequence = next_sequence(load_gpu32(a.state + ARF_STATE_COUNTERS + 4ull * own));
    error = load_gpu64(a.state);
    began = cycles();
    parity = parity_of(sequence);
    codec.sequence(sequence, a.epoch);
  }
  // False when an earlier operation failed.
  __device__ __forceinline__ bool fine() const { return !__any_sync(FULL, error != 0); }

  __device__ __forceinline__ void leave() const {
    if (threadIdx.x % 32 == 0) store_gpu32(a.state + ARF_STATE_COUNTERS + 4ull * own, sequence);
  }
  // Waits until so many cycles have passed since `since`; not at all for 0.
  __device__ __forceinline__ static void hold(u64 since, u32 wanted) {
    if (wanted != 0)
      while (cycles() - since < wanted) { }
  }
  // The row that this warp has in a round, and where the message has this lane's part of a packet.
  __device__ __forceinline__ u32 row(u32 round) const { return blockIdx.x + round * gridDim.x; }
  __device__ __forceinline__ u64 at(u32 round, u64 unit) const {
#if ARF_BY_ROW
    return (u64)row(round) * a.row + threadIdx.x / 32 * (TILE * PAYLOAD) + codec.at(inner);
#else
    return codec.at(unit);
#endif
  }
  __device__ __forceinline__ void load_at(u64 place, u32 (&w)[4]) const {
    load_user<VECTOR>(a, a.in, place, codec.words(), w);
  }
  __device__ __forceinline__ void load(u64 unit, u32 (&w)[4]) const {
    load_user<VECTOR>(a, a.in, codec.at(unit), codec.words(), w);
  }
  __device__ __forceinline__ void save(u64 unit, const u32 (&w)[4]) const {
    store_user<VECTOR>(a, codec.at(unit), codec.words(), w);
  }

  // This lane's part of a packet's place.
  __device__ __forceinline__ u64 mine(u64 at) const {
#if LANES > 1
    at += codec.lane * 16;
#endif
    return at;
  }
  __device__ __forceinline__ u64 out(u64 phase, u32 to, u64 capacity, u64 i) const {
    return mine(outbox(a, phase, parity, to, capacity, i));
  }
  __device__ __forceinline__ u64 in(u64 phase, u32 from, u64 capacity, u64 i) const {
    return mine(inbox(a, phase, parity, from, capacity, i));
  }
  __device__ __forceinline__ u64 out_all(u64 phase, u32 to, u64 i) const {
    return mine(shared_outbox(a, phase, parity, to, i));
  }
  __device__ __forceinline__ u64 in_all(u64 phase, u32 from, u64 i) const {
    return mine(shared_inbox(a, phase, parity, from, i));
  }

  // Polls until packet p of every bit p of `pending` is whole and new; `pending` is the same in all lanes of
  // a packet. Bit p stands for rank first + p, and no lane has bit `self`; or, when self is NONE, all stand
  // for rank first. False: gave up, error reported; the same in all lanes.
  template <int N>
  __device__ __forceinline__ bool collect(const u64 (&from)[N], u32 pending, u32 self, u32 first, u32 (&got)[N][4]) const {
    Spin spin = {0, 0};
    stall(a, sequence, 77);
    while (true) {
#pragma unroll
      for (int p = 0; p < N; ++p)
        if (pending >> p & 1) load_sys(from[p], got[p]);
#pragma unroll
      for (int p = 0; p < N; ++p) {
        if (p == self) continue;
        if (codec.open(got[p], a, sequence, pending >> p & 1)) pending &= ~(1u << p);
      }
      if (!__any_sync(FULL, pending != 0)) return true;
      // Two ranks whose polls are a whole round trip apart take turns in coming too late. A delay that only
      // some ranks take breaks that rhythm, and within `lag` of each other they stay in step.
      if (a.rank & 1) hold(cycles(), a.lag);
      if (tired(spin) && __any_sync(FULL, give_up(spin, a))) {
        if (pending != 0) report(a, self == NONE ? first : first + __ffs(pending) - 1, sequence);
        return false;
      }
    }
  }

  // Waits for one packet, and reads it again later: it stays until this operation ends.
  __device__ __forceinline__ bool arrived(u64 at, bool valid, u32 from) const {
    const u64 places[1] = {at};
    u32 ignored[1][4];
    return collect<1>(places, valid ? 1 : 0, NONE, from, ignored);
  }

  __device__ __forceinline__ void put(u64 at, const u32 (&w)[4], bool valid) const {
    codec.store(at, w, valid, a, sequence);
    stall(a, sequence, 11);
  }
};

// Sends the same packet to the ranks [first, first + n) without this one, nearest first, so that no two ranks
// start with the same target. Staged: before each further send, waits for the packet of the rank as far
// behind, where it `arrives`.
template <class Out, class In, class Arrives>
__device__ __forceinline__ bool push(const Worker& w, u32 first, u32 n, bool valid, const u32 (&packet)[4], Out out, In in,
                                     Arrives arrives) {
#if ARF_WRITER_HOLDS
  w.put(out(w.a.rank), packet, valid);
#else
  u32 me = w.a.rank - first;
#pragma unroll 1
  for (u32 k = 1; k < n; ++k) {
    w.put(out(first + (me + k) % n), packet, valid);
#if ARF_STAGED
    u32 from = first + (me + n - k) % n;
    if (k + 1 < n && !w.arrived(in(from), arrives(from), from)) return false;
#endif
  }
#endif
  return true;
}

// Waits for the packets of ranks [first, first + N) but `me` of them, found at `at`, and sums them in rank
// order with own words in their place. False: gave up.
template <int N, class At>
__device__ __forceinline__ bool sum_in_order(const Worker& w, u32 first, u32 me, bool valid, const u32 (&own)[4], At at,
                                             Sum& sum) {
  if (N == 2) {  // of two terms the order is no matter, so there is one other and no choice to compile
    const u32 other = first + 1 - me;
    const u64 from[1] = {at(other)};
    u32 got[1][4], words[4];
    if (!w.collect<1>(from, valid ? 1 : 0, NONE, other, got)) return false;
    accumulate(sum, own, true);
    w.codec.payload(got[0], words);
    accumulate(sum, words, false);
    return true;
  }
  u64 from[N];
  u32 got[N][4];
#pragma unroll
  for (u32 p = 0; p < N; ++p) from[p] = at(first + p);
  const u32 others = ((1u << N) - 1) & ~(1u << me);
  if (!w.collect<N>(from, valid ? others : 0, me, first, got)) return false;
#pragma unroll
  for (int p = 0; p < N; ++p) {
    u32 words[4];
    if (p == me) {
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j] = own[j];
    } else {
      w.codec.payload(got[p], words);
    }
    accumulate(sum, words, p == 0);
  }
  return true;
}

// Fills all places of this warp with NaN.
__device__ __forceinline__ void poison(const Worker& w, u32 units, u32 chunks) {
  const u32 nan[4] = {ARF_NAN_WORD, ARF_NAN_WORD, ARF_NAN_WORD, ARF_NAN_WORD};
  for (u32 tile = w.index; tile < w.a.tiles; tile += w.count) {
    u32 i = tile * TILE + w.inner;
    for (u32 c = 0; c < chunks; ++c)
      if (i < units) w.save((u64)c * units + i, nan);
  }
}
