// Clipped sums of persons' gradients.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernel_passes.h"

namespace {

constexpr double SLACK = 1e-5;

// Each lane's squared gradient norm, from the traces.
template <class T>
void add_squares(const Stair& s, const T* delta, size_t delta_step, const T* in, double* squares) {
    constexpr int W = WIDTH<T>, P = 4 < STEPS<T> ? 4 : STEPS<T>;
    for (int lane = 0; lane < LANES; lane += P * W) {
        V<T> seen[P], square[P];
        UNROLL
        for (int p = 0; p < P; ++p) seen[p] = splat<T>(s.biased ? T(1) : T(0)), square[p] = V<T>{};
        int k = 0;
        for (int r = 0; r < s.outs; ++r) {
            for (; k < s.forward.last[r]; ++k) {
                UNROLL
                for (int p = 0; p < P; ++p) {
                    const V<T> a = load<T>(in + size_t(k) * LANES + lane + p * W);
                    seen[p] += a * a;
                }
            }
            UNROLL
            for (int p = 0; p < P; ++p) {
                const V<T> g = load<T>(delta + r * delta_step + lane + p * W);
                square[p] += g * g * seen[p];
            }
        }
        alignas(64) T kept[P * W];
        UNROLL
        for (int p = 0; p < P; ++p) store<T>(kept + p * W, square[p]);
        for (int i = 0; i < P * W; ++i) squares[lane + i] += double(kept[i]);
    }
}

// visit(stair, gradients at its outputs, their distance, inputs) for each layer of a block
template <class T, class F> void each_layer(const Net& net, const Trace<T>& t, F visit) {
    for (int l = 0; l <= net.layers; ++l)
        visit(net.stairs[l], l < net.layers ? t.hidden_delta[l] : t.out, size_t(LANES),
              l ? t.hidden[l - 1] : t.x);
    if (const Stair* y = net.direct()) visit(*y, t.out, size_t(2 * LANES), t.x);
}

// What a person of this gradient norm is multiplied by; NaN and infinity fail the comparison.
inline double clipping(double norm, double clip) {
    if (!(norm < std::numeric_limits<double>::infinity())) return 0.0;
    return std::min(1.0, clip * (1 - SLACK) / std::max(norm, 1e-30));
}

// Persons with a present row, and their rows one after another: person u has begin[u] … begin[u+1].
struct Roster {
    std::vector<int64_t> person, begin, rows;

    explicit Roster(const Persons& p) {
        const int64_t count = p.who ? p.m : p.n;
        person.reserve(count);
        begin.reserve(count + 1);
        rows.reserve(count);
        begin.push_back(0);
        for (int64_t u = 0; u < count; ++u) {
            const int64_t at = (p.who ? p.who[u] : u) * p.k;
            for (int64_t r = at; r < at + p.k; ++r)
                if (p.present[r]) rows.push_back(r);
            if (int64_t(rows.size()) == begin.back()) continue;
            begin.push_back(int64_t(rows.size()));
            person.push_back(u);
        }
    }
};

// Clipped sums and norms of some persons, by one thread.
template <class T> class Gradients {
  public:
    Gradients(const Net& net, const T* weights, const Persons& persons, const Roster& roster,
              double clip, bool summing, double* norms)
        : net_(net), weights_(weights), persons_(persons), roster_(roster), clip_(clip),
          summing_(summing), norms_(norms), work_(net, net.flows),
          sum_(net.flows * (persons.k > 1 ? net.own : net.sums)),
          person_(persons.k > 1 ? sum_.size() : 0) {
        int most = 0;
        for (const Stair& s : net.stairs) most = std::max({most, s.ins, s.outs});
        inputs_.resize(most);
        deltas_.resize(most);
    }

    double* sum() { return sum_.get(); }

    // Persons begin … end-1 of the roster; sum() is then theirs alone.
    void run(int64_t begin, int64_t end) {
        if (summing_) sum_.clear();
        if (persons_.k > 1) person_.clear();
        const int64_t last = roster_.begin[end];
        int64_t person = begin;
        for (int64_t row = roster_.begin[begin]; row < last; row += LANES) {
            const int count = int(std::min<int64_t>(LANES, last - row));
            fill(net_, persons_.rows, roster_.rows.data() + row, 0, count, -BOX, BOX, work_);
            forward_all(net_, weights_, work_);
            backward_all(net_, weights_, work_);
            if (persons_.k == 1)
                one_row_each(row, count);
            else
                for (int lane = 0; lane < count; ++lane) {
                    add_row(lane);
                    if (row + lane + 1 == roster_.begin[person + 1]) finish(person++);
                }
        }
    }

  private:
    void one_row_each(int64_t first, int count) {
        double squares[LANES] = {};
        for (const Trace<T>& t : work_.traces)
            each_layer(net_, t, [&](const Stair& s, const T* delta, size_t step, const T* in) {
                add_squares(s, delta, step, in, squares);
            });
        if (norms_)
            for (int lane = 0; lane < count; ++lane)
                norms_[roster_.person[first + lane]] = std::sqrt(squares[lane]);
        if (!summing_) return;
        alignas(64) T factors[LANES];
        bool scaling = false, zeroing = false;
        for (int lane = 0; lane < LANES; ++lane) {
            factors[lane] = lane < count ? T(clipping(std::sqrt(squares[lane]), clip_)) : T(0);
            scaling |= factors[lane] != T(1);
            // 0 · NaN is NaN: a lane without a finite gradient is wiped, inputs and all.
            zeroing |= !(squares[lane] < std::numeric_limits<double>::infinity());
        }
        for (const Trace<T>& t : work_.traces) {
            if (scaling) scale(t.out, 2 * net_.d, factors, zeroing);
            if (zeroing) wipe(t.x, net_.d, factors);
            for (int l = 0; l < net_.layers; ++l) {
                if (scaling) scale(t.hidden_delta[l], net_.widths[l], factors, zeroing);
                if (zeroing) wipe(t.hidden[l], net_.widths[l], factors);
            }
            double* sum = sum_.get() + (&t - work_.traces.data()) * net_.sums;
            each_layer(net_, t, [&](const Stair& s, const T* delta, size_t step, const T* in) {
                outer(s, delta, step, in, sum + s.sum);
                if (s.biased) add_biases(s, delta, sum + s.bias_sum);
            });
        }
    }

    static void scale(T* buffer, int rows, const T* factors, bool zeroing) {
        for (int r = 0; r < rows; ++r, buffer += LANES)
            for (int lane = 0; lane < LANES; lane += WIDTH<T>) {
                const V<T> f = load<T>(factors + lane), zero{};
                const V<T> scaled = load<T>(buffer + lane) * f;
                store<T>(buffer + lane, zeroing ? (f > zero ? scaled : zero) : scaled);
            }
    }

    static void wipe(T* buffer, int rows, const T* factors) {
        for (int r = 0; r < rows; ++r, buffer += LANES)
            for (int lane = 0; lane < LANES; ++lane)
                if (!(factors[lane] > T(0))) buffer[lane] = T(0);
    }

    // One row's gradient onto its person's, explicitly: rows of a person may cancel.
    void add_row(int lane) {
        for (const Trace<T>& t : work_.traces) {
            double* own = person_.get() + (&t - work_.traces.data()) * net_.own;
            each_layer(net_, t, [&](const Stair& s, const T* delta, size_t step, const T* in) {
                for (int k = 0; k < s.ins; ++k) inputs_[k] = in[size_t(k) * LANES + lane];
                for (int r = 0; r < s.outs; ++r) deltas_[r] = delta[r * step + lane];
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
        double square = 0.0;
        for (double part : parts) square += part;
        const double norm = std::sqrt(square), factor = clipping(norm, clip_);
        if (norms_) norms_[roster_.person[person]] = norm;
        double* const sum = sum_.get();
        const bool adding = summing_ && factor > 0;  // 0 · NaN is NaN
        for (size_t i = 0; i < size; ++i) {
            if (adding) sum[i] += factor * own[i];
            own[i] = 0.0;
        }
    }

    const Net& net_;
    const T* weights_;
    const Persons& persons_;
    const Roster& roster_;
    const double clip_;
    const bool summing_;
    double* const norms_;
    Workspace<T> work_;
    Aligned<double> sum_, person_;
    std::vector<double> inputs_, deltas_;
};

}  // namespace
