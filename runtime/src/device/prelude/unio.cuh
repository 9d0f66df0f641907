// Names that every kernel text may use, on CUDA and on the emulator alike.
#ifndef UNIO_PRELUDE
#define UNIO_PRELUDE

#ifndef UNIO_REAL
#define UNIO_REAL float
#endif
typedef UNIO_REAL real;

#ifndef UNIO_EMULATOR
// Most threads of a block; then, where a launch has few blocks, 1: registers count for more than room for further blocks.
#define UNIO_KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define UNIO_DEVICE static __device__ __forceinline__
extern __shared__ __align__(128) unsigned char unio_shared_arena[];
#define UNIO_SHARED(T, name, byte_offset) T* name = reinterpret_cast<T*>(unio_shared_arena + (byte_offset))
#define UNIO_LIBM(name) ::name
#define UNIO_PRAGMA(text) _Pragma(#text)
#define UNIO_UNROLL(times) UNIO_PRAGMA(unroll times)
#else
#define UNIO_LIBM(name) __builtin_##name
#define UNIO_UNROLL(times)
#endif

// Nobody else writes an IN; only its writer reads an OUT back; an INOUT may be shared between threads, of an OWN each thread
// reads and writes its own elements; a SCALAR may be one that the same kernel moves on through another pointer.
#define UNIO_IN(T, name) const T* __restrict__ name
#define UNIO_OUT(T, name) T* __restrict__ name
#define UNIO_INOUT(T, name) T* name
#define UNIO_OWN(T, name) T* __restrict__ name
#define UNIO_SCALAR(T, name) const T* name

// ---------------------------------------------------------------------------------------------------------------------
// Math. The float versions use IEEE add, multiply, divide, square root, explicit fma and integer tricks only, so that a
// CPU and a GPU give the same bits. Their NaN results are 0x7fc00000 (of unio_abs: its operand); NaN from plain arithmetic
// has other bits on each device. The double versions call libm, whose last bits differ between devices.
// Largest errors seen over all floats, in units of the last place: exp, log 0.9; tanh 1.4; log1p, sin, cos 1.5;
// softplus 2.0; sigmoid 2.4; pow 0.6; sqrt, floor, min, max exact.
// ---------------------------------------------------------------------------------------------------------------------
// An index that data decides, taken back to the nearest row.
UNIO_DEVICE int unio_row(int row, int rows) { return row < 0 ? 0 : (row < rows ? row : rows - 1); }
UNIO_DEVICE float unio_inf() { return __int_as_float(0x7f800000); }
UNIO_DEVICE float unio_nan() { return __int_as_float(0x7fc00000); }

UNIO_DEVICE float unio_fma(float a, float b, float c) { return UNIO_LIBM(fmaf)(a, b, c); }
UNIO_DEVICE double unio_fma(double a, double b, double c) { return UNIO_LIBM(fma)(a, b, c); }
UNIO_DEVICE float unio_sqrt(float x) { return x < 0.0f || x != x ? unio_nan() : UNIO_LIBM(sqrtf)(x); }
UNIO_DEVICE double unio_sqrt(double x) { return UNIO_LIBM(sqrt)(x); }
UNIO_DEVICE float unio_rint(float x) { return UNIO_LIBM(rintf)(x); }
UNIO_DEVICE double unio_rint(double x) { return UNIO_LIBM(rint)(x); }
UNIO_DEVICE float unio_floor(float x) { return x != x ? unio_nan() : UNIO_LIBM(floorf)(x); }
UNIO_DEVICE double unio_floor(double x) { return UNIO_LIBM(floor)(x); }
UNIO_DEVICE float unio_abs(float x) { return __int_as_float(__float_as_int(x) & 0x7fffffff); }
UNIO_DEVICE double unio_abs(double x) { return __longlong_as_double(__double_as_longlong(x) & 0x7fffffffffffffffll); }
UNIO_DEVICE bool unio_isfinite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
UNIO_DEVICE bool unio_isfinite(double x) {
    return ((unsigned long long)__double_as_longlong(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
}

// IEEE fmin and fmax: one NaN gives the other operand, two NaNs give NaN, and -0 is below +0.
#ifndef UNIO_EMULATOR
// One instruction each on a GPU, NaNs and zeros as said; only two NaNs have to be told.
UNIO_DEVICE float unio_min(float a, float b) {
    const float r = ::fminf(a, b);
    return r == r ? r : unio_nan();
}
UNIO_DEVICE float unio_max(float a, float b) {
    const float r = ::fmaxf(a, b);
    return r == r ? r : unio_nan();
}
#else
UNIO_DEVICE float unio_min(float a, float b) {
    if (a < b) return a;
    if (b < a) return b;
    if (a == b) return __int_as_float(__float_as_int(a) | __float_as_int(b));
    return a == a ? a : (b == b ? b : unio_nan());
}
UNIO_DEVICE float unio_max(float a, float b) {
    if (a > b) return a;
    if (b > a) return b;
    if (a == b) return __int_as_float(__float_as_int(a) & __float_as_int(b));
    return a == a ? a : (b == b ? b : unio_nan());
}
#endif
UNIO_DEVICE double unio_min(double a, double b) {
    if (a < b) return a;
    if (b < a) return b;
    if (a == b) return __longlong_as_double(__double_as_longlong(a) | __double_as_longlong(b));
    return a == a ? a : b;
}
UNIO_DEVICE double unio_max(double a, double b) {
    if (a > b) return a;
    if (b > a) return b;
    if (a == b) return __longlong_as_double(__double_as_longlong(a) & __double_as_longlong(b));
    return a == a ? a : b;
}

// Four neighbours by accesses of 16 bytes, from an address that is a multiple of their size; so many elements lie between such an
// address and this one.
template <class T> UNIO_DEVICE unsigned unio_lead(const T* p) { return unsigned(reinterpret_cast<size_t>(p) / sizeof(T) % 4); }
// Whether so many elements from place `first` on are all there, where the first element has place `lead`.
UNIO_DEVICE bool unio_whole(unsigned first, unsigned lead, unsigned length, unsigned n) {
    return first >= lead && first - lead + length <= n;
}
#ifndef UNIO_EMULATOR
template <class T> struct alignas(16) UnioSixteen { T of[16 / sizeof(T)]; };
template <class T> UNIO_DEVICE void unio_load4(T* to, const T* from) {
    const int per = 16 / sizeof(T);
    UNIO_UNROLL() for (int n = 0; n < 4 / per; ++n) {
        const UnioSixteen<T> held = reinterpret_cast<const UnioSixteen<T>*>(from)[n];
        UNIO_UNROLL() for (int k = 0; k < per; ++k) to[n * per + k] = held.of[k];
    }
}
template <class T> UNIO_DEVICE void unio_store4(T* to, const T* from) {
    const int per = 16 / sizeof(T);
    UNIO_UNROLL() for (int n = 0; n < 4 / per; ++n) {
        UnioSixteen<T> held;
        UNIO_UNROLL() for (int k = 0; k < per; ++k) held.of[k] = from[n * per + k];
        reinterpret_cast<UnioSixteen<T>*>(to)[n] = held;
    }
}
#else
template <class T> UNIO_DEVICE void unio_load4(T* to, const T* from) {
    for (int k = 0; k < 4; ++k) to[k] = from[k];
}
template <class T> UNIO_DEVICE void unio_store4(T* to, const T* from) {
    for (int k = 0; k < 4; ++k) to[k] = from[k];
}
#endif

// Copies a number into shared memory while the thread goes on; it is there after unio_copied() and a barrier.
template <class T> UNIO_DEVICE void unio_copy(T* to, const T* from) {
#if !defined(UNIO_EMULATOR) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
                 "n"(sizeof(T)) : "memory");
#else
    *to = *from;
#endif
}
UNIO_DEVICE void unio_copied() {
#if !defined(UNIO_EMULATOR) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// What lanes that share an element have, joined in a fixed tree; every one of them gets the same bits. The mask names the lanes
// that are there: of the warp all, or those of the element.
#define UNIO_WARP 0xffffffffu
template <int LANES> UNIO_DEVICE unsigned unio_sharers() {
    return LANES == 32 ? UNIO_WARP : ((1u << (LANES % 32)) - 1) << (threadIdx.x % 32 / LANES * LANES);
}
#ifndef UNIO_EMULATOR
template <int LANES, class T> UNIO_DEVICE T unio_lanes_sum(unsigned mask, T x) {
    for (int half = LANES / 2; half > 0; half /= 2) x = x + __shfl_xor_sync(mask, x, half);
    return x;
}
template <int LANES, class T> UNIO_DEVICE T unio_lanes_max(unsigned mask, T x) {
    for (int half = LANES / 2; half > 0; half /= 2) x = unio_max(x, __shfl_xor_sync(mask, x, half));
    return x;
}
template <int LANES, class T> UNIO_DEVICE T unio_lanes_min(unsigned mask, T x) {
    for (int half = LANES / 2; half > 0; half /= 2) x = unio_min(x, __shfl_xor_sync(mask, x, half));
    return x;
}
// Of as many sums as lanes, all split over the lanes, each lane gets the one of its own number, joined in a fixed tree.
template <int LANES, class T> UNIO_DEVICE T unio_lanes_own(unsigned mask, T (&x)[LANES]) {
    UNIO_UNROLL() for (int half = LANES / 2; half > 0; half /= 2) {
        const bool upper = threadIdx.x & half;
        UNIO_UNROLL() for (int n = 0; n < half; ++n) {
            const T kept = upper ? x[n + half] : x[n], given = upper ? x[n] : x[n + half];
            x[n] = kept + __shfl_xor_sync(mask, given, half);
        }
    }
    return x[0];
}
#else
// The same trees, climbed at one meeting of the lanes instead of one a level: a meeting is what costs here.
enum { UNIO_SUM = 0, UNIO_MAX = 1, UNIO_MIN = 2, UNIO_OWN_SUM = 3 };
template <class T> struct unio_type;
template <> struct unio_type<float> { enum { number = 0 }; };
template <> struct unio_type<double> { enum { number = 1 }; };
template <> struct unio_type<int> { enum { number = 2 }; };
UNIO_DEVICE int unio_max(int a, int b) { return a > b ? a : b; }
UNIO_DEVICE int unio_min(int a, int b) { return a < b ? a : b; }
template <class T> static T unio_joined(unsigned how, T a, T b) {
    return how == UNIO_MAX ? unio_max(a, b) : (how == UNIO_MIN ? unio_min(a, b) : a + b);
}
// A lane outside the mask has no value: all bits set, as for a shuffle.
template <class T> static void unio_climb(unio_thread* lanes, unsigned mask, unsigned how) {
    T x[32], next[32];
    for (unsigned lane = 0; lane < 32; ++lane) x[lane] = unio_from_bits<T>(mask >> lane & 1 ? lanes[lane].value : ~0ull);
    for (unsigned half = lanes[__builtin_ctz(mask)].source / 2; half > 0; half /= 2) {
        for (unsigned lane = 0; lane < 32; ++lane) next[lane] = unio_joined(how, x[lane], x[lane ^ half]);
        __builtin_memcpy(x, next, sizeof(x));
    }
    for (unsigned m = mask; m; m &= m - 1) lanes[__builtin_ctz(m)].result = unio_to_bits(x[__builtin_ctz(m)]);
}
// Each lane's value is the address of its sums.
template <class T> static void unio_climb_own(unio_thread* lanes, unsigned mask) {
    for (unsigned half = lanes[__builtin_ctz(mask)].source / 2; half > 0; half /= 2) {
        T next[32][32];
        for (unsigned m = mask; m; m &= m - 1) {
            const unsigned lane = __builtin_ctz(m), partner = lane ^ half, from = lane & half;
            const T* own = (const T*)lanes[lane].value;
            const T* other = mask >> partner & 1 ? (const T*)lanes[partner].value : 0;
            for (unsigned n = 0; n < half; ++n) next[lane][n] = own[n + from] + (other ? other[n + from] : unio_from_bits<T>(~0ull));
        }
        for (unsigned m = mask; m; m &= m - 1) {
            const unsigned lane = __builtin_ctz(m);
            __builtin_memcpy((T*)lanes[lane].value, next[lane], half * sizeof(T));
        }
    }
    for (unsigned m = mask; m; m &= m - 1) {
        unio_thread& lane = lanes[__builtin_ctz(m)];
        lane.result = unio_to_bits(*(const T*)lane.value);
    }
}
template <class T> static void unio_join_as(unio_thread* lanes, unsigned mask, unsigned how) {
    if (how == UNIO_OWN_SUM) unio_climb_own<T>(lanes, mask);
    else unio_climb<T>(lanes, mask, how);
}
static void unio_join(unio_thread* lanes, unsigned mask, unsigned op) {
    const unsigned how = (op - UNIO_OP_JOIN) % 4, type = (op - UNIO_OP_JOIN) / 4;
    if (type == unio_type<double>::number) unio_join_as<double>(lanes, mask, how);
    else if (type == unio_type<float>::number) unio_join_as<float>(lanes, mask, how);
    else unio_join_as<int>(lanes, mask, how);
}
template <int LANES, class T> static T unio_meet(unsigned how, unsigned mask, unsigned long long value) {
    return unio_from_bits<T>(unio_collective(UNIO_OP_JOIN + unio_type<T>::number * 4 + how, mask, value, LANES));
}
template <int LANES, class T> UNIO_DEVICE T unio_lanes_sum(unsigned mask, T x) {
    return LANES == 1 ? x : unio_meet<LANES, T>(UNIO_SUM, mask, unio_to_bits(x));
}
template <int LANES, class T> UNIO_DEVICE T unio_lanes_max(unsigned mask, T x) {
    return LANES == 1 ? x : unio_meet<LANES, T>(UNIO_MAX, mask, unio_to_bits(x));
}
template <int LANES, class T> UNIO_DEVICE T unio_lanes_min(unsigned mask, T x) {
    return LANES == 1 ? x : unio_meet<LANES, T>(UNIO_MIN, mask, unio_to_bits(x));
}
template <int LANES, class T> UNIO_DEVICE T unio_lanes_own(unsigned mask, T (&x)[LANES]) {
    return unio_meet<LANES, T>(UNIO_OWN_SUM, mask, (unsigned long long)&x[0]);
}
#endif

// 2^k for -126 <= k <= 127.
UNIO_DEVICE float unio_exp2i(int k) { return __int_as_float((k + 127) << 23); }

UNIO_DEVICE float unio_exp(float x) {
    // Beyond these ends the result is 0 or Inf anyway; inside them k fits the two-step scaling.
    float v = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
    v = x != x ? 0.0f : v;
    float k = unio_rint(v * 1.44269502f);
    float f = unio_fma(k, -6.93145752e-1f, v);
    f = unio_fma(k, -1.42860677e-6f, f);
    float r = 1.37805939e-3f;
    r = unio_fma(r, f, 8.37312452e-3f);
    r = unio_fma(r, f, 4.16695364e-2f);
    r = unio_fma(r, f, 1.66664720e-1f);
    r = unio_fma(r, f, 4.99999851e-1f);
    r = unio_fma(r, f, 1.0f);
    r = unio_fma(r, f, 1.0f);
    int i = (int)k, half = i >> 1;
    // Two steps, so that a denormal result is rounded once and 2^128 is never formed.
    r = (r * unio_exp2i(half)) * unio_exp2i(i - half);
    return x != x ? unio_nan() : r;
}
UNIO_DEVICE double unio_exp(double x) { return UNIO_LIBM(exp)(x); }

// Splits a positive finite a into m * 2^e with m in [2/3, 4/3).
UNIO_DEVICE float unio_split(float a, float* exponent) {
    float shift = 0.0f;
    if (a < 1.17549435e-38f) {
        a *= 8388608.0f;
        shift = -23.0f;
    }
    int e = (__float_as_int(a) - 0x3f2aaaab) & (int)0xff800000;
    *exponent = unio_fma((float)e, 1.1920929e-7f, shift);
    return __int_as_float(__float_as_int(a) - e);
}

UNIO_DEVICE float unio_log(float x) {
    if (x == 0.0f) return -unio_inf();
    if (!(x > 0.0f)) return unio_nan();
    if (!unio_isfinite(x)) return x;
    float e;
    float m = unio_split(x, &e) - 1.0f;
    float s = m * m;
    float r = -0.130310059f, t = 0.140869141f;
    r = unio_fma(r, s, -0.121483512f);
    t = unio_fma(t, s, 0.139814854f);
    r = unio_fma(r, s, -0.166846126f);
    t = unio_fma(t, s, 0.200120345f);
    r = unio_fma(r, s, -0.249996200f);
    r = unio_fma(t, m, r);
    r = unio_fma(r, m, 0.333331972f);
    r = unio_fma(r, m, -0.5f);
    r = unio_fma(r, s, m);
    return unio_fma(e, 0.693147182f, r);
}
UNIO_DEVICE double unio_log(double x) { return UNIO_LIBM(log)(x); }

UNIO_DEVICE float unio_log1p(float x) {
    if (x != x || x < -1.0f) return unio_nan();
    float u = 1.0f + x;
    if (u == 1.0f) return x;
    if (u == 0.0f) return -unio_inf();
    if (!unio_isfinite(x)) return x;
    // What rounding 1 + x lost, carried to first order.
    float lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
    return unio_log(u) + lost / u;
}
UNIO_DEVICE double unio_log1p(double x) { return UNIO_LIBM(log1p)(x); }

// a / b where neither they nor the result are near the ends of the range: what a division does there, without its branch.
UNIO_DEVICE float unio_quotient(float a, float b) {
#ifdef UNIO_EMULATOR
    return a / b;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(b));
    y = unio_fma(y, unio_fma(-b, y, 1.0f), y);
    float q = a * y;
    q = unio_fma(unio_fma(-b, q, a), y, q);
    // The second step makes it the nearest float (Markstein): the bits of a division.
    return unio_fma(unio_fma(-b, q, a), y, q);
#endif
}

// No branch: a compiler may do several of them side by side.
UNIO_DEVICE float unio_tanh(float x) {
    float t = unio_abs(x);
    // Beyond 20 it is 1 anyway.
    float r = 1.0f - unio_quotient(2.0f, unio_exp(t < 20.0f ? 2.0f * t : 40.0f) + 1.0f);
    float s = x * x;
    float p = -5.81908459e-3f;
    p = unio_fma(p, s, 2.07347516e-2f);
    p = unio_fma(p, s, -5.37670441e-2f);
    p = unio_fma(p, s, 1.33317456e-1f);
    p = unio_fma(p, s, -3.33332926e-1f);
    p = unio_fma(p * s, x, x);
    r = x < 0.0f ? -r : r;
    r = t >= 0.599609375f ? r : p;
    return x != x ? unio_nan() : r;
}
UNIO_DEVICE double unio_tanh(double x) { return UNIO_LIBM(tanh)(x); }

UNIO_DEVICE float unio_sigmoid(float x) {
    float e = unio_exp(-unio_abs(x));
    // Below 2^-30 it is e itself.
    bool tiny = x < 0.0f && e < 9.31322575e-10f;
    float r = unio_quotient(x < 0.0f && !tiny ? e : 1.0f, 1.0f + e);
    r = tiny ? e : r;
    return x != x ? unio_nan() : r;
}
UNIO_DEVICE double unio_sigmoid(double x) {
    double e = unio_exp(-unio_abs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

// log(1 + exp(x)), without overflow.
UNIO_DEVICE float unio_softplus(float x) {
    if (x != x) return unio_nan();
    return (x > 0.0f ? x : 0.0f) + unio_log1p(unio_exp(-unio_abs(x)));
}
UNIO_DEVICE double unio_softplus(double x) {
    return x != x ? x : (x > 0.0 ? x : 0.0) + unio_log1p(unio_exp(-unio_abs(x)));
}

// |x| beyond what three-part reduction carries: 96 bits of 2/pi at the place that matters (Payne and Hanek).
UNIO_DEVICE float unio_reduce_large(float x, int* quadrant) {
    const unsigned two_over_pi[] = {0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
    unsigned bits = __float_as_uint(x);
    unsigned m = (bits & 0x7fffffu) | 0x800000u;
    int at = (int)(bits >> 23 & 255u) - 150 - 2 + 32;
    int word = at >> 5, shift = at & 31;
    unsigned long long w0 = two_over_pi[word], w1 = two_over_pi[word + 1], w2 = two_over_pi[word + 2];
    unsigned long long hi = w0 << 32 | w1;
    unsigned long long lo = w2;
    if (shift) {
        unsigned long long w3 = two_over_pi[word + 3];
        lo = (w2 << shift | w3 >> (32 - shift)) & 0xffffffffull;
        hi = hi << shift | w2 >> (32 - shift);
    }
    // The top two bits count quarter turns; the rest is the fraction of one, here as a signed 64-bit number.
    unsigned long long turn = hi * m + (lo * m >> 32);
    int q = (int)(turn >> 62);
    long long part = (long long)(turn << 2);
    if (part < 0) q += 1;
    float r = (float)((double)part * 8.515303950216386e-20);
    if (x < 0.0f) {
        r = -r;
        q = -q;
    }
    *quadrant = q & 3;
    return r;
}
UNIO_DEVICE float unio_reduce(float x, int* quadrant) {
    if (unio_abs(x) > 71476.0f) return unio_reduce_large(x, quadrant);
    float k = unio_rint(x * 0.636619747f);
    *quadrant = (int)k & 3;
    float r = unio_fma(k, -1.57079601e+00f, x);
    r = unio_fma(k, -3.13916473e-07f, r);
    return unio_fma(k, -5.39030253e-15f, r);
}
UNIO_DEVICE float unio_sin_part(float r) {
    float s = r * r;
    float p = 2.86567956e-6f;
    p = unio_fma(p, s, -1.98559923e-4f);
    p = unio_fma(p, s, 8.33338592e-3f);
    p = unio_fma(p, s, -1.66666672e-1f);
    return unio_fma(p, r * s, r);
}
UNIO_DEVICE float unio_cos_part(float r) {
    float s = r * r;
    float p = 2.44677067e-5f;
    p = unio_fma(p, s, -1.38877297e-3f);
    p = unio_fma(p, s, 4.16666567e-2f);
    p = unio_fma(p, s, -5.00000000e-1f);
    return unio_fma(p, s, 1.0f);
}
UNIO_DEVICE float unio_sin(float x) {
    if (!unio_isfinite(x)) return unio_nan();
    if (x == 0.0f) return x;
    int q;
    float r = unio_reduce(x, &q);
    float v = q & 1 ? unio_cos_part(r) : unio_sin_part(r);
    return q & 2 ? -v : v;
}
UNIO_DEVICE float unio_cos(float x) {
    if (!unio_isfinite(x)) return unio_nan();
    int q;
    float r = unio_reduce(x, &q);
    float v = q & 1 ? unio_sin_part(r) : unio_cos_part(r);
    return (q + 1) & 2 ? -v : v;
}
UNIO_DEVICE double unio_sin(double x) { return UNIO_LIBM(sin)(x); }
UNIO_DEVICE double unio_cos(double x) { return UNIO_LIBM(cos)(x); }

// The power of a float goes through double polynomials of our own: in float the logarithm's rounding would be multiplied by y.
UNIO_DEVICE double unio_log_wide(float a) {
    float e;
    double m = unio_split(a, &e);
    double z = (m - 1.0) / (m + 1.0), s = z * z;
    double p = 1.0 / 17.0;
    p = unio_fma(p, s, 1.0 / 15.0);
    p = unio_fma(p, s, 1.0 / 13.0);
    p = unio_fma(p, s, 1.0 / 11.0);
    p = unio_fma(p, s, 1.0 / 9.0);
    p = unio_fma(p, s, 1.0 / 7.0);
    p = unio_fma(p, s, 1.0 / 5.0);
    p = unio_fma(p, s, 1.0 / 3.0);
    p = unio_fma(p, s, 1.0);
    return unio_fma((double)e, 0.69314718055994531, 2.0 * z * p);
}
UNIO_DEVICE float unio_exp_wide(double v) {
    v = v < -105.0 ? -105.0 : (v > 90.0 ? 90.0 : v);
    double k = unio_rint(v * 1.4426950408889634);
    double f = unio_fma(k, -0.69314718055994531, v);
    double p = 1.0 / 3628800.0;
    p = unio_fma(p, f, 1.0 / 362880.0);
    p = unio_fma(p, f, 1.0 / 40320.0);
    p = unio_fma(p, f, 1.0 / 5040.0);
    p = unio_fma(p, f, 1.0 / 720.0);
    p = unio_fma(p, f, 1.0 / 120.0);
    p = unio_fma(p, f, 1.0 / 24.0);
    p = unio_fma(p, f, 1.0 / 6.0);
    p = unio_fma(p, f, 0.5);
    p = unio_fma(p, f, 1.0);
    p = unio_fma(p, f, 1.0);
    return (float)(p * __longlong_as_double(((long long)k + 1023) << 52));
}
// 0: not an integer, 1: odd, 2: even.
UNIO_DEVICE int unio_parity(float y) {
    if (unio_floor(y) != y) return 0;
    float half = 0.5f * y;
    return unio_floor(half) == half ? 2 : 1;
}
UNIO_DEVICE float unio_pow(float x, float y) {
    if (y == 0.0f || x == 1.0f) return 1.0f;
    if (x != x || y != y) return unio_nan();
    float a = unio_abs(x);
    bool infinite_y = !unio_isfinite(y);
    int parity = infinite_y ? 2 : unio_parity(y);
    if (infinite_y) return a == 1.0f ? 1.0f : ((a > 1.0f) == (y > 0.0f) ? unio_inf() : 0.0f);
    bool negative = __float_as_int(x) < 0 && parity == 1;
    float r;
    if (a == 0.0f || !unio_isfinite(a)) r = (a == 0.0f) == (y > 0.0f) ? 0.0f : unio_inf();
    else if (x < 0.0f && parity == 0) return unio_nan();
    else r = unio_exp_wide((double)y * unio_log_wide(a));
    return negative ? -r : r;
}
UNIO_DEVICE double unio_pow(double x, double y) { return UNIO_LIBM(pow)(x, y); }

#endif
