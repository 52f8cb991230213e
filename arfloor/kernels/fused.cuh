// All-reduce, residual add and RMSNorm in one kernel (ARF_FUSED), as an epilogue of the one-shot protocols:
//
//   reduced  = round(sum over the ranks)           as without the epilogue, in float32, in rank order
//   residual = round(reduced + residual)           in place
//   out      = round(residual / sqrt(mean over its row of residual^2 + eps) * weight)
//
// A warp keeps its tile's part of a row in registers and adds up its squares; then the row's warps exchange their
// sums, and each adds them up in the same order, on every rank, so that all ranks agree bit for bit.
//
// ARF_FUSED 1: rows lie across tiles and blocks as they come. A sum goes to the other warps of this GPU as 8 bytes,
// value and sequence, which arrive together: no fence, no counter, no block that must come last and read a row
// again. The slots need no second buffer: they are read by this kernel alone, and the next one starts after it.
// Warps wait for warps of the same grid, so all blocks must be resident at once (checked when bound). A tile must
// not be longer than a row, so that it touches two rows at most.
//
// ARF_FUSED 2 (line and LL): a row belongs to one block, a warp of it has one tile of the row, and the sums go
// through shared memory, which is several hundred cycles nearer. The row's last tile is partly empty on the wire,
// and a row has at most as many tiles as a block has warps.

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

// Over the warp: the sum of `first` in its lower half, that of `second` in its upper half, in five steps. Each step
// adds the same two numbers in both of its lanes, so a half's lanes agree bit for bit.
__device__ __forceinline__ float over_the_warp(float first, float second) {
  const bool upper = threadIdx.x & 16;
  float sum = upper ? second : first;
  sum += __shfl_xor_sync(0xffffffffu, upper ? first : second, 16);
#pragma unroll
  for (int step = 8; step != 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}
__device__ __forceinline__ float over_the_warp(float x) {
#pragma unroll
  for (int step = 16; step != 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

#if ARF_FUSED == 2
#define ARF_ROUNDS 16  // rows of a block
__shared__ float row_sums[ARF_ROUNDS][32];
#endif

// What a warp does to one tile: SPAN bytes of the message, of which this lane has `words` words at byte `at`. VEC:
// bytes of an access; rows and buffers are multiples of 16, so an access lies in one row.
template <u32 SPAN, int VEC>
struct Epilogue {
  const Args& a;
  u32 sequence;
  u32 edge;   // the byte where the row after the tile's first begins
  u32 limit;  // the byte where the tile's rows end
  u32 at, words;
  u32 h[4], weight[4];
#if ARF_FUSED == 1
  u64 slots;  // of the first row's sums; those of the next follow
  u32 piece;  // the tile's place in the first row
  u32 n, m;   // tiles that have a part in the first row, in the next (0: the tile has none of it)
#endif

  __device__ __forceinline__ Epilogue(const Args& args, u32 s) : a(args), sequence(s) {}

#define EACH_ACCESS(j, from)                                                                  \
  _Pragma("unroll") for (u32 j = 0; j < 4; j += VEC / 4) if (const u32 from = at + 4 * j; j < words && from < limit)

  __device__ __forceinline__ void locate(u32 tile, u32 row, u64 place, u32 count) {
    at = (u32)place, words = count;
#if ARF_FUSED == 1
    const u32 begin = tile * SPAN;
    row = begin / a.row;
    edge = (row + 1) * a.row, limit = a.nbytes;
    const u32 first_tile = row * a.row / SPAN;
    piece = tile - first_tile;
    n = (edge - 1) / SPAN - first_tile + 1;
    m = edge < begin + SPAN && edge < limit ? (edge + a.row - 1) / SPAN - edge / SPAN + 1 : 0;
    slots = a.partials + (u64)row * a.pieces * 8;
#else
    edge = limit = (row + 1) * a.row;
#endif
  }
  // Before the wait: the residual and the weights are on their way.
  __device__ __forceinline__ void prepare(u32 tile, u32 row, u64 place, u32 count) {
    locate(tile, row, place, count);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) h[j] = weight[j] = 0;
    EACH_ACCESS(j, from) {
      load_bytes(a.residual + from, h + j, VEC);
      load_bytes(a.weight + from - (from < edge ? edge - a.row : edge), weight + j, VEC);
    }
  }
  // The reduced words become the new residual; the sums of its squares go to the others. `round`: how many rows
  // of the block came before.
  __device__ __forceinline__ void take(u32 round, const u32 (&reduced)[4]) {
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
      if (from < edge) first += squares;
      else second += squares;
    }
    stall(a, sequence, 13);
#if ARF_FUSED == 1
    first = over_the_warp(first, second);
    const u32 lane = threadIdx.x % 32;
    if (lane == 0) publish(slots + piece * 8, first);
    if (lane == 16 && m != 0) publish(slots + a.pieces * 8, first);
#else
    first = over_the_warp(first);
    if (threadIdx.x % 32 == 0) row_sums[round][threadIdx.x / 32] = first;
#endif
    EACH_ACCESS(j, from) store_bytes(a.residual + from, h + j, VEC);
  }
#if ARF_FUSED == 1
  __device__ __forceinline__ void publish(u64 slot, float sum) const {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(slot), "l"((u64)sequence << 32 | __float_as_uint(sum))
                 : "memory");
  }
  __device__ __forceinline__ bool fresh(u64 word) const {
#ifdef ARF_UNSAFE_SLOTS
    return word != 0;
#else
    return (u32)(word >> 32) == sequence;
#endif
  }
  // Waits for all pieces of the tile's rows; false: gave up.
  __device__ __forceinline__ bool gather(u32, float& first, float& second) const {
    const u32 lane = threadIdx.x % 32;
    Spin spin = {0, 0};
    first = second = 0;
    for (u32 p = lane; p - lane < (n > m ? n : m); p += 32) {
      u64 x = (u64)sequence << 32, y = x;  // counts as nothing where there is no piece
      while (true) {
        if (p < n) x = load_gpu64(slots + p * 8);
        if (p < m) y = load_gpu64(slots + (a.pieces + p) * 8);
        if (__all_sync(0xffffffffu, fresh(x) && fresh(y))) break;
        if (tired(spin) && __any_sync(0xffffffffu, give_up(spin, a))) {
          report(a, a.rank, sequence);
          return false;
        }
      }
      first += __uint_as_float((u32)x);
      second += __uint_as_float((u32)y);
    }
    const float sum = over_the_warp(first, second), other = __shfl_xor_sync(0xffffffffu, sum, 16);
    first = lane < 16 ? sum : other;
    second = lane < 16 ? other : sum;
    return true;
  }
#else
  // After the block's barrier.
  __device__ __forceinline__ bool gather(u32 round, float& first, float& second) const {
    const u32 lane = threadIdx.x % 32;
    first = over_the_warp(lane < a.pieces ? row_sums[round][lane] : 0.0f);
    second = 0;
    return true;
  }
#endif
  __device__ __forceinline__ bool normalise(u32 round) {
    float first, second;
    if (!gather(round, first, second)) return false;
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
  __device__ __forceinline__ void spoil(u32 tile, u32 row, u64 place, u32 count) {
    const u32 nan[4] = {ARF_NAN_WORD, ARF_NAN_WORD, ARF_NAN_WORD, ARF_NAN_WORD};
    locate(tile, row, place, count);
    EACH_ACCESS(j, from) {
      store_bytes(a.residual + from, nan + j, VEC);
      store_bytes(a.out + from, nan + j, VEC);
    }
  }
#undef EACH_ACCESS
};
