// Checked transfers: every 8-byte word depends on its index and a seed, so that a word that stayed behind,
// moved or came from an earlier pass is wrong.

typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ u64 word(u64 index, u64 seed) {
    u64 x = (index + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1342543DE82EF95ull;
    x ^= x >> 29;
    return x * 0xBF58476D1CE4E5B9ull;
}

// Every pass stores words of seed + pass to all of [dst, dst + 2 * pairs), 16 bytes a store, system scope.
extern "C" __global__ void fill(u64* dst, u64 pairs, u64 seed, int passes) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (int pass = 0; pass < passes; ++pass)
        for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += step) {
            const u64 a = word(2 * i, seed + pass), b = word(2 * i + 1, seed + pass);
            asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(dst + 2 * i), "l"(a), "l"(b) : "memory");
        }
}

// Adds to wrong[0] the words of [src, src + 2 * pairs) that differ from those of the seed.
extern "C" __global__ void count_wrong(const u64* src, u64 pairs, u64 seed, u32* wrong) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    u32 bad = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += step) {
        u64 a, b;
        asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(src + 2 * i) : "memory");
        bad += (a != word(2 * i, seed)) + (b != word(2 * i + 1, seed));
    }
    if (bad) atomicAdd(wrong, bad);
}
