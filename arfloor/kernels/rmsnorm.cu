// Residual add and RMSNorm on their own, a block a row: what follows a reduce that is not fused.
//   residual = round(x + residual)    out = round(residual / sqrt(mean(residual^2) + eps) * weight)
// Follows common.cuh, whose rounding it shares. A row has at most VECTORS * blockDim.x * 16 bytes.

#define VECTORS 4

extern "C" __global__ void __launch_bounds__(1024)
    add_rmsnorm(u64 x, u64 residual, u64 weight, u64 out, u32 row, float inverse, float eps) {
  __shared__ float sums[32];
  const u64 begin = (u64)blockIdx.x * row;
  u32 h[VECTORS][4], scale[VECTORS][4];
  float squares = 0;
#pragma unroll
  for (u32 v = 0; v < VECTORS; ++v) {
    const u32 at = (v * blockDim.x + threadIdx.x) * 16;
    if (at >= row) break;
    const uint4 a = *(const uint4*)(x + begin + at), b = *(const uint4*)(residual + begin + at);
    const uint4 w = *(const uint4*)(weight + at);
    const u32 first[4] = {a.x, a.y, a.z, a.w}, second[4] = {b.x, b.y, b.z, b.w};
    scale[v][0] = w.x, scale[v][1] = w.y, scale[v][2] = w.z, scale[v][3] = w.w;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float p[ARF_PER_WORD], q[ARF_PER_WORD];
      unpack(first[k], p);
      unpack(second[k], q);
#pragma unroll
      for (int e = 0; e < ARF_PER_WORD; ++e) q[e] += p[e];
      h[v][k] = pack(q);
      unpack(h[v][k], q);
#pragma unroll
      for (int e = 0; e < ARF_PER_WORD; ++e) squares += q[e] * q[e];
    }
    *(uint4*)(residual + begin + at) = make_uint4(h[v][0], h[v][1], h[v][2], h[v][3]);
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
  __syncthreads();
  squares = threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
  const float factor = rsqrtf(squares * inverse + eps);
#pragma unroll
  for (u32 v = 0; v < VECTORS; ++v) {
    const u32 at = (v * blockDim.x + threadIdx.x) * 16;
    if (at >= row) break;
    u32 w[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float p[ARF_PER_WORD], q[ARF_PER_WORD];
      unpack(h[v][k], p);
      unpack(scale[v][k], q);
#pragma unroll
      for (int e = 0; e < ARF_PER_WORD; ++e) p[e] = p[e] * factor * q[e];
      w[k] = pack(p);
    }
    *(uint4*)(out + begin + at) = make_uint4(w[0], w[1], w[2], w[3]);
  }
}
