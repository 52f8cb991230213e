// LL: packets of 16 bytes, 8 of data and two copies of the sequence as flags, each beside the 4 bytes it
// vouches for. An aligned 8-byte piece arrives whole on every path, so no fence and no hash is needed, and
// half of the wire carries flags.

#define LANES 1
#define PAYLOAD 8
#define VECTOR 8

struct Codec {
  u32 flag;

  __device__ __forceinline__ Codec() {}
  __device__ __forceinline__ void sequence(u32 s, u32 epoch) { flag = s + epoch * 0x9E3779B1u; }
  __device__ __forceinline__ u32 words() const { return 2; }
  __device__ __forceinline__ u64 at(u64 unit) const { return unit * PAYLOAD; }
  __device__ __forceinline__ void seal(const u32 (&p)[4], u32 (&w)[4]) const {
    w[0] = p[0], w[1] = flag, w[2] = p[1], w[3] = flag;
  }
  __device__ __forceinline__ bool open(const u32 (&w)[4], const Args&, u32, bool) const {
    return w[1] == flag && w[3] == flag;
  }
  __device__ __forceinline__ void payload(const u32 (&w)[4], u32 (&p)[4]) const {
    p[0] = w[0], p[1] = w[2], p[2] = p[3] = 0;
  }
  __device__ __forceinline__ void store(u64 at, const u32 (&w)[4], bool valid, const Args&, u32) const {
    if (valid) store_sys(at, w);
  }
};
