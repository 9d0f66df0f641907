// What CUDA gives by itself, for a C++ compiler on a CPU. No standard headers: they would be most of the compile time.
// The layout of unio_thread and unio_block is known to the loader too; change both together.
#define UNIO_EMULATOR 1

typedef __SIZE_TYPE__ size_t;

#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define UNIO_UNUSED __attribute__((unused))

struct unio_dim { unsigned x, y, z; };
struct unio_block;

struct unio_thread {
    unio_dim index;
    unsigned state;
    unio_block* block;
    unsigned op, mask, source, pad;
    unsigned long long value, result;
    const void* yielder;
};

struct unio_block {
    unio_dim index, dim, grid;
    unsigned pad;
    unsigned char* shared;
    unio_thread* threads;
    void (*suspend)(unio_thread*);
    unsigned waiting[32];  // by warp: the lanes that wait at a collective
};

enum { UNIO_READY = 0, UNIO_DONE = 1, UNIO_AT_BARRIER = 2, UNIO_AT_WARP = 3, UNIO_OUTSIDE_MASK = 4 };
enum { UNIO_OP_SYNC = 0, UNIO_OP_SHUFFLE = 1, UNIO_OP_BALLOT = 2, UNIO_OP_MATCH = 3, UNIO_OP_JOIN = 4 };

// Set by the loader before each switch; a block never leaves its worker, so its address is fixed while a kernel runs.
static thread_local unio_thread* unio_self;
extern "C" __attribute__((visibility("default"))) unio_thread** unio_slot() { return &unio_self; }

#define threadIdx (unio_self->index)
#define blockIdx (unio_self->block->index)
#define blockDim (unio_self->block->dim)
#define gridDim (unio_self->block->grid)
#define warpSize 32

#define UNIO_KERNEL(...) static void
#define UNIO_DEVICE UNIO_UNUSED static inline
#define UNIO_SHARED(T, name, byte_offset) T* name = reinterpret_cast<T*>(unio_self->block->shared + (byte_offset))

UNIO_UNUSED static inline void __syncthreads() {
    unio_thread* self = unio_self;
    self->state = UNIO_AT_BARRIER;
    self->block->suspend(self);
}
UNIO_UNUSED static inline void __threadfence() { __sync_synchronize(); }
UNIO_UNUSED static inline void __threadfence_block() { __sync_synchronize(); }
UNIO_UNUSED static inline void __threadfence_system() { __sync_synchronize(); }

// --- warp collectives: the last lane of the mask to arrive computes everybody's result ---
static inline bool unio_all_arrived(unio_block* block, unsigned warp, unsigned mask, unsigned op) {
    if ((block->waiting[warp] & mask) != mask) return false;
    const unio_thread* lanes = block->threads + warp * 32;
    for (unsigned m = mask; m; m &= m - 1) {
        const unio_thread& lane = lanes[__builtin_ctz(m)];
        if (lane.mask != mask || lane.op != op) return false;
    }
    return true;
}
static inline unsigned long long unio_ballot(const unio_thread* lanes, unsigned mask) {
    unsigned long long bits = 0;
    for (unsigned m = mask; m; m &= m - 1) {
        unsigned lane = __builtin_ctz(m);
        if (lanes[lane].value) bits |= 1ull << lane;
    }
    return bits;
}
static inline unsigned long long unio_match(const unio_thread* lanes, unsigned mask, unsigned long long value) {
    unsigned long long bits = 0;
    for (unsigned m = mask; m; m &= m - 1) {
        unsigned lane = __builtin_ctz(m);
        if (lanes[lane].value == value) bits |= 1ull << lane;
    }
    return bits;
}
// Joins of lanes are the prelude's own: it knows how two values are joined. `op` tells which, from UNIO_OP_JOIN on.
static void unio_join(unio_thread* lanes, unsigned mask, unsigned op);
static inline void unio_release(unio_block* block, unsigned warp, unsigned mask, unsigned op) {
    unio_thread* lanes = block->threads + warp * 32;
    unsigned long long ballot = op == UNIO_OP_BALLOT ? unio_ballot(lanes, mask) : 0;
    if (op >= UNIO_OP_JOIN) unio_join(lanes, mask, op);
    for (unsigned m = mask; m; m &= m - 1) {
        unio_thread& lane = lanes[__builtin_ctz(m)];
        // A lane outside the mask has no value: all bits set is a NaN, so that a wrong read shows.
        if (op == UNIO_OP_SHUFFLE) lane.result = (mask >> lane.source & 1) ? lanes[lane.source].value : ~0ull;
        else if (op == UNIO_OP_MATCH) lane.result = unio_match(lanes, mask, lane.value);
        else if (op < UNIO_OP_JOIN) lane.result = ballot;
        lane.state = UNIO_READY;
    }
    block->waiting[warp] &= ~mask;
}
static inline unsigned unio_existing_lanes(const unio_thread* self) {
    unsigned left = self->block->dim.x - (self->index.x & ~31u);
    return left >= 32 ? ~0u : (1u << left) - 1;
}
static inline unsigned unio_lane() { return unio_self->index.x & 31; }

UNIO_UNUSED static __attribute__((noinline)) unsigned long long unio_collective(
    unsigned op, unsigned mask, unsigned long long value, unsigned source) {
    unio_thread* self = unio_self;
    unio_block* block = self->block;
    unsigned warp = self->index.x / 32, lane = self->index.x & 31;
    mask &= unio_existing_lanes(self);
    self->op = op, self->mask = mask, self->value = value, self->source = source;
    self->state = (mask >> lane & 1) ? UNIO_AT_WARP : UNIO_OUTSIDE_MASK;
    block->waiting[warp] |= 1u << lane;
    if (self->state == UNIO_AT_WARP && unio_all_arrived(block, warp, mask, op)) unio_release(block, warp, mask, op);
    block->suspend(self);
    return self->result;
}

template <int BYTES> struct unio_word;
template <> struct unio_word<4> { typedef unsigned type; };
template <> struct unio_word<8> { typedef unsigned long long type; };
template <class T> static inline unsigned long long unio_to_bits(T value) {
    typename unio_word<sizeof(T)>::type word;
    __builtin_memcpy(&word, &value, sizeof(T));
    return word;
}
template <class T> static inline T unio_from_bits(unsigned long long bits) {
    typename unio_word<sizeof(T)>::type word = (typename unio_word<sizeof(T)>::type)bits;
    T value;
    __builtin_memcpy(&value, &word, sizeof(T));
    return value;
}
template <class T> static inline T unio_shuffle(unsigned mask, T value, unsigned source) {
    return unio_from_bits<T>(unio_collective(UNIO_OP_SHUFFLE, mask, unio_to_bits(value), source));
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    unsigned lane = unio_lane(), inside = (unsigned)width - 1;
    return unio_shuffle(mask, value, (lane & ~inside) | ((unsigned)source & inside));
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    unsigned lane = unio_lane(), inside = lane & ((unsigned)width - 1);
    return unio_shuffle(mask, value, delta > inside ? lane : lane - delta);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    unsigned lane = unio_lane(), inside = lane & ((unsigned)width - 1);
    return unio_shuffle(mask, value, inside + delta >= (unsigned)width ? lane : lane + delta);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    unsigned lane = unio_lane(), end = (lane & ~((unsigned)width - 1)) + (unsigned)width;
    unsigned source = (lane ^ (unsigned)lane_mask) & 31;
    return unio_shuffle(mask, value, source >= end ? lane : source);
}
UNIO_UNUSED static inline void __syncwarp(unsigned mask = ~0u) { unio_collective(UNIO_OP_SYNC, mask, 0, 0); }
UNIO_UNUSED static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return (unsigned)unio_collective(UNIO_OP_BALLOT, mask, predicate != 0, 0);
}
UNIO_UNUSED static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
UNIO_UNUSED static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <class T> static inline unsigned __match_any_sync(unsigned mask, T value) {
    return (unsigned)unio_collective(UNIO_OP_MATCH, mask, unio_to_bits(value), 0);
}

// --- bits and integers ---
UNIO_UNUSED static inline unsigned __float_as_uint(float x) { return (unsigned)unio_to_bits(x); }
UNIO_UNUSED static inline int __float_as_int(float x) { return (int)unio_to_bits(x); }
UNIO_UNUSED static inline float __uint_as_float(unsigned x) { return unio_from_bits<float>(x); }
UNIO_UNUSED static inline float __int_as_float(int x) { return unio_from_bits<float>((unsigned)x); }
UNIO_UNUSED static inline long long __double_as_longlong(double x) { return (long long)unio_to_bits(x); }
UNIO_UNUSED static inline double __longlong_as_double(long long x) { return unio_from_bits<double>((unsigned long long)x); }
UNIO_UNUSED static inline int __popc(unsigned x) { return __builtin_popcount(x); }
UNIO_UNUSED static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
UNIO_UNUSED static inline int __ffs(int x) { return __builtin_ffs(x); }
UNIO_UNUSED static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
UNIO_UNUSED static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
UNIO_UNUSED static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
UNIO_UNUSED static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
#define UNIO_MIN_MAX(T)                                                        \
    UNIO_UNUSED static inline T min(T a, T b) { return a < b ? a : b; }        \
    UNIO_UNUSED static inline T max(T a, T b) { return a > b ? a : b; }
UNIO_MIN_MAX(int)
UNIO_MIN_MAX(unsigned)
UNIO_MIN_MAX(long long)
UNIO_MIN_MAX(unsigned long long)
#undef UNIO_MIN_MAX
template <class T> static inline T __ldg(const T* at) { return *at; }

// --- vectors ---
#define UNIO_VECTORS(T, name)                                                                                        \
    struct __align__(2 * sizeof(T)) name##2 { T x, y; };                                                             \
    struct __align__(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };                                  \
    UNIO_UNUSED static inline name##2 make_##name##2(T x, T y) { return name##2{x, y}; }                             \
    UNIO_UNUSED static inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4{x, y, z, w}; }
UNIO_VECTORS(float, float)
UNIO_VECTORS(double, double)
UNIO_VECTORS(int, int)
UNIO_VECTORS(unsigned, uint)
#undef UNIO_VECTORS

// --- entries: the loader calls a kernel with an array of pointers to its arguments ---
template <class T> struct unio_kind { static constexpr char value = '?'; };
template <class T> struct unio_kind<T*> { static constexpr char value = 'p'; };
template <> struct unio_kind<int> { static constexpr char value = 'i'; };
template <> struct unio_kind<unsigned> { static constexpr char value = 'u'; };
template <> struct unio_kind<long> { static constexpr char value = 'l'; };
template <> struct unio_kind<long long> { static constexpr char value = 'l'; };
template <> struct unio_kind<unsigned long> { static constexpr char value = 'm'; };
template <> struct unio_kind<unsigned long long> { static constexpr char value = 'm'; };
template <> struct unio_kind<float> { static constexpr char value = 'f'; };
template <> struct unio_kind<double> { static constexpr char value = 'd'; };

template <class F> struct unio_signature;
template <class... A> struct unio_signature<void (*)(A...)> {
    static constexpr char kinds[] = {unio_kind<A>::value..., 0};
    template <unsigned... I> struct indices {};
    template <unsigned N, unsigned... I> struct count : count<N - 1, N - 1, I...> {};
    template <unsigned... I> struct count<0, I...> { typedef indices<I...> type; };
    template <unsigned... I> static void unpack(void (*kernel)(A...), void** args, indices<I...>) {
        (void)args;
        kernel(*static_cast<A*>(args[I])...);
    }
    static void call(void (*kernel)(A...), void** args) {
        unpack(kernel, args, typename count<sizeof...(A)>::type());
    }
};
#define UNIO_ENTRY(name)                                                                                             \
    extern "C" __attribute__((visibility("default"))) void unio_entry_##name(void** args) {                          \
        unio_signature<decltype(&name)>::call(&name, args);                                                          \
    }                                                                                                                \
    extern "C" __attribute__((visibility("default"))) const char* unio_kinds_##name() {                              \
        return unio_signature<decltype(&name)>::kinds;                                                               \
    }
