// `body` of one-shot, two-shot and island-aware two-shot, by ARF_SHOT, on the worker of packets.cuh, which it follows.

#if ARF_SHOT == 1

#ifdef ARF_FUSED
struct After : Epilogue<TILE * PAYLOAD, VECTOR> {
  u32 tiles;  // taken so far

  __device__ __forceinline__ After(const Worker& w) : Epilogue(w.a, w.sequence), tiles(0) {}
  __device__ __forceinline__ void before(const Worker& w, u32 tile, u32 round) {
    prepare(tile, w.row(round), w.at(round, tile * TILE + w.inner), w.codec.words());
  }
  __device__ __forceinline__ void with(const Worker&, u32, const u32 (&result)[4]) { take(tiles++, result); }
  // The tile at hand first: it is still in registers.
  __device__ __forceinline__ bool finish(const Worker& w, bool good) {
#if ARF_FUSED == 2
    good = !__syncthreads_or(!good);
#endif
    if (!good || tiles == 0) return good;
    good = normalise(tiles - 1);
    for (u32 round = 0; good && round + 1 < tiles; ++round) {
      before(w, w.index + round * w.count, round);
      good = normalise(round);
    }
    return good;
  }
  __device__ __forceinline__ void poison(const Worker& w) {
    u32 round = 0;
    for (u32 tile = w.index; tile < a.tiles; tile += w.count, ++round)
      spoil(tile, w.row(round), w.at(round, tile * TILE + w.inner), w.codec.words());
  }
};
#else
// What becomes of a tile's sums: they are the result.
struct After {
  __device__ __forceinline__ After(const Worker&) {}
  __device__ __forceinline__ void before(const Worker&, u32, u32) {}
  __device__ __forceinline__ void with(const Worker& w, u32 i, const u32 (&result)[4]) {
    if (i < w.a.units) w.save(i, result);
  }
  __device__ __forceinline__ bool finish(const Worker&, bool good) { return good; }
  __device__ __forceinline__ void poison(const Worker& w) { ::poison(w, w.a.units, 1); }
};
#endif

// The warps of a block begin to poll in turn, at most `window` of them at a time. Else a rank that comes early
// has all its warps polling in vain, and over a slow link the answers it no longer needs make it late: then
// its peer comes early to the next operation, and so on. Only a courtesy: nothing depends on it for safety,
// so the flags start as an earlier kernel left them, at worst too far on. Atomics, by one lane: there is no barrier.
struct Turns {
  u32* passed;  // one a warp, in shared memory
  u32 warp;

  __device__ __forceinline__ bool wait(const Worker& w, u32 mark) const {
    if (w.a.window == 0 || warp < w.a.window) return true;
    Spin spin = {0, 0};
    while (__any_sync(FULL, threadIdx.x % 32 == 0 && (int)(atomicAdd(passed + warp - w.a.window, 0u) - mark) < 0))
      if (tired(spin) && __any_sync(FULL, give_up(spin, w.a))) return false;
    return true;
  }
  __device__ __forceinline__ void pass(const Worker& w, u32 mark) const {
    if (w.a.window != 0 && threadIdx.x % 32 == 0) atomicExch(passed + warp, mark);
  }
};

#ifndef ARF_QUANT
// Everyone sends everything to everyone; one phase. A warp sends `lookahead` tiles ahead of the one it waits
// for, and tiles leave at a steady `pace`, so that both directions of the link are busy: sent at once, they
// would fill the way out, and the reads would queue behind them.
__device__ __forceinline__ void body(const Args& a) {
  __shared__ u32 passed[32];
  Worker w(a);
  After after(w);
  const Turns turns = {passed, threadIdx.x / 32};
  bool good = true;
  u32 sent = w.index, done = w.index, finished = 0;
  u64 sent_at = 0;
  for (u32 r = 0; done < a.tiles; ++r) {
    if (sent < a.tiles) {
      u32 i = sent * TILE + w.inner;
      u32 own[4], packet[4];
      w.load_at(w.at(r, i), own);
      w.codec.seal(own, packet);
      const bool fine = w.fine();
      w.hold(w.began, a.pace * sent);
      good = push(w, 0, ARF_WORLD, i < a.units && fine, packet, [&](u32 to) { return w.out_all(0, to, i); },
                              [&](u32 from) { return w.in_all(0, from, i); }, [&](u32) { return i < a.units; });
      sent += w.count;
      sent_at = cycles();
      good = good && fine;
      if (!good) break;
    }
    if (r >= a.lookahead || sent >= a.tiles) {
      u32 i = done * TILE + w.inner;
      u32 own[4], result[4];
      Sum sum;
      w.load_at(w.at(finished, i), own);
      after.before(w, done, finished);
      w.hold(sent_at, a.lag);
      good = turns.wait(w, w.sequence + r) &&
             sum_in_order<ARF_WORLD>(w, 0, a.rank, i < a.units, own, [&](u32 from) { return w.in_all(0, from, i); }, sum);
      turns.pass(w, w.sequence + r);
      if (!good) break;
      rounded(sum, result);
      after.with(w, i, result);
      done += w.count;
      ++finished;
    }
  }
  good = after.finish(w, w.fine() && good);
  if (good) w.leave();
  else after.poison(w);
}
#endif

#elif ARF_SHOT == 2

// Rank c owns chunk c: receives it from everyone, sums, sends the rounded sum to everyone.
__device__ __forceinline__ void body(const Args& a) {
  Worker w(a);
  bool good = true;
  u32 sent = w.index, summed = w.index, done = w.index;
  for (u32 r = 0; done < a.tiles; ++r) {
    if (sent < a.tiles) {
      u32 i = sent * TILE + w.inner;
#pragma unroll 1
      for (u32 k = 1; good && k < ARF_WORLD; ++k) {
        u32 to = (a.rank + k) % ARF_WORLD;
        u64 unit = (u64)to * a.chunk + i;
        u32 own[4], packet[4];
        w.load(unit, own);
        w.codec.seal(own, packet);
        good = w.fine();
        w.put(w.out(0, to, a.capacity, i), packet, good && i < a.chunk && unit < a.units);
#if ARF_STAGED
        u32 from = (a.rank + ARF_WORLD - k) % ARF_WORLD;
        bool arrives = i < a.chunk && (u64)a.rank * a.chunk + i < a.units;
        if (good && k + 1 < ARF_WORLD) good = w.arrived(w.in(0, from, a.capacity, i), arrives, from);
#endif
      }
      sent += w.count;
      if (!good) break;
    }
    if (summed < a.tiles && (r >= a.lookahead || sent >= a.tiles)) {
      u32 i = summed * TILE + w.inner;
      u64 unit = (u64)a.rank * a.chunk + i;
      bool valid = i < a.chunk && unit < a.units;
      u32 own[4], result[4], packet[4];
      Sum sum;
      w.load(unit, own);
      good = sum_in_order<ARF_WORLD>(w, 0, a.rank, valid, own, [&](u32 from) { return w.in(0, from, a.capacity, i); }, sum);
      if (!good) break;
      rounded(sum, result);
      w.codec.seal(result, packet);
      good = push(w, 0, ARF_WORLD, valid, packet, [&](u32 to) { return w.out_all(PHASE2, to, i); },
                  [&](u32 from) { return w.in_all(PHASE2, from, i); },
                  [&](u32 from) { return i < a.chunk && (u64)from * a.chunk + i < a.units; });
      if (!good) break;
      if (valid) w.save(unit, result);
      summed += w.count;
    }
    if (r >= 2 * a.lookahead || summed >= a.tiles) {
      u32 i = done * TILE + w.inner;
      u32 got[ARF_WORLD][4], pending = 0;
      u64 from[ARF_WORLD];
#pragma unroll
      for (u32 p = 0; p < ARF_WORLD; ++p) {
        from[p] = w.in_all(PHASE2, p, i);
        if (p != a.rank && i < a.chunk && (u64)p * a.chunk + i < a.units) pending |= 1u << p;
      }
      good = w.collect<ARF_WORLD>(from, pending, a.rank, 0, got);
      if (!good) break;
#pragma unroll
      for (u32 p = 0; p < ARF_WORLD; ++p) {
        u32 words[4];
        w.codec.payload(got[p], words);
        if (pending >> p & 1) w.save((u64)p * a.chunk + i, words);
      }
      done += w.count;
    }
  }
  if (w.fine() && good) w.leave();
  else poison(w, a.chunk, ARF_WORLD);
}

#elif ARF_SHOT == 4

// Two islands of consecutive ranks. Chunks are as many as an island has ranks: reduce-scatter within the
// island, exchange of float32 partial sums with the same rank of the other island, all-gather within.
__device__ __forceinline__ bool one_tile(const Args& a, const Worker& w, u32 i) {
  const u32 first = a.rank / ISLAND * ISLAND, me = a.rank - first, twin = (a.rank + ISLAND) % ARF_WORLD;
  const u64 unit = (u64)me * a.chunk + i;
  const bool valid = i < a.chunk && unit < a.units;
  bool good = w.fine();
#pragma unroll 1
  for (u32 k = 1; k < ISLAND; ++k) {
    u32 to = (me + k) % ISLAND;
    u64 theirs = (u64)to * a.chunk + i;
    u32 words[4], packet[4];
    w.load(theirs, words);
    w.codec.seal(words, packet);
    w.put(w.out(0, first + to, a.capacity, i), packet, good && i < a.chunk && theirs < a.units);
  }
  u32 own[4], got[ISLAND][4];
  u64 from[ISLAND];
  Sum sum;
  w.load(unit, own);
  if (!good || !sum_in_order<ISLAND>(w, first, me, valid, own, [&](u32 p) { return w.in(0, p, a.capacity, i); }, sum))
    return false;

  // A packet of partial sums for each element of a word: packet 2 i + e holds the e-th of every word.
  const u64 capacity = (u64)a.capacity * ARF_PER_WORD;
  u32 partial[ARF_PER_WORD][4];
  u64 partial_from[ARF_PER_WORD];
#pragma unroll
  for (u32 e = 0; e < ARF_PER_WORD; ++e) {
    u32 words[4], packet[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = __float_as_uint(sum.f[j][e]);
    w.codec.seal(words, packet);
    w.put(w.out(PHASE2, twin, capacity, (u64)i * ARF_PER_WORD + e), packet, valid);
    partial_from[e] = w.in(PHASE2, twin, capacity, (u64)i * ARF_PER_WORD + e);
  }
  if (!w.collect<ARF_PER_WORD>(partial_from, valid ? (1u << ARF_PER_WORD) - 1 : 0, NONE, twin, partial)) return false;
  u32 result[4], packet[4];
#pragma unroll
  for (u32 e = 0; e < ARF_PER_WORD; ++e) {
    u32 words[4];
    w.codec.payload(partial[e], words);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum.f[j][e] += __uint_as_float(words[j]);  // of two terms, the order is no matter
  }
  rounded(sum, result);
  w.codec.seal(result, packet);
  bool pushed = push(w, first, ISLAND, valid, packet, [&](u32 to) { return w.out_all(a.phase3, to, i); },
                     [&](u32 from) { return w.in_all(a.phase3, from, i); },
                     [&](u32 from) { return i < a.chunk && (u64)(from - first) * a.chunk + i < a.units; });
  if (!pushed) return false;
  if (valid) w.save(unit, result);

  u32 pending = 0;
#pragma unroll
  for (u32 p = 0; p < ISLAND; ++p) {
    from[p] = w.in_all(a.phase3, first + p, i);
    if (p != me && i < a.chunk && (u64)p * a.chunk + i < a.units) pending |= 1u << p;
  }
  if (!w.collect<ISLAND>(from, pending, me, first, got)) return false;
#pragma unroll
  for (u32 p = 0; p < ISLAND; ++p) {
    u32 words[4];
    w.codec.payload(got[p], words);
    if (pending >> p & 1) w.save((u64)p * a.chunk + i, words);
  }
  return true;
}

__device__ __forceinline__ void body(const Args& a) {
  Worker w(a);
  bool good = w.fine();
  for (u32 tile = w.index; good && tile < a.tiles; tile += w.count) good = one_tile(a, w, tile * TILE + w.inner);
  if (good) w.leave();
  else poison(w, a.chunk, ISLAND);
}

#endif

#ifndef ARF_QUANT  // else quantised.cuh follows
ARF_KERNEL(body)
#endif
