// One-shot over lines with 8 bits an element on the wire (ARF_QUANT 1: int8, 2: fp8 e4m3): half the bytes, and
// another result. A lane's 16 bytes carry a 16-bit scale and 14 elements; the line's last lane has less, for the
// tag. Every rank's contribution is quantised, its own too, and the sum is taken in float32 in rank order, so
// all ranks agree bit for bit. Follows shots.cuh.
//
// The scale is a block's largest magnitude over the format's, rounded up to the upper half of a float32, so that
// nothing overflows. An infinity or NaN makes its whole block NaN, as a sum with it would make the element.

#define QMAX (ARF_QUANT == 1 ? 127.0f : 448.0f)
#define BLOCK 14                                            // elements of a lane
#define LAST (TAG_WORDS == 2 ? 6 : 10)                      // of a line's last lane
#define MESSAGE (ARF_ITEM * (BLOCK * (LANES - 1) + LAST))   // bytes of the message in a line

#if ARF_QUANT == 1
__device__ __forceinline__ u32 encode(float x) {
  u32 q;
  asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(q) : "f"(x));
  return q & 0xff;
}
__device__ __forceinline__ float decode(u32 q) { return (float)(int)(signed char)q; }
#else
// e4m3 in integer steps, the same on architectures with and without the conversion: rounded to nearest even;
// the largest magnitude is 448, and blocks are scaled to it, so nothing rounds beyond.
__device__ __forceinline__ u32 encode(float x) {
  const u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80;
  const u32 normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
  u32 small;
  asm("cvt.rni.u32.f32 %0, %1;" : "=r"(small) : "f"(__uint_as_float(magnitude) * 512.0f));
  const u32 q = magnitude < 0x3c800000u ? small : normal;  // 2^-6, the smallest normal number
  return sign | (q < 0x7e ? q : 0x7e);
}
__device__ __forceinline__ float decode(u32 q) {
  const u32 magnitude = q & 0x7f;
  const float x = magnitude < 8 ? (float)magnitude * (1.0f / 512.0f) : __uint_as_float((magnitude + (120 << 3)) << 20);
  return q & 0x80 ? -x : x;
}
#endif

struct Quantiser {
  u64 base;   // of this lane's elements within a line's message
  u32 words;  // 32-bit words of the message that they are

  __device__ __forceinline__ Quantiser(const Codec& codec) {
    base = codec.lane * BLOCK * ARF_ITEM;
    words = (codec.last ? LAST : BLOCK) * ARF_ITEM / 4;
  }
  __device__ __forceinline__ u64 at(u64 unit) const { return unit * MESSAGE + base; }

  // The lane's part of a line, quantised: what travels, but for the tag.
  __device__ __forceinline__ void load(const Args& a, u64 unit, u32 (&wire)[4]) const {
    u32 low[4], high[4];
    load_user<4>(a, a.in, at(unit), words < 4 ? words : 4, low);
    load_user<4>(a, a.in, at(unit) + 16, words < 4 ? 0 : words - 4, high);
    float x[BLOCK];
    u32 largest = 0;
#pragma unroll
    for (int k = 0; k < BLOCK / 2; ++k) {
      float f[ARF_PER_WORD];
      unpack(k < 4 ? low[k] : high[k - 4], f);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        x[2 * k + e] = f[e];
        const u32 magnitude = __float_as_uint(f[e]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;  // a NaN is larger than all numbers
      }
    }
    float scale = __uint_as_float(largest) / QMAX;
    if (largest >= 0x7f800000u) scale = __uint_as_float(0x7fc00000u);
    else if (scale < 1e-30f) scale = 1e-30f;
    const u32 code = largest >= 0x7f800000u ? 0x7fc0u : (__float_as_uint(scale) + 0xffffu) >> 16;
    const float inverse = 1.0f / __uint_as_float(code << 16);
    wire[0] = code, wire[1] = wire[2] = wire[3] = 0;
#pragma unroll
    for (int e = 0; e < BLOCK; ++e) wire[(e + 2) / 4] |= encode(x[e] * inverse) << (e + 2) % 4 * 8;
  }
  __device__ __forceinline__ void add(const u32 (&wire)[4], float (&sum)[BLOCK], bool first) const {
    const float scale = __uint_as_float(wire[0] << 16);
#pragma unroll
    for (int e = 0; e < BLOCK; ++e) {
      const float x = decode(wire[(e + 2) / 4] >> (e + 2) % 4 * 8 & 0xff) * scale;
      sum[e] = first ? x : sum[e] + x;
    }
  }
  __device__ __forceinline__ void save(const Args& a, u64 unit, const float (&sum)[BLOCK]) const {
    u32 low[4], high[4];
#pragma unroll
    for (int k = 0; k < BLOCK / 2; ++k) {
      const float f[2] = {sum[2 * k], sum[2 * k + 1]};
      (k < 4 ? low[k] : high[k - 4]) = pack(f);
    }
    high[3] = 0;
    store_user<4>(a, at(unit), words < 4 ? words : 4, low);
    store_user<4>(a, at(unit) + 16, words < 4 ? 0 : words - 4, high);
  }
};

// As the body without quantising; see there.
__device__ __forceinline__ void body(const Args& a) {
  __shared__ u32 passed[32];
  Worker w(a);
  const Quantiser quantiser(w.codec);
  const Turns turns = {passed, threadIdx.x / 32};
  bool good = true;
  u32 sent = w.index, done = w.index;
  u64 sent_at = 0;
  for (u32 r = 0; done < a.tiles; ++r) {
    if (sent < a.tiles) {
      const u32 i = sent * TILE + w.inner;
      u32 own[4], packet[4];
      quantiser.load(a, i, own);
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
      const u32 i = done * TILE + w.inner;
      u32 own[4], got[ARF_WORLD][4];
      u64 from[ARF_WORLD];
      quantiser.load(a, i, own);
      w.hold(sent_at, a.lag);
      good = turns.wait(w, w.sequence + r);
#pragma unroll
      for (u32 p = 0; p < ARF_WORLD; ++p) from[p] = w.in_all(0, p, i);
      const u32 others = ((1u << ARF_WORLD) - 1) & ~(1u << a.rank);
      good = good && w.collect<ARF_WORLD>(from, i < a.units ? others : 0, a.rank, 0, got);
      turns.pass(w, w.sequence + r);
      if (!good) break;
      float sum[BLOCK];
#pragma unroll
      for (u32 p = 0; p < ARF_WORLD; ++p) {
        u32 words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = p == a.rank ? own[j] : got[p][j];
        quantiser.add(words, sum, p == 0);
      }
      if (i < a.units) quantiser.save(a, i, sum);
      done += w.count;
    }
  }
  good = w.fine() && good;
  if (good) w.leave();
  else {
    float nan[BLOCK];
#pragma unroll
    for (int e = 0; e < BLOCK; ++e) nan[e] = __uint_as_float(0x7fffffffu);
    for (u32 tile = w.index; tile < a.tiles; tile += w.count)
      if (tile * TILE + w.inner < a.units) quantiser.save(a, tile * TILE + w.inner, nan);
  }
}

ARF_KERNEL(body)
