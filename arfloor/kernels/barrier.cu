// Device barrier over the ranks: one small block a rank, enqueued before what is to be timed, so that
// no rank's clock starts before the last rank has arrived, whenever its host launched the work.
//
// areas[p] is where rank p reads its arrivals: `world` flags, one a 128-byte line. It lies in p's own
// memory (peer path) or in registered host memory (host path). The sequence number is the device's own
// counter, so a captured barrier advances at each replay. Compared as signed differences, so it may wrap.
//
// A rank that waits longer than limit_ns gives up, sets *error, and lets the work behind it run: the
// caller reads *error and discards the timing; nothing hangs.

typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ u64 now_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ u32 load_acquire(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void store_release(u32* p, u32 v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

extern "C" __global__ void device_barrier(u32* const* areas, u32* sequence, u32* error, int rank, int world,
                                          u64 limit_ns) {
    const int peer = threadIdx.x;
    const u32 mine = *sequence + 1;
    __syncthreads();  // all threads have read the old number
    if (peer == 0) *sequence = mine;
    if (peer >= world || peer == rank) return;
    store_release(areas[peer] + rank * 32, mine);
    const u32* arrival = areas[rank] + peer * 32;
    const u64 begin = now_ns();
    while ((int)(load_acquire(arrival) - mine) < 0) {
        if (now_ns() - begin > limit_ns) {
            *error = 1;
            return;
        }
    }
}

// Busies the stream for a while: injects skew between ranks in tests.
extern "C" __global__ void delay(u64 ns) {
    const u64 begin = now_ns();
    while (now_ns() - begin < ns) {
    }
}

extern "C" __global__ void empty() {}
