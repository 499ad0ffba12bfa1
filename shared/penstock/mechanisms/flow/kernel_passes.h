// 64 rows through a flow: forward, backward, and the inverse.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernel_layers.h"

namespace {

constexpr double BOX = 8.0;
constexpr double LOG_SCALE = 3.0;

// What one block keeps of 64 rows: [unit][lane], columns in the block's order.
template <class T> struct Trace {
    T *x, *z, *scale, *shrink;  // scale: tanh(a'/3); shrink: e^-a
    std::vector<T*> hidden, hidden_delta;
    T* out;  // (2d): means and raw log-scales; later their gradients
};

// Buffers of one thread. `blocks` of them: all for a gradient, one for a pass without memory.
template <class T> class Workspace {
  public:
    Workspace(const Net& net, int blocks) : memory_(size(net) * std::max(blocks, 1)), net_(net) {
        T* at = memory_.get();
        auto take = [&](int rows) {
            T* start = at;
            at += size_t(rows) * LANES;
            return start;
        };
        for (int b = 0; b < blocks; ++b) {
            Trace<T> t{};
            t.x = take(padded(net.d));
            t.z = take(net.d);
            t.scale = take(net.d);
            t.shrink = take(net.d);
            t.out = take(2 * padded(net.d));
            for (int width : net.widths) {
                t.hidden.push_back(take(padded(width)));
                t.hidden_delta.push_back(take(padded(width)));
                clear_padding(t.hidden.back(), width, padded(width));
                clear_padding(t.hidden_delta.back(), width, padded(width));
            }
            clear_padding(t.x, net.d, padded(net.d));
            clear_padding(t.out, 2 * net.d, 2 * padded(net.d));
            traces.push_back(t);
        }
        columns = take(net.d);
        slope = take(net.d);
    }

    std::vector<Trace<T>> traces;
    T *columns, *slope;  // scratch in column order: rows, and the loss's gradient
    alignas(64) T total[LANES];  // Σ a, which is -log|det|

  private:
    static size_t size(const Net& net) {
        size_t rows = 3 * padded(net.d) + 5 * net.d;
        for (int width : net.widths) rows += 2 * padded(width);
        return rows * LANES;
    }

    static void clear_padding(T* buffer, int from, int to) {
        std::fill(buffer + size_t(from) * LANES, buffer + size_t(to) * LANES, T(0));
    }

    Aligned<T> memory_;
    const Net& net_;
};

template <class T> void activate(const Net& net, T* units, int count) {
    T* const end = units + size_t(count) * LANES;
    if (net.relu)
        for (T* p = units; p < end; p += WIDTH<T>) {
            const V<T> v = load<T>(p), zero{};
            store<T>(p, v < zero ? zero : v);  // NaN stays NaN
        }
    else
        for (T* p = units; p < end; p += WIDTH<T>) store<T>(p, tanh<T>(load<T>(p)));
}

// gradient by the value of an activation → gradient by its argument
template <class T> void deactivate(const Net& net, const T* units, T* delta, int count) {
    const size_t end = size_t(count) * LANES;
    for (size_t i = 0; i < end; i += WIDTH<T>) {
        const V<T> a = load<T>(units + i), g = load<T>(delta + i), zero{};
        store<T>(delta + i, net.relu ? (a > zero ? g : zero) : g * (T(1) - a * a));
    }
}

// x within its bounds, NaN as 0; without a branch, since rows must not show in the work.
inline double clean(double x, double low, double high) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits &= ~uint64_t(0) * uint64_t(x == x);
    std::memcpy(&x, &bits, sizeof bits);
    x = x < low ? low : x;
    return x > high ? high : x;
}

// z of one block from t.x, in the block's order; adds Σ a to `total`.
template <class T> void forward(const Net& net, const T* w, Trace<T>& t, T* total) {
    const T* in = t.x;
    for (int l = 0; l < net.layers; ++l) {
        const Stair& s = net.stairs[l];
        layer<T, Start::bias>(t.hidden[l], LANES, w + s.bias, w + s.weight, s.ins, in, s.forward, 0,
                              s.outs);
        activate(net, t.hidden[l], s.outs);
        in = t.hidden[l];
    }
    const Stair& s = net.outputs();
    layer<T, Start::bias>(t.out, LANES, w + s.bias, w + s.weight, s.ins, in, s.forward, 0, s.outs);
    if (const Stair* y = net.direct())
        layer<T, Start::out>(t.out, 2 * LANES, nullptr, w + y->weight, y->ins, t.x, y->forward, 0,
                             y->outs);
    for (int i = 0; i < net.d; ++i)
        for (int lane = 0; lane < LANES; lane += WIDTH<T>) {
            const size_t at = size_t(i) * LANES + lane, mean = at + size_t(i) * LANES;
            const V<T> scale = tanh<T>(load<T>(t.out + mean + LANES) * T(1 / LOG_SCALE));
            const V<T> a = scale * T(LOG_SCALE), shrink = exp<T>(-a);
            store<T>(t.scale + at, scale);
            store<T>(t.shrink + at, shrink);
            store<T>(t.z + at, (load<T>(t.x + at) - load<T>(t.out + mean)) * shrink);
            store<T>(total + lane, load<T>(total + lane) + a);
        }
}

// From the loss's gradient by z (`slope`, in this block's order) to that by x, in place; leaves the
// gradients at every layer's outputs in t. The loss is ½|z|² + Σ a at the flow's end.
template <class T>
void backward(const Net& net, const T* w, Trace<T>& t, T* slope, bool need_columns) {
    for (int i = 0; i < net.d; ++i)
        for (int lane = 0; lane < LANES; lane += WIDTH<T>) {
            const size_t at = size_t(i) * LANES + lane, mean = at + size_t(i) * LANES;
            const V<T> g = load<T>(slope + at), scale = load<T>(t.scale + at);
            const V<T> by_mean = g * load<T>(t.shrink + at);
            const V<T> by_log_scale = T(1) - g * load<T>(t.z + at);
            store<T>(t.out + mean, -by_mean);
            store<T>(t.out + mean + LANES, by_log_scale * (T(1) - scale * scale));
            store<T>(slope + at, by_mean);
        }
    const T* delta = t.out;
    for (int l = net.layers; l >= 1; --l) {
        const Stair& s = net.stairs[l];
        layer<T, Start::zero>(t.hidden_delta[l - 1], LANES, nullptr, w + s.turned, s.outs, delta,
                              s.backward, 0, s.ins);
        deactivate(net, t.hidden[l - 1], t.hidden_delta[l - 1], s.ins);
        delta = t.hidden_delta[l - 1];
    }
    if (!need_columns) return;
    const Stair& s = net.stairs[0];
    layer<T, Start::out>(slope, LANES, nullptr, w + s.turned, s.outs, delta, s.backward, 0, s.ins);
    if (const Stair* y = net.direct())
        // Its outputs are every other one of t.out.
        for (int j = 0; j < net.d; ++j)
            for (int i = j + 1; i < net.d; ++i) {
                const V<T> weight = splat<T>(w[y->weight + size_t(i) * y->ins + j]);
                const T* by_mean = t.out + size_t(2 * i) * LANES;
                T* to = slope + size_t(j) * LANES;
                for (int lane = 0; lane < LANES; lane += WIDTH<T>)
                    store<T>(to + lane, load<T>(to + lane) + weight * load<T>(by_mean + lane));
            }
}

template <class T> void gather(const Net& net, int block, const T* columns, T* ordered) {
    for (int j = 0; j < net.d; ++j)
        std::memcpy(ordered + size_t(j) * LANES, columns + size_t(net.order(block)[j]) * LANES,
                    LANES * sizeof(T));
}

template <class T> void scatter(const Net& net, int block, const T* ordered, T* columns) {
    for (int j = 0; j < net.d; ++j)
        std::memcpy(columns + size_t(net.order(block)[j]) * LANES, ordered + size_t(j) * LANES,
                    LANES * sizeof(T));
}

// Up to 64 rows, clamped, into work.columns; rows[lane] or, without `rows`, from row `begin` on.
template <class T>
void fill(const Net& net, const double* x, const int64_t* rows, int64_t begin, int count,
          double low, double high, Workspace<T>& work) {
    std::fill(work.columns, work.columns + size_t(net.d) * LANES, T(0));
    for (int lane = 0; lane < count; ++lane) {
        const double* row = x + size_t(rows ? rows[lane] : begin + lane) * net.d;
        for (int j = 0; j < net.d; ++j)
            work.columns[size_t(j) * LANES + lane] = T(clean(row[j], low, high));
    }
}

// All blocks; work.columns: x → z, work.total: Σ a.
template <class T> void forward_all(const Net& net, const T* weights, Workspace<T>& work) {
    std::fill(work.total, work.total + LANES, T(0));
    for (int b = 0; b < net.flows; ++b) {
        Trace<T>& t = work.traces[work.traces.size() > 1 ? b : 0];
        gather(net, b, work.columns, t.x);
        forward(net, weights + b * net.weights, t, work.total);
        scatter(net, b, t.z, work.columns);
    }
}

// All blocks, from the loss at z; leaves each layer's gradients in the traces.
template <class T> void backward_all(const Net& net, const T* weights, Workspace<T>& work) {
    for (int b = net.flows - 1; b >= 0; --b) {
        gather(net, b, work.columns, work.slope);
        backward(net, weights + b * net.weights, work.traces[b], work.slope, b > 0);
        scatter(net, b, work.slope, work.columns);
    }
}

// All blocks backwards; work.columns: z → x. Each hidden unit is computed once, as soon as the
// columns that it sees are known.
template <class T> void inverse_all(const Net& net, const T* weights, Workspace<T>& work) {
    Trace<T>& t = work.traces[0];
    for (int b = net.flows - 1; b >= 0; --b) {
        const T* w = weights + b * net.weights;
        gather(net, b, work.columns, t.z);
        for (int i = 0; i < net.d; ++i) {
            const T* in = t.x;
            for (int l = 0; l < net.layers; ++l) {
                const Stair& s = net.stairs[l];
                const int begin = i ? net.units[l][i - 1] : 0, end = net.units[l][i];
                T* units = t.hidden[l];
                layer<T, Start::bias>(units, LANES, w + s.bias, w + s.weight, s.ins, in, s.forward,
                                      begin, end);
                activate(net, units + size_t(begin) * LANES, end - begin);
                in = units;
            }
            const Stair& s = net.outputs();
            layer<T, Start::bias>(t.out, LANES, w + s.bias, w + s.weight, s.ins, in, s.forward,
                                  2 * i, 2 * i + 2);
            if (const Stair* y = net.direct())
                layer<T, Start::out>(t.out, 2 * LANES, nullptr, w + y->weight, y->ins, t.x,
                                     y->forward, i, i + 1);
            const size_t at = size_t(i) * LANES;
            for (int lane = 0; lane < LANES; lane += WIDTH<T>) {
                const T* mean = t.out + 2 * at + lane;
                const V<T> scale = tanh<T>(load<T>(mean + LANES) * T(1 / LOG_SCALE));
                const V<T> spread = load<T>(t.z + at + lane) * exp<T>(scale * T(LOG_SCALE));
                store<T>(t.x + at + lane, load<T>(mean) + spread);
            }
        }
        scatter(net, b, t.x, work.columns);
    }
}

}  // namespace
