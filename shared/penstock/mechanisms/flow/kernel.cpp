// The flow engine's kernel for CPUs: a masked autoregressive flow, its gradient and its inverse.
//
// flow/reference.py says what is computed; this file says how, fast. 64 rows are done at once, one
// per SIMD lane: a buffer is [unit][lane], and every inner loop runs over lanes. Columns are
// gathered into a block's own order and hidden units come sorted by degree, so that every mask is a
// staircase: unit r sees the inputs 0 … hi(r)-1, with hi ascending. Masked entries cost nothing.
//
// One person's squared gradient norm needs no gradient: it is Σ_r δ_r² (1 + Σ_{k < hi(r)} a_k²),
// a running sum over the staircase. Persons with several rows are summed explicitly. Whatever the
// precision, norms and sums are float64.
//
// The work depends on sizes alone, never on what rows hold or on who is present: no branch looks at
// them, nobody is skipped or moved up, and numbers too small for full precision count as 0.
//
// kernel_vectors.h has the arithmetic, kernel_layers.h masked layers, kernel_passes.h a flow forward
// and backward, kernel_gradients.h clipped sums; here are threads, training, and what Python calls.
//
// Built once per instruction set (flow/build.py). Every function is pure: it reads its arguments,
// writes its outputs, and keeps nothing, so that threads may call it as they like. Sums run over
// chunks fixed by the number of rows, in a fixed order: the number of threads changes no bit.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "kernel_gradients.h"

#ifndef PENSTOCK_ORIGIN
#define PENSTOCK_ORIGIN ""
#endif

namespace {

constexpr double HALF_LOG_2PI = 0.91893853320467274178;

// ---------------------------------------------------------------- threads

// While it lives, this thread counts numbers too small for full precision as 0. Arithmetic on them
// takes many times as long, so that time would tell who has them.
class Flushing {
  public:
    Flushing() : before_(read()) { write(before_ | TINY_IS_ZERO); }
    ~Flushing() { write(before_); }
    Flushing(const Flushing&) = delete;
    Flushing& operator=(const Flushing&) = delete;

  private:
#if defined(__x86_64__)
    typedef unsigned int Word;
    static constexpr Word TINY_IS_ZERO = 0x8040;
    static Word read() { return __builtin_ia32_stmxcsr(); }
    static void write(Word word) { __builtin_ia32_ldmxcsr(word); }
#elif defined(__aarch64__)
    typedef uint64_t Word;
    static constexpr Word TINY_IS_ZERO = Word(1) << 24;
    static Word read() {
        Word word;
        __asm__ volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void write(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
    typedef int Word;
    static constexpr Word TINY_IS_ZERO = 0;
    static Word read() { return 0; }
    static void write(Word) {}
#endif
    const Word before_;
};

// work(worker, chunk) for all chunks, each worker's in ascending order. A thread that cannot be had
// is done without.
template <class F> void in_parallel(int64_t chunks, int workers, F work) {
    std::atomic<int64_t> next{0};
    auto loop = [&](int worker) {
        const Flushing flushing;
        for (int64_t c; (c = next.fetch_add(1)) < chunks;) work(worker, c);
    };
    std::vector<std::thread> others;
    try {
        others.reserve(workers);
        for (int i = 1; i < workers; ++i) others.emplace_back(loop, i);
    } catch (const std::system_error&) {
    }
    loop(0);
    for (std::thread& t : others) t.join();
}

// A chunk's size follows from the amount of work alone, never from the threads.
inline int64_t chunk_of(int64_t rows, int64_t least, int64_t most_chunks) {
    const int64_t size = std::max(least, (rows + most_chunks - 1) / most_chunks);
    return (size + LANES - 1) / LANES * LANES;
}

// A thread is worth its start from some 100 µs of work on.
inline int workers_for(const Net& net, int64_t rows, int64_t chunks, int threads) {
    const double work = double(rows) * double(net.flows * net.weights);
    const int64_t useful = 1 + int64_t(std::min(work / 4e6, 1e6));
    return int(std::max<int64_t>(1, std::min<int64_t>({chunks, threads, useful})));
}

// Waits for its turn, so that chunks are added up in order by whichever thread is done first.
class Turns {
  public:
    template <class F> void take(int64_t turn, F act) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return next_ == turn; });
        act();
        ++next_;
        changed_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    int64_t next_ = 0;
};

template <class T>
void clipped_sum(const Net& net, const T* weights, const Persons& persons, double clip, int threads,
                 double* total, double* norms) {
    const int64_t count = persons.who ? persons.m : persons.n;
    // clipping.py counts on this: 64 chunks at most, each of 512 persons or of count/64.
    const int64_t size = chunk_of(count, 512, 64), chunks = (count + size - 1) / size;
    const int workers = workers_for(net, count * persons.k, chunks, threads);
    std::vector<Gradients<T>> each;
    each.reserve(workers);
    for (int i = 0; i < workers; ++i)
        each.emplace_back(net, weights, persons, clip, total != nullptr, norms);
    if (total) std::fill(total, total + net.flows * net.flat, 0.0);
    Turns turns;
    in_parallel(chunks, workers, [&](int worker, int64_t chunk) {
        Gradients<T>& mine = each[worker];
        mine.run(chunk * size, std::min(count, (chunk + 1) * size));
        if (!total) return;
        const double* sum = mine.sum();
        turns.take(chunk, [&] {
            net.each([&](const Place& at) {
                total[at.flat] += sum[persons.k > 1 ? at.own : at.sum];
            });
        });
    });
}

template <class T> void prepare(const Net& net, const double* flat, T* weights) {
    std::fill(weights, weights + net.flows * net.weights, T(0));
    net.each([&](const Place& at) { weights[at.weight] = weights[at.turned] = T(flat[at.flat]); });
}

// Adam without noise, many steps at once; what training.py does step by step, to the last bit.
struct Schedule {
    double divisor, floor, factor, kept;  // kept: iterates in the average, this one included, or 0
};

// One step on the trained numbers. No products are fused into sums, since numpy's are not.
#if !defined(__clang__)
__attribute__((noinline, optimize("O3", "fp-contract=off", "no-math-errno", "no-trapping-math")))
#endif
void adam(double* __restrict gradient, int64_t count, const Schedule& step, double b1, double b2,
          double* __restrict theta, double* __restrict first, double* __restrict second,
          double* __restrict mean) {
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
    for (int64_t i = 0; i < count; ++i) {
        const double g = gradient[i] / step.divisor;
        first[i] = first[i] * b1 + g;
        second[i] = second[i] * b2 + g * g;
        theta[i] -= first[i] / (std::sqrt(second[i]) + step.floor) * step.factor;
    }
    if (step.kept > 0)
        for (int64_t i = 0; i < count; ++i) mean[i] += (theta[i] - mean[i]) / step.kept;
}

template <class T>
void descend(const Net& net, const Persons& persons, const int64_t* ends, double clip, int threads,
             const int64_t* active, int64_t count, int64_t steps, const Schedule* schedule,
             double b1, double b2, double* state) {
    std::vector<double> flat(net.flows * net.flat), total(flat.size()), gradient(count);
    double *theta = state, *first = theta + count, *second = first + count, *mean = second + count;
    Aligned<T> weights(net.flows * net.weights);
    Persons batch = persons;
    for (int64_t step = 0; step < steps; ++step) {
        for (int64_t i = 0; i < count; ++i) flat[active[i]] = theta[i];
        prepare(net, flat.data(), weights.get());
        if (ends) {
            const int64_t begin = step ? ends[step - 1] : 0;
            batch.who = persons.who + begin;
            batch.m = ends[step] - begin;
        }
        clipped_sum<T>(net, weights.get(), batch, clip, threads, total.data(), nullptr);
        for (int64_t i = 0; i < count; ++i) gradient[i] = total[active[i]];
        adam(gradient.data(), count, schedule[step], b1, b2, theta, first, second, mean);
    }
}

// pass(work) on 64 rows of `in` at a time, in work.columns; keep(work, begin, count): the results.
template <class T, class P, class K>
void by_rows(const Net& net, const double* in, int64_t n, double low, double high, int threads,
             P pass, K keep) {
    const int64_t size = 16 * LANES, chunks = (n + size - 1) / size;
    const int workers = workers_for(net, n, chunks, threads);
    std::vector<Workspace<T>> works;
    works.reserve(workers);
    for (int i = 0; i < workers; ++i) works.emplace_back(net, 1);
    in_parallel(chunks, workers, [&](int worker, int64_t chunk) {
        Workspace<T>& work = works[worker];
        for (int64_t at = chunk * size; at < std::min(n, (chunk + 1) * size); at += LANES) {
            const int count = int(std::min<int64_t>(LANES, n - at));
            fill(net, in, nullptr, at, count, low, high, work);
            pass(work);
            keep(work, at, count);
        }
    });
}

template <class T>
void to_latent(const Net& net, const T* weights, const double* x, int64_t n, int threads, double* z,
               double* log_prob) {
    by_rows<T>(
        net, x, n, -BOX, BOX, threads,
        [&](Workspace<T>& work) { forward_all(net, weights, work); },
        [&](Workspace<T>& work, int64_t at, int count) {
            for (int lane = 0; lane < count; ++lane) {
                T square = 0;
                for (int j = 0; j < net.d; ++j) {
                    const T value = work.columns[size_t(j) * LANES + lane];
                    if (z) z[(at + lane) * net.d + j] = value;
                    square += value * value;
                }
                if (log_prob)
                    log_prob[at + lane] =
                        -0.5 * double(square) - double(work.total[lane]) - HALF_LOG_2PI * net.d;
            }
        });
}

template <class T>
void from_latent(const Net& net, const T* weights, const double* z, int64_t n, int threads,
                 double* x) {
    const double most = std::numeric_limits<T>::max();
    by_rows<T>(
        net, z, n, -most, most, threads,
        [&](Workspace<T>& work) { inverse_all(net, weights, work); },
        [&](Workspace<T>& work, int64_t at, int count) {
            for (int lane = 0; lane < count; ++lane)
                for (int j = 0; j < net.d; ++j)
                    x[(at + lane) * net.d + j] =
                        clean(double(work.columns[size_t(j) * LANES + lane]), -BOX, BOX);
        });
}

// Runs `act` and says how it went; no exception may leave through C.
template <class F> int32_t guarded(F act) {
    try {
        act();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    } catch (...) {
        return 2;
    }
}

}  // namespace

// ---------------------------------------------------------------- what Python calls

#define EXPORT extern "C" __attribute__((visibility("default")))

// The best build for this processor: 0 any, 1 AVX2 and FMA, 2 AVX-512.
EXPORT int32_t penstock_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
        return wide ? 2 : 1;
    }
#endif
    return 0;
}

// The digest of the sources, so that a stale build is never called, and how they were compiled.
EXPORT const char* penstock_origin() { return PENSTOCK_ORIGIN; }

EXPORT int64_t penstock_weights(const Shape* shape) {
    const Net net(*shape);
    return int64_t(net.flows * net.weights);
}

#define EXPORTS(T, NAME)                                                                         \
    EXPORT int32_t penstock_prepare_##NAME(const Shape* shape, const double* flat, T* weights) { \
        return guarded([&] { prepare(Net(*shape), flat, weights); });                            \
    }                                                                                            \
    EXPORT int32_t penstock_to_latent_##NAME(const Shape* shape, const T* weights,               \
                                             int32_t threads, const double* x, int64_t n,        \
                                             double* z, double* log_prob) {                      \
        return guarded([&] { to_latent(Net(*shape), weights, x, n, threads, z, log_prob); });    \
    }                                                                                            \
    EXPORT int32_t penstock_from_latent_##NAME(const Shape* shape, const T* weights,             \
                                               int32_t threads, const double* z, int64_t n,      \
                                               double* x) {                                      \
        return guarded([&] { from_latent(Net(*shape), weights, z, n, threads, x); });            \
    }                                                                                            \
    EXPORT int32_t penstock_clipped_sum_##NAME(const Shape* shape, const T* weights,             \
                                               int32_t threads, const Persons* persons,          \
                                               double clip, double* total, double* norms) {      \
        return guarded([&] {                                                                     \
            clipped_sum(Net(*shape), weights, *persons, clip, threads, total, norms);            \
        });                                                                                      \
    }                                                                                            \
    EXPORT int32_t penstock_descend_##NAME(                                                      \
        const Shape* shape, int32_t threads, const Persons* persons, const int64_t* ends,        \
        double clip, const int64_t* active, int64_t count, int64_t steps,                        \
        const Schedule* schedule, double b1, double b2, double* state) {                         \
        return guarded([&] {                                                                     \
            descend<T>(Net(*shape), *persons, ends, clip, threads, active, count, steps,         \
                       schedule, b1, b2, state);                                                 \
        });                                                                                      \
    }

EXPORTS(float, single)
EXPORTS(double, double)
