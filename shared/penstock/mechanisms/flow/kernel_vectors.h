// Vectors of lanes: arithmetic, exp and tanh, sums over lanes; memory that they may be loaded from.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
// Enough registers for a larger tile?
#if defined(__AVX512F__) || defined(__aarch64__)
#define TILE 4
#else
#define TILE 2
#endif

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#define SHUFFLE(U, a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define UNROLL _Pragma("GCC unroll 16")
#define SHUFFLE(U, a, b, i, j, k, l) __builtin_shuffle(a, b, U{i, j, k, l})
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define HALVES 1
#else
#define HALVES 0
#endif

namespace {

constexpr int LANES = 64;

template <class T> struct Simd;

template <> struct Simd<float> {
    typedef float V __attribute__((vector_size(VECTOR_BYTES)));
    typedef uint32_t U __attribute__((vector_size(VECTOR_BYTES)));
    typedef float V4 __attribute__((vector_size(16)));
    typedef int32_t U4 __attribute__((vector_size(16)));
    static constexpr int mantissa = 23, terms = 7;
    static constexpr uint32_t bias = 127;
    static constexpr float round = 12582912.0f;  // 1.5 · 2^23: adding it rounds to whole numbers
    static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
};

template <> struct Simd<double> {
    typedef double V __attribute__((vector_size(VECTOR_BYTES)));
    typedef uint64_t U __attribute__((vector_size(VECTOR_BYTES)));
    typedef double V4 __attribute__((vector_size(32)));
    typedef int64_t U4 __attribute__((vector_size(32)));
    static constexpr int mantissa = 52, terms = 13;
    static constexpr uint64_t bias = 1023;
    static constexpr double round = 6755399441055744.0;  // 1.5 · 2^52
    static constexpr double ln2_high = 6.93147180369123816490e-01;
    static constexpr double ln2_low = 1.90821492927058770002e-10;
};

template <class T> using V = typename Simd<T>::V;
template <class T> constexpr int WIDTH = VECTOR_BYTES / int(sizeof(T));
template <class T> constexpr int STEPS = LANES / WIDTH<T>;  // vectors that hold all lanes

template <class T> inline V<T> load(const T* p) { return *reinterpret_cast<const V<T>*>(p); }
template <class T> inline void store(T* p, V<T> v) { *reinterpret_cast<V<T>*>(p) = v; }
template <class T> inline V<T> splat(T a) { return a - V<T>{}; }

template <class T> constexpr T inverse_factorial(int n) {
    double product = 1.0;
    for (int i = 2; i <= n; ++i) product *= i;
    return T(1.0 / product);
}

// e^x = scale · (1 + part), with part small and exact to the last bits where x is small.
template <class T> inline void exponential(V<T> x, V<T>& scale, V<T>& part) {
    typedef Simd<T> C;
    typedef typename C::U U;
    const V<T> shifted = x * T(1.44269504088896340736) + C::round;
    const V<T> whole = shifted - C::round;
    const V<T> r = (x - whole * C::ln2_high) - whole * C::ln2_low;
    V<T> tail = splat<T>(inverse_factorial<T>(C::terms));
    UNROLL
    for (int i = C::terms - 1; i >= 2; --i) tail = tail * r + inverse_factorial<T>(i);
    part = r + r * r * tail;
    // The whole number's bits are the low ones of `shifted`; moved up, they are the exponent.
    const U bits = ((U)shifted << C::mantissa) + (C::bias << C::mantissa);
    scale = (V<T>)bits;
}

// For |x| far below where e^x overflows: log-scales are bounded.
template <class T> inline V<T> exp(V<T> x) {
    V<T> scale, part;
    exponential<T>(x, scale, part);
    return scale + scale * part;
}

// x within ±limit. NaN stays NaN.
template <class T> inline V<T> bounded(V<T> x, T limit) {
    const V<T> high = splat<T>(limit), low = -high;
    x = x > high ? high : x;
    return x < low ? low : x;
}

template <class T> inline V<T> tanh(V<T> x);

// (e^2x - 1) / (e^2x + 1), by e^2x - 1 without cancellation.
template <> inline V<double> tanh<double>(V<double> x) {
    V<double> scale, part;
    exponential<double>(bounded<double>(x + x, 40.0), scale, part);
    const V<double> less_one = scale * part + (scale - 1.0);
    return less_one / (less_one + 2.0);
}

// x P(x²) / Q(x²), fitted for the least relative error on ±8: 6e-9, and 3e-7 after rounding.
template <> inline V<float> tanh<float>(V<float> x) {
    x = bounded<float>(x, 8.0f);
    const V<float> u = x * x;
    const V<float> p = u * (u * (u * (u * 1.52306328e-8f + 2.18948135e-5f) + 3.57160717e-3f) +
                            0.134445056f) + 1.0f;
    const V<float> q = u * (u * (u * (u * 8.52253379e-7f + 3.41130712e-4f) + 2.61644777e-2f) +
                            0.467778325f) + 1.0f;
    return x * p / q;
}

// Half or quarter sums of a vector: as many as four lanes hold.
template <class T> inline typename Simd<T>::V4 fold(V<T> v) {
#if HALVES
    if constexpr (WIDTH<T> == 4) return v;
    if constexpr (WIDTH<T> == 8)
        return __builtin_shufflevector(v, v, 0, 1, 2, 3) +
               __builtin_shufflevector(v, v, 4, 5, 6, 7);
    if constexpr (WIDTH<T> == 16) {
        const auto half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                          __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
        return __builtin_shufflevector(half, half, 0, 1, 2, 3) +
               __builtin_shufflevector(half, half, 4, 5, 6, 7);
    }
#else
    typename Simd<T>::V4 parts[WIDTH<T> / 4];
    std::memcpy(parts, &v, sizeof v);
    for (int half = WIDTH<T> / 8; half; half /= 2)
        for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
    return parts[0];
#endif
}

// The sums over the lanes of four vectors.
template <class T> inline typename Simd<T>::V4 sums(V<T> a, V<T> b, V<T> c, V<T> d) {
    typedef typename Simd<T>::V4 V4;
    using U4 [[maybe_unused]] = typename Simd<T>::U4;  // clang needs no name for it
    if constexpr (WIDTH<T> < 4) {
        return V4{a[0] + a[1], b[0] + b[1], c[0] + c[1], d[0] + d[1]};
    } else {
        const V4 p = fold<T>(a), q = fold<T>(b), r = fold<T>(c), s = fold<T>(d);
        const V4 pq = SHUFFLE(U4, p, q, 0, 4, 1, 5) + SHUFFLE(U4, p, q, 2, 6, 3, 7);
        const V4 rs = SHUFFLE(U4, r, s, 0, 4, 1, 5) + SHUFFLE(U4, r, s, 2, 6, 3, 7);
        return SHUFFLE(U4, pq, rs, 0, 1, 4, 5) + SHUFFLE(U4, pq, rs, 2, 3, 6, 7);
    }
}

template <class T> class Aligned {
  public:
    explicit Aligned(size_t size)
        : data_(static_cast<T*>(::operator new(size * sizeof(T), std::align_val_t(64)))),
          size_(size) {}
    ~Aligned() { ::operator delete(data_, std::align_val_t(64)); }
    Aligned(Aligned&& other) noexcept : data_(other.data_), size_(other.size_) {
        other.data_ = nullptr;
    }
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    T* get() const { return data_; }
    void clear() { std::fill(data_, data_ + size_, T(0)); }
    size_t size() const { return size_; }

  private:
    T* data_;
    size_t size_;
};

}  // namespace
