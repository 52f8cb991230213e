// Lines of 16 to 512 bytes, each written by one instruction of neighbouring lanes, 16 bytes a lane, and
// ending in a tag. No fence and no flag: a line whose tag fits is whole and new.
//
// The tag is the sequence plus a hash of the line's other words. A sequence alone would not do: over PCIe a
// line may arrive in pieces, tag first (128-byte lines did on a host path, one in 10^4).
//
// The hash: each 32-bit word plus a key of its place, multiplied in pairs to 64 bits (two pairings for 64-bit
// tags), summed over the line's lanes. A sum of words times constants would not do either: two sign flips
// change it by 2^31 twice, that is, not at all.

#define LANES (ARF_LINE / 16)
#define TAG_WORDS (ARF_TAG64 ? 2 : 1)
#define PAYLOAD (ARF_LINE - 4 * TAG_WORDS)
#define VECTOR (ARF_TAG64 ? 8 : 4)
#if ARF_TAG64
typedef u64 Tag;
#else
typedef u32 Tag;
#endif

struct Codec {
  u32 lane;  // within the line
  bool last;
  u32 key;  // differs from lane to lane
  Tag salt;

  __device__ __forceinline__ Codec() {
    lane = threadIdx.x % LANES;
    last = lane == LANES - 1;
    key = lane * 0x9E3779B1u;
  }
  __device__ __forceinline__ void sequence(u32 s, u32 epoch) {
#if ARF_TAG64
    salt = s * 0x9E3779B97F4A7C15ull + epoch * 0xC2B2AE3D27D4EB4Full;
#else
    salt = s * 0x9E3779B1u + epoch * 0x85EBCA77u;
#endif
  }
  __device__ __forceinline__ u32 words() const { return last ? 4 - TAG_WORDS : 4; }
  __device__ __forceinline__ u64 at(u64 unit) const { return unit * PAYLOAD + lane * 16; }

  // This lane's part of the hash, mirrored by arfloor.core.tags; the tag's own words count as zero.
  __device__ __forceinline__ Tag part(const u32 (&w)[4]) const {
#ifdef ARF_UNSAFE_HASH
    return 0;
#else
    u32 c = TAG_WORDS == 2 && last ? 0 : w[2], d = last ? 0 : w[3];
    u64 A = (u64)(w[0] + (key + 0x243F6A89u)) * (w[1] + (key + 0x85A308D3u)) +
            (u64)(c + (key + 0x13198A2Fu)) * (d + (key + 0x03707345u));
#if ARF_TAG64
    u64 B = (u64)(w[0] + (key + 0xA4093823u)) * (d + (key + 0x299F31D1u)) +
            (u64)(w[1] + (key + 0x082EFA99u)) * (c + (key + 0xEC4E6C89u));
    return A ^ ((B << 32) | (B >> 32));
#else
    return (u32)A ^ (u32)(A >> 32);
#endif
#endif
  }
  // Sum over the line's lanes, in all of them. Every lane of the warp takes part: the mask is fixed.
  __device__ __forceinline__ static Tag total(Tag x) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
  }
  __device__ __forceinline__ void seal(const u32 (&p)[4], u32 (&w)[4]) const {
    Tag tag = total(part(p)) + salt;
    w[0] = p[0], w[1] = p[1];
    w[2] = TAG_WORDS == 2 && last ? (u32)tag : p[2];
    w[3] = last ? (u32)(tag >> (TAG_WORDS == 2 ? 32 : 0)) : p[3];
  }
  // Whether the line is whole and of this sequence; the same answer in all its lanes. `waited`: whether it was
  // read at all, since what stands in place of a line that does not exist is not a torn one.
  __device__ __forceinline__ bool open(const u32 (&w)[4], const Args& a, u32 sequence, bool waited) const {
    Tag tag = TAG_WORDS == 2 ? (Tag)(((u64)w[3] << 32) | w[2]) : (Tag)w[3];
    Tag rest = total(part(w) - (last ? tag : 0)) + salt;
#ifdef ARF_COUNT_TEARS
    // What a whole line two operations ago leaves is known; anything else is a torn line.
    Codec before = *this;
    before.sequence(sequence - 2, a.epoch);
    if (rest != 0 && rest != salt - before.salt && sequence > 2 && lane == 0 && waited)
      atomicAdd((u64*)(a.state + 8), 1ull);
#endif
    return rest == 0;
  }
  __device__ __forceinline__ void payload(const u32 (&w)[4], u32 (&p)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) p[j] = w[j];
  }
  __device__ __forceinline__ void store(u64 at, const u32 (&w)[4], bool valid, const Args& a, u32 sequence) const {
#ifdef ARF_TEAR
    bool late = LANES > 1 && lane < LANES / 2;
    if (valid && !late) store_sys(at, w);
    __syncwarp();
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    u64 until = now_ns() + a.stall_ns;
    while ((sequence & 3) == 0 && now_ns() < until) { }
    if (valid && late) store_sys(at, w);
#else
    if (valid) store_sys(at, w);
#endif
  }
};
