// Clipped sums of persons' gradients, by work that is the same whoever is there.
//
// Single precision ends with the layers' gradients δ and inputs a of a row, which are functions of
// that row alone: lanes never meet before. All that persons share, their norms, factors and sums, is
// float64. Every person of the list is computed, at a place that depends on the list alone: whoever
// is absent, or nobody, has weight 0, by masks and not by branches.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernel_passes.h"

namespace {

constexpr uint64_t ALL = ~uint64_t(0);

inline uint64_t mask_if(bool holds) { return ~uint64_t(0) * uint64_t(holds); }

// x or, where the mask is 0, 0: of NaN and infinity too, which a product by 0 would keep.
inline double masked(double x, uint64_t mask) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits &= mask;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
}

// What 64 lanes are multiplied by, and which of them count.
struct Lanes {
    alignas(64) double factor[LANES];
    alignas(64) uint64_t mask[LANES];
};

// What a person of this gradient norm is multiplied by; NaN and infinity count as nothing.
inline void clipping(double norm, double clip, double& factor, uint64_t& mask) {
    mask &= mask_if(norm < std::numeric_limits<double>::infinity());
    factor = std::min(1.0, clip / std::max(1e-30, norm));
}

// Some lanes of either precision as float64.
inline V<double> exact(const double* p) { return load<double>(p); }
inline V<double> exact(const float* p) {
    typedef float Half __attribute__((vector_size(VECTOR_BYTES / 2)));
    return __builtin_convertvector(*reinterpret_cast<const Half*>(p), V<double>);
}

// Each lane's squared gradient norm, in float64, from the traces.
template <class T>
void add_squares(const Stair& s, const T* delta, size_t delta_step, const T* in, double* squares) {
    constexpr int W = WIDTH<double>, P = 4 < STEPS<double> ? 4 : STEPS<double>;
    for (int lane = 0; lane < LANES; lane += P * W) {
        V<double> seen[P], square[P];
        UNROLL
        for (int p = 0; p < P; ++p)
            seen[p] = splat<double>(s.biased ? 1.0 : 0.0), square[p] = V<double>{};
        int k = 0;
        for (int r = 0; r < s.outs; ++r) {
            for (; k < s.forward.last[r]; ++k) {
                UNROLL
                for (int p = 0; p < P; ++p) {
                    const V<double> a = exact(in + size_t(k) * LANES + lane + p * W);
                    seen[p] += a * a;
                }
            }
            UNROLL
            for (int p = 0; p < P; ++p) {
                const V<double> g = exact(delta + r * delta_step + lane + p * W);
                square[p] += g * g * seen[p];
            }
        }
        UNROLL
        for (int p = 0; p < P; ++p) {
            double* to = squares + lane + p * W;
            store<double>(to, load<double>(to) + square[p]);
        }
    }
}

// 0 to each lane's sum, but NaN where a number is not finite.
template <class T> void add_nothing(const T* units, int count, T* sums) {
    for (int r = 0; r < count; ++r, units += LANES)
        for (int lane = 0; lane < LANES; lane += WIDTH<T>)
            store<T>(sums + lane, load<T>(sums + lane) + load<T>(units + lane) * T(0));
}

// visit(stair, gradients at its outputs, their distance, inputs) for each layer of a block
template <class T, class F> void each_layer(const Net& net, const Trace<T>& t, F visit) {
    for (int l = 0; l <= net.layers; ++l)
        visit(net.stairs[l], l < net.layers ? t.hidden_delta[l] : t.out, size_t(LANES),
              l ? t.hidden[l - 1] : t.x);
    if (const Stair* y = net.direct()) visit(*y, t.out, size_t(2 * LANES), t.x);
}

// Clipped sums and norms of some persons, by one thread.
template <class T> class Gradients {
  public:
    Gradients(const Net& net, const T* weights, const Persons& persons, double clip, bool summing,
              double* norms)
        : net_(net), weights_(weights), persons_(persons), clip_(clip), summing_(summing),
          norms_(norms), work_(net, net.flows), exact_(net, persons.k > 1 ? 0 : 1),
          sum_(net.flows * (persons.k > 1 ? net.own : net.sums)),
          person_(persons.k > 1 ? sum_.size() : 0) {
        int most = 0;
        for (const Stair& s : net.stairs) most = std::max({most, s.ins, s.outs});
        inputs_.resize(most);
        deltas_.resize(most);
        person_.clear();
    }

    double* sum() { return sum_.get(); }

    // Persons begin … end-1 of the list; sum() is then theirs alone.
    void run(int64_t begin, int64_t end) {
        if (summing_) sum_.clear();
        const int64_t k = persons_.k, last = end * k;
        int64_t rows[LANES];
        for (int64_t row = begin * k; row < last; row += LANES) {
            const int count = int(std::min<int64_t>(LANES, last - row));
            int64_t listed = row / k, place = row % k;
            for (int lane = 0; lane < count; ++lane) {
                const int64_t who = persons_.who ? persons_.who[listed] : listed;
                rows[lane] = std::max<int64_t>(who, 0) * k + place;
                lanes_.mask[lane] = mask_if((who >= 0) & (persons_.present[rows[lane]] != 0));
                if (++place == k) ++listed, place = 0;
            }
            std::fill(lanes_.mask + count, lanes_.mask + LANES, uint64_t(0));
            fill(net_, persons_.rows, rows, 0, count, -BOX, BOX, work_);
            forward_all(net_, weights_, work_);
            backward_all(net_, weights_, work_);
            if (k == 1)
                one_row_each(row, count);
            else
                for (int lane = 0; lane < count; ++lane) {
                    add_row(lane);
                    if ((row + lane + 1) % k == 0) finish((row + lane) / k);
                }
        }
    }

  private:
    void one_row_each(int64_t first, int count) {
        alignas(64) double squares[LANES] = {};
        if (norms_ || clip_ < std::numeric_limits<double>::infinity())
            for (const Trace<T>& t : work_.traces)
                each_layer(net_, t, [&](const Stair& s, const T* delta, size_t step, const T* in) {
                    add_squares(s, delta, step, in, squares);
                });
        else  // nothing is clipped: lengths do not matter, as long as they are numbers
            check_finite(squares);
        if (norms_)
            for (int lane = 0; lane < count; ++lane)
                norms_[first + lane] = masked(std::sqrt(squares[lane]), lanes_.mask[lane]);
        if (!summing_) return;
        for (int lane = 0; lane < LANES; ++lane)
            clipping(std::sqrt(squares[lane]), clip_, lanes_.factor[lane], lanes_.mask[lane]);
        for (const Trace<T>& t : work_.traces) {
            make_exact(t);
            double* sum = sum_.get() + (&t - work_.traces.data()) * net_.sums;
            each_layer(net_, exact_.traces[0], [&](const Stair& s, const double* delta, size_t step,
                                                   const double* in) {
                outer<double>(s, delta, step, in, sum + s.sum);
                if (s.biased) add_biases<double>(s, delta, sum + s.bias_sum);
            });
        }
    }

    void check_finite(double* squares) const {
        alignas(64) T nothing[LANES] = {};
        for (const Trace<T>& t : work_.traces) {
            add_nothing(t.x, net_.d, nothing);
            add_nothing(t.out, 2 * net_.d, nothing);
            for (int l = 0; l < net_.layers; ++l) {
                add_nothing(t.hidden[l], net_.widths[l], nothing);
                add_nothing(t.hidden_delta[l], net_.widths[l], nothing);
            }
        }
        for (int lane = 0; lane < LANES; ++lane) squares[lane] = double(nothing[lane]);
    }

    // A block's inputs and gradients in float64, the latter times the lanes' factors.
    void make_exact(const Trace<T>& t) {
        Trace<double>& to = exact_.traces[0];
        copy(t.x, to.x, net_.d, false);
        copy(t.out, to.out, 2 * net_.d, true);
        for (int l = 0; l < net_.layers; ++l) {
            copy(t.hidden[l], to.hidden[l], net_.widths[l], false);
            copy(t.hidden_delta[l], to.hidden_delta[l], net_.widths[l], true);
        }
    }

    void copy(const T* __restrict from, double* __restrict to, int units, bool scaled) const {
        const double* __restrict factor = lanes_.factor;
        const uint64_t* __restrict mask = lanes_.mask;
        for (int r = 0; r < units; ++r, from += LANES, to += LANES)
            if (scaled)
                for (int lane = 0; lane < LANES; ++lane)
                    to[lane] = masked(double(from[lane]) * factor[lane], mask[lane]);
            else
                for (int lane = 0; lane < LANES; ++lane)
                    to[lane] = masked(double(from[lane]), mask[lane]);
    }

    // One row's gradient onto its person's, explicitly: rows of a person may cancel.
    void add_row(int lane) {
        const uint64_t mask = lanes_.mask[lane];
        for (const Trace<T>& t : work_.traces) {
            double* own = person_.get() + (&t - work_.traces.data()) * net_.own;
            each_layer(net_, t, [&](const Stair& s, const T* delta, size_t step, const T* in) {
                for (int k = 0; k < s.ins; ++k)
                    inputs_[k] = masked(double(in[size_t(k) * LANES + lane]), mask);
                for (int r = 0; r < s.outs; ++r)
                    deltas_[r] = masked(double(delta[r * step + lane]), mask);
                const double *a = inputs_.data(), *g = deltas_.data();
                if (s.tall())
                    for (int k = 0; k < s.ins; ++k)
                        add(own + s.own + size_t(k) * s.outs, a[k], g, s.backward.first[k], s.outs);
                else
                    for (int r = 0; r < s.outs; ++r)
                        add(own + s.own + size_t(r) * s.ins, g[r], a, 0, s.forward.last[r]);
                if (s.biased) add(own + s.own_bias, 1.0, g, 0, s.outs);
            });
        }
    }

    static void add(double* __restrict to, double factor, const double* __restrict from, int begin,
                    int end) {
        for (int i = begin; i < end; ++i) to[i] += factor * from[i];
    }

    void finish(int64_t person) {
        double* const own = person_.get();
        const size_t size = person_.size();
        double parts[8] = {};
        for (size_t i = 0; i < size; i += 8)
            for (size_t q = 0; q < std::min<size_t>(8, size - i); ++q)
                parts[q] += own[i + q] * own[i + q];
        double square = 0.0, factor;
        for (double part : parts) square += part;
        uint64_t mask = ALL;
        const double norm = std::sqrt(square);
        clipping(norm, clip_, factor, mask);
        if (norms_) norms_[person] = norm;
        double* const sum = sum_.get();
        if (summing_)
            for (size_t i = 0; i < size; ++i) sum[i] += masked(factor * own[i], mask);
        person_.clear();
    }

    const Net& net_;
    const T* weights_;
    const Persons& persons_;
    const double clip_;
    const bool summing_;
    double* const norms_;
    Workspace<T> work_;
    Workspace<double> exact_;  // one block's
    Lanes lanes_;
    Aligned<double> sum_, person_;
    std::vector<double> inputs_, deltas_;
};

}  // namespace
