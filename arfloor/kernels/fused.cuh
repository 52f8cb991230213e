// All-reduce, residual add and RMSNorm in one kernel (ARF_FUSED), as an epilogue of the one-shot protocols:
//
//   reduced  = round(sum over the ranks)           as without the epilogue, in float32, in rank order
//   residual = round(reduced + residual)           in place
//   out      = round(residual / sqrt(mean over its row of residual^2 + eps) * weight)
//
// A warp keeps its tile's part of a row in registers, adds up its squares, and publishes the sum to the other
// warps of this GPU as 8 bytes, value and sequence, which arrive together: no fence, no counter, no block that
// must come last and read a row again. Every warp then adds up the sums of the row's pieces in the same order,
// on every rank, so all ranks agree bit for bit. The slots need no second buffer: they are read by this kernel
// alone, and the next one starts after it.
//
// Warps wait for warps of the same grid, so all blocks must be resident at once (checked when bound). A tile
// must not be longer than a row, so that it touches two rows at most.

__device__ __forceinline__ void load_bytes(u64 at, u32* w, int bytes) {
  if (bytes == 16) {
    uint4 v = *(const uint4*)at;
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
  } else if (bytes == 8) {
    uint2 v = *(const uint2*)at;
    w[0] = v.x, w[1] = v.y;
  } else {
    w[0] = *(const u32*)at;
  }
}
__device__ __forceinline__ void store_bytes(u64 at, const u32* w, int bytes) {
  if (bytes == 16) *(uint4*)at = make_uint4(w[0], w[1], w[2], w[3]);
  else if (bytes == 8) *(uint2*)at = make_uint2(w[0], w[1]);
  else *(u32*)at = w[0];
}

// The same sum in every lane: each step adds the same two numbers in both of its lanes.
__device__ __forceinline__ float over_the_warp(float x) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// What a warp does to one tile: SPAN bytes of the message from SPAN * tile, of which this lane has `words` words
// at byte `at`. VEC: bytes of an access; rows and buffers are multiples of 16, so an access lies in one row.
template <u32 SPAN, int VEC>
struct Epilogue {
  const Args& a;
  u32 sequence;
  u32 row, edge;  // the tile's first row, and the byte where the next begins
  bool two;       // the tile has a part of that one too
  u32 at, words;
  u32 h[4], weight[4];

  __device__ __forceinline__ Epilogue(const Args& args, u32 s) : a(args), sequence(s) {}

#define EACH_ACCESS(j, from)                                                                  \
  _Pragma("unroll") for (u32 j = 0; j < 4; j += VEC / 4) if (const u32 from = at + 4 * j; j < words && from < a.nbytes)

  __device__ __forceinline__ void locate(u32 tile, u64 place, u32 count) {
    const u32 begin = tile * SPAN;
    at = (u32)place, words = count;
    row = begin / a.row;
    edge = (row + 1) * a.row;
    two = edge < begin + SPAN && edge < a.nbytes;
  }
  // Before the wait: the residual and the weights are on their way.
  __device__ __forceinline__ void prepare(u32 tile, u64 place, u32 count) {
    locate(tile, place, count);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) h[j] = weight[j] = 0;
    EACH_ACCESS(j, from) {
      load_bytes(a.residual + from, h + j, VEC);
      load_bytes(a.weight + from - (from < edge ? edge - a.row : edge), weight + j, VEC);
    }
  }
  __device__ __forceinline__ u64 slot(u32 of_row, u32 piece) const {
    return a.partials + ((u64)of_row * a.pieces + piece) * 8;
  }
  __device__ __forceinline__ void publish(u32 of_row, u32 piece, float sum) const {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(slot(of_row, piece)),
                 "l"((u64)sequence << 32 | __float_as_uint(sum))
                 : "memory");
  }
  // The reduced words become the new residual; the sums of its squares go to the others.
  __device__ __forceinline__ void take(u32 tile, const u32 (&reduced)[4]) {
    float first = 0, second = 0;
    EACH_ACCESS(j, from) {
      float squares = 0;
#pragma unroll
      for (u32 k = j; k < j + VEC / 4; ++k) {
        float x[ARF_PER_WORD], y[ARF_PER_WORD];
        unpack(reduced[k], x);
        unpack(h[k], y);
#pragma unroll
        for (int e = 0; e < ARF_PER_WORD; ++e) y[e] += x[e];
        h[k] = pack(y);
        unpack(h[k], y);
#pragma unroll
        for (int e = 0; e < ARF_PER_WORD; ++e) squares += y[e] * y[e];
      }
      store_bytes(a.residual + from, h + j, VEC);
      if (from < edge) first += squares;
      else second += squares;
    }
    first = over_the_warp(first);
    if (two) second = over_the_warp(second);
    const u32 lane = threadIdx.x % 32;
    stall(a, sequence, 13);
    if (lane == 0) publish(row, tile - row * a.row / SPAN, first);
    if (lane == 1 && two) publish(row + 1, 0, second);
  }
  __device__ __forceinline__ bool fresh(u64 word) const {
#ifdef ARF_UNSAFE_SLOTS
    return word != 0;
#else
    return (u32)(word >> 32) == sequence;
#endif
  }
  // Waits for all pieces of the tile's rows; false: gave up.
  __device__ __forceinline__ bool gather(float& first, float& second) const {
    const u32 lane = threadIdx.x % 32;
    const u32 n = (edge - 1) / SPAN - row * a.row / SPAN + 1;
    const u32 m = two ? (edge + a.row - 1) / SPAN - edge / SPAN + 1 : 0;
    Spin spin = {0, 0};
    first = second = 0;
    for (u32 p = lane; p - lane < (n > m ? n : m); p += 32) {
      u64 x = (u64)sequence << 32, y = x;  // counts as nothing where there is no piece
      while (true) {
        if (p < n) x = load_gpu64(slot(row, p));
        if (p < m) y = load_gpu64(slot(row + 1, p));
        if (__all_sync(0xffffffffu, fresh(x) && fresh(y))) break;
        if (tired(spin) && __any_sync(0xffffffffu, give_up(spin, a))) {
          report(a, a.rank, sequence);
          return false;
        }
      }
      first += __uint_as_float((u32)x);
      second += __uint_as_float((u32)y);
    }
    first = over_the_warp(first);
    if (two) second = over_the_warp(second);
    return true;
  }
  __device__ __forceinline__ bool normalise() {
    float first, second;
    if (!gather(first, second)) return false;
    first = rsqrtf(first * a.inverse + a.eps);
    second = rsqrtf(second * a.inverse + a.eps);
    EACH_ACCESS(j, from) {
      const float scale = from < edge ? first : second;
      u32 out[4];
#pragma unroll
      for (u32 k = j; k < j + VEC / 4; ++k) {
        float x[ARF_PER_WORD], y[ARF_PER_WORD];
        unpack(h[k], x);
        unpack(weight[k], y);
#pragma unroll
        for (int e = 0; e < ARF_PER_WORD; ++e) x[e] = x[e] * scale * y[e];
        out[k] = pack(x);
      }
      store_bytes(a.out + from, out + j, VEC);
    }
    return true;
  }
  // NaN into the tile's part of both results.
  __device__ __forceinline__ void spoil(u32 tile, u64 place, u32 count) {
    const u32 nan[4] = {ARF_NAN_WORD, ARF_NAN_WORD, ARF_NAN_WORD, ARF_NAN_WORD};
    locate(tile, place, count);
    EACH_ACCESS(j, from) {
      store_bytes(a.residual + from, nan + j, VEC);
      store_bytes(a.out + from, nan + j, VEC);
    }
  }
#undef EACH_ACCESS
};
