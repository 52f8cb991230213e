// The element-wise parts of a decode step, fused as serving engines fuse them, in bfloat16. One block a row.

typedef unsigned int u32;
typedef unsigned short u16;

__device__ __forceinline__ float low(u32 w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high(u32 w) { return __uint_as_float(w & 0xffff0000u); }
__device__ __forceinline__ u32 pair(float l, float h) {
  u32 w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(h), "f"(l));
  return w;
}

// hidden += delta; normed = hidden / sqrt(mean(hidden^2) + 1e-5). `width` in pairs of elements.
extern "C" __global__ void __launch_bounds__(512) add_rms_norm(const u32* delta, u32* hidden, u32* normed, u32 width) {
  __shared__ float part[16];
  const u32 row = blockIdx.x * width;
  float square = 0;
  for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
    u32 h = hidden[row + i], d = delta[row + i];
    h = pair(low(h) + low(d), high(h) + high(d));
    hidden[row + i] = h;
    square += low(h) * low(h) + high(h) * high(h);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffffu, square, step);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = square;
  __syncthreads();
  float total = 0;
  for (u32 w = 0; w < blockDim.x / 32; ++w) total += part[w];
  const float scale = rsqrtf(total / (2 * width) + 1e-5f);
  for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
    u32 h = hidden[row + i];
    normed[row + i] = pair(low(h) * scale, high(h) * scale);
  }
}

// out = silu(gate) * value, where a row of `both` is gate, then value. `width` in pairs, of one of them.
extern "C" __global__ void __launch_bounds__(512) silu_mul(const u32* both, u32* out, u32 width) {
  const u32 in = blockIdx.x * 2 * width, to = blockIdx.x * width;
  for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < width; i += gridDim.y * blockDim.x) {
    u32 g = both[in + i], v = both[in + width + i];
    float l = low(g), h = high(g);
    out[to + i] = pair(l / (1.0f + __expf(-l)) * low(v), h / (1.0f + __expf(-h)) * high(v));
  }
}
