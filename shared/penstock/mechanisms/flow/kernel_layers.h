// Masked layers as staircases: a flow's layout, products by weights, sums of outer products.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernel_vectors.h"

extern "C" {

// What a flow is made of; see architecture.py. Arrays are the caller's.
struct Shape {
    int32_t columns, flows, layers, relu, linear;
    const int32_t* widths;   // (layers,)
    const int32_t* degrees;  // of all hidden units, layer after layer
    const int32_t* orders;   // (flows, columns)
};

// Rows (n, k, columns) with presence (n, k), and which m persons take part (null: all n); below 0:
// nobody.
struct Persons {
    const double* rows;
    const uint8_t* present;
    int64_t n, k;
    const int64_t* who;
    int64_t m;
};
}

namespace {

inline int padded(int n) { return (n + 3) / 4 * 4; }

// Output r sees inputs first[r] … last[r]-1; both ascend.
struct Steps {
    std::vector<int> first, last;
};

// One masked layer in a block's own order, and where its numbers lie.
struct Stair {
    int outs, ins;
    bool biased;
    Steps forward, backward;      // backward: which outputs an input reaches
    size_t weight, turned, bias;  // in the T weights of a block: (outs, ins), (ins, outs), (outs,)
    size_t sum, bias_sum;         // in the float64 sum of a block: (outs, padded ins), (outs,)
    size_t own, own_bias;         // in a person's float64 gradient of a block, the long side last
    size_t flat, flat_ins;        // in the flat parameters of a block: first weight, row length

    bool tall() const { return outs > ins; }
};

// Where one trained number lies: in the flat parameters, twice in the weights, and in gradients.
struct Place {
    size_t flat, weight, turned, sum, own;
};

// All of a flow's layout: the same staircases in every block, at other columns.
struct Net {
    int d, flows, layers;
    bool relu, linear;
    const int32_t* orders;
    std::vector<int> widths;
    std::vector<std::vector<int>> units;  // units[l][i]: hidden units of layer l of degree ≤ i
    std::vector<Stair> stairs;            // hidden layers, outputs (mean, scale, mean, …), linear
    size_t weights = 0, sums = 0, own = 0, flat = 0;  // sizes per block

    explicit Net(const Shape& shape)
        : d(shape.columns), flows(shape.flows), layers(shape.layers), relu(shape.relu != 0),
          linear(shape.linear != 0), orders(shape.orders),
          widths(shape.widths, shape.widths + shape.layers) {
        std::vector<int> below(d);
        for (int j = 0; j < d; ++j) below[j] = j + 1;
        const int32_t* degrees = shape.degrees;
        for (int width : widths) {
            std::vector<int> own(degrees, degrees + width), counts(d), last(width);
            degrees += width;
            for (int i = 0; i < d; ++i) counts[i] = upto(own, i);
            for (int h = 0; h < width; ++h) last[h] = upto(below, own[h]);
            add(int(below.size()), last, true);
            units.push_back(counts);
            below = own;
        }
        std::vector<int> last(2 * d), columns(d);
        for (int i = 0; i < d; ++i) last[2 * i] = last[2 * i + 1] = units.back()[i];
        add(int(below.size()), last, true);
        outputs().flat_ins += d;
        flat += size_t(2) * d * d;
        if (!linear) return;
        for (int i = 0; i < d; ++i) columns[i] = i;
        const size_t before = flat;
        add(d, columns, false);
        flat = before;
        stairs.back().flat = outputs().flat + widths.back();
        stairs.back().flat_ins = outputs().flat_ins;
    }

    Stair& outputs() { return stairs[layers]; }
    const Stair& outputs() const { return stairs[layers]; }
    const Stair* direct() const { return linear ? &stairs[layers + 1] : nullptr; }
    const int32_t* order(int block) const { return orders + size_t(block) * d; }

    // visit(place) for every number that is trained, block by block.
    template <class F> void each(F visit) const {
        for (int b = 0; b < flows; ++b) {
            const int32_t* order = this->order(b);
            const size_t p = b * flat, w = b * weights, g = b * sums, o = b * own;
            for (size_t l = 0; l < stairs.size(); ++l) {
                const Stair& s = stairs[l];
                const bool columns = l == 0 || int(l) > layers;
                const size_t bias = p + s.flat + size_t(s.outs) * s.flat_ins;
                for (int r = 0; r < s.outs; ++r) {
                    const int row = row_of(int(l), r, order);
                    const size_t at = p + s.flat + row * s.flat_ins;
                    for (int k = 0; k < s.forward.last[r]; ++k) {
                        const size_t by_row = size_t(r) * s.ins + k;
                        const size_t by_column = size_t(k) * s.outs + r;
                        visit(Place{at + (columns ? order[k] : k), w + s.weight + by_row,
                                    w + s.turned + by_column,
                                    g + s.sum + size_t(r) * padded(s.ins) + k,
                                    o + s.own + (s.tall() ? by_column : by_row)});
                    }
                    if (s.biased)
                        visit(Place{bias + row, w + s.bias + r, w + s.bias + r, g + s.bias_sum + r,
                                    o + s.own_bias + r});
                }
            }
        }
    }

  private:
    static int upto(const std::vector<int>& sorted, int value) {
        return int(std::upper_bound(sorted.begin(), sorted.end(), value) - sorted.begin());
    }

    int row_of(int layer, int r, const int32_t* order) const {
        if (layer < layers) return r;
        return layer == layers ? (r % 2) * d + order[r / 2] : order[r];
    }

    void add(int ins, const std::vector<int>& last, bool biased) {
        Stair s{};
        s.outs = int(last.size());
        s.ins = ins;
        s.biased = biased;
        s.forward = {std::vector<int>(s.outs, 0), last};
        s.backward = {std::vector<int>(ins), std::vector<int>(ins, s.outs)};
        for (int k = 0; k < ins; ++k) s.backward.first[k] = upto(last, k);
        const size_t entries = size_t(s.outs) * ins;
        s.weight = weights;
        s.turned = s.weight + entries;
        s.bias = s.turned + entries;
        weights = s.bias + (biased ? s.outs : 0);
        s.sum = sums;
        s.bias_sum = s.sum + size_t(padded(s.outs)) * padded(ins);
        sums = s.bias_sum + (biased ? padded(s.outs) : 0);
        s.own = own;
        s.own_bias = s.own + entries;
        own = s.own_bias + (biased ? s.outs : 0);
        s.flat = flat;
        s.flat_ins = ins;
        flat += entries + (biased ? s.outs : 0);
        stairs.push_back(s);
    }
};

enum class Start { bias, zero, out };

// out[r] = start + Σ_k w[r][k] in[k] for R outputs that see the same inputs first … last-1.
template <class T, int R, Start START>
inline void products(T* out, size_t out_step, const T* bias, const T* w, size_t w_step, const T* in,
                     int first, int last) {
    constexpr int P = TILE < STEPS<T> ? TILE : STEPS<T>, W = WIDTH<T>;
    for (int s = 0; s < LANES; s += P * W) {
        V<T> acc[R][P];
        UNROLL
        for (int r = 0; r < R; ++r) {
            UNROLL
            for (int p = 0; p < P; ++p)
                acc[r][p] = START == Start::bias  ? splat<T>(bias[r])
                            : START == Start::out ? load<T>(out + r * out_step + s + p * W)
                                                  : V<T>{};
        }
        const T* x = in + size_t(first) * LANES + s;
        for (int k = first; k < last; ++k, x += LANES) {
            V<T> v[P];
            UNROLL
            for (int p = 0; p < P; ++p) v[p] = load<T>(x + p * W);
            UNROLL
            for (int r = 0; r < R; ++r) {
                const V<T> weight = splat<T>(w[r * w_step + k]);
                UNROLL
                for (int p = 0; p < P; ++p) acc[r][p] += weight * v[p];
            }
        }
        UNROLL
        for (int r = 0; r < R; ++r) {
            UNROLL
            for (int p = 0; p < P; ++p) store<T>(out + r * out_step + s + p * W, acc[r][p]);
        }
    }
}

// The same for outputs begin … end-1 of a staircase: by fours, then what the steps leave over.
template <class T, Start START>
void layer(T* out, size_t out_step, const T* bias, const T* w, size_t w_step, const T* in,
           const Steps& steps, int begin, int end) {
    for (int r = begin; r < end;) {
        const int some = end - r >= 4 ? 4 : end - r >= 2 ? 2 : 1;
        const int first = steps.first[r + some - 1], last = steps.last[r];
        T* o = out + r * out_step;
        const T *b = START == Start::bias ? bias + r : nullptr, *ws = w + r * w_step;
        if (some == 4)
            products<T, 4, START>(o, out_step, b, ws, w_step, in, first, last);
        else if (some == 2)
            products<T, 2, START>(o, out_step, b, ws, w_step, in, first, last);
        else
            products<T, 1, START>(o, out_step, b, ws, w_step, in, first, last);
        for (int q = 0; q < some; ++q, ++r, o += out_step, ws += w_step) {
            if (steps.first[r] < first)
                products<T, 1, Start::out>(o, 0, nullptr, ws, 0, in, steps.first[r], first);
            if (last < steps.last[r])
                products<T, 1, Start::out>(o, 0, nullptr, ws, 0, in, last, steps.last[r]);
        }
    }
}

template <class T> inline void add4(double* to, typename Simd<T>::V4 values) {
    for (int i = 0; i < 4; ++i) to[i] += double(values[i]);
}

// sum[r][k] += Σ_lanes delta[r] in[k], by tiles of R outputs and four inputs.
template <class T, int R>
inline void outer_tile(const T* delta, size_t delta_step, const T* in, double* sum, size_t stride) {
    V<T> acc[R][4] = {};
    for (int lane = 0; lane < LANES; lane += WIDTH<T>) {
        V<T> x[4];
        UNROLL
        for (int i = 0; i < 4; ++i) x[i] = load<T>(in + size_t(i) * LANES + lane);
        UNROLL
        for (int q = 0; q < R; ++q) {
            const V<T> g = load<T>(delta + q * delta_step + lane);
            UNROLL
            for (int i = 0; i < 4; ++i) acc[q][i] += g * x[i];
        }
    }
    UNROLL
    for (int q = 0; q < R; ++q)
        add4<T>(sum + q * stride, sums<T>(acc[q][0], acc[q][1], acc[q][2], acc[q][3]));
}

// The same for a staircase; entries beyond a step may hold anything. The longer side is gone through
// once, and the shorter one stays in the nearest cache.
template <class T>
void outer(const Stair& s, const T* delta, size_t delta_step, const T* in, double* sum) {
    constexpr int R = TILE;
    const size_t stride = padded(s.ins);
    auto tile = [&](int r, int k) {
        outer_tile<T, R>(delta + r * delta_step, delta_step, in + size_t(k) * LANES,
                         sum + r * stride + k, stride);
    };
    if (s.tall())
        for (int r = 0; r < s.outs; r += R)
            for (int k = 0; k < s.forward.last[std::min(r + R, s.outs) - 1]; k += 4) tile(r, k);
    else
        for (int k = 0; k < s.ins; k += 4)
            for (int r = s.backward.first[k] / R * R; r < s.outs; r += R) tile(r, k);
}

template <class T> void add_biases(const Stair& s, const T* delta, double* sum) {
    for (int r = 0; r < s.outs; r += 4) {
        V<T> acc[4] = {};
        for (int lane = 0; lane < LANES; lane += WIDTH<T>)
            for (int q = 0; q < 4; ++q) acc[q] += load<T>(delta + size_t(r + q) * LANES + lane);
        add4<T>(sum + r, sums<T>(acc[0], acc[1], acc[2], acc[3]));
    }
}

}  // namespace
