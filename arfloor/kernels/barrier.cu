// Device barrier over the ranks: one small block a rank, enqueued before what is to be timed, so that
// no rank's clock starts before the last rank has arrived, whenever its host launched the work.
//
// areas[p] is where rank p reads its arrivals: `world` flags, one a 128-byte line. It lies in p's own
// memory (peer path) or in registered host memory (host path). The sequence number is the device's own
// counter, so a captured barrier advances at each replay. Compared as signed differences, so it may wrap.
//
// Ranks meet twice, settle_ns apart. A rank whose host was late finds its peers waiting; were it let through at
// once, its operations would start while its host still launches their graph, where its peers' graphs are ready. The
// second meeting also takes out what the ranks' clocks differ by.
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

__device__ __forceinline__ bool arrived(const u32* arrival, u32 number, u64 limit_ns) {
    const u64 begin = now_ns();
    while ((int)(load_acquire(arrival) - number) < 0)
        if (now_ns() - begin > limit_ns) return false;
    return true;
}

extern "C" __global__ void device_barrier(u32* const* areas, u32* sequence, u32* error, int rank, int world,
                                          u64 limit_ns, u64 settle_ns) {
    const int peer = threadIdx.x;
    const u32 first = *sequence + 1, second = first + 1;
    const bool other = peer < world && peer != rank;
    __syncthreads();  // all threads have read the old number
    if (peer == 0) *sequence = second;
    if (other) store_release(areas[peer] + rank * 32, first);
    bool good = !other || arrived(areas[rank] + peer * 32, first, limit_ns);
    good = !__syncthreads_or(!good);
    if (good) {
        const u64 begin = now_ns();
        while (now_ns() - begin < settle_ns) {
        }
    }
    // a rank that gave up still says so: its peers need not wait for it
    if (other) store_release(areas[peer] + rank * 32, second);
    good = good && (!other || arrived(areas[rank] + peer * 32, second, limit_ns));
    if (!good) *error = 1;
}

// Busies the stream for a while: injects skew between ranks in tests.
extern "C" __global__ void delay(u64 ns) {
    const u64 begin = now_ns();
    while (now_ns() - begin < ns) {
    }
}

extern "C" __global__ void empty() {}
