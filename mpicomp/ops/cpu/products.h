// Products of a matrix that is read once with a matrix of few columns (its rank). Matrices are row-major.
//
// The narrow matrix is first transposed into a scratch array that stays in the cache, so that lanes lie along the
// long side; columns are taken in blocks for that. Four rows at a time share what is loaded of the narrow matrix.
#pragma once

#include <algorithm>

#include "kept_memory.h"
#include "lanes.h"
#include "pool.h"

struct Shape {
    std::size_t rows, columns, rank;
};

constexpr std::size_t scratch_bytes = 128 << 10;  // a part of the L2 cache

// Columns whose part of the narrow matrix fits into the scratch array, whole lines of them.
template <class T>
std::size_t block_columns(Shape shape) {
    const std::size_t fitting = scratch_bytes / sizeof(T) / shape.rank / Line<T>::size * Line<T>::size;
    return std::clamp(fitting, Line<T>::size, Line<T>::padded(std::max<std::size_t>(1, shape.columns)));
}

template <class T>
Kept<T> scratch_for(Shape shape) {
    return Kept<T>(block_columns<T>(shape) * shape.rank);
}

// Rows that a thread takes at a time: so many that filling the scratch array is a small part of the work.
inline std::size_t rows_of_part(std::size_t columns) {
    return std::max<std::size_t>(64, part_elements / std::max<std::size_t>(1, columns) / 4 * 4);
}

template <std::size_t n>
using Constant = std::integral_constant<std::size_t, n>;

// Calls f(begin, Constant<size>) over [0, n) in groups of `most` (4 or 2), then in smaller ones.
template <std::size_t most, class F>
KERNEL void in_groups(std::size_t n, F f) {
    std::size_t i = 0;
    for (; i + most <= n; i += most) f(i, Constant<most>{});
    if constexpr (most > 2)
        if (i + 2 <= n) f(i, Constant<2>{}), i += 2;
    if (i < n) f(i, Constant<1>{});
}

// ---- rows times columns: sums along lines, held in registers

template <class T, int width, std::size_t rows, std::size_t ranks>
struct Sums {
    using R = Register<T, width>;
    typename R::Type parts[R::in_line][rows * ranks] = {};

    // One line of `rows` rows, `stride` elements apart, times one of `ranks` transposed columns.
    template <class U>
    KERNEL void add(U u, std::size_t stride, const T* columns, std::size_t columns_stride) {
        for (std::size_t part = 0; part < R::in_line; ++part)
            for (std::size_t row = 0; row < rows; ++row) {
                typename R::Type left, right;
                R::load(u, row * stride + part * R::lanes, left);
                for (std::size_t c = 0; c < ranks; ++c) {
                    R::load(columns + c * columns_stride + part * R::lanes, right);
                    parts[part][row * ranks + c] += left * right;
                }
            }
    }

    KERNEL void total(T* sums) {
        for (std::size_t half = R::in_line / 2; half; half /= 2)
            for (std::size_t part = 0; part < half; ++part)
                for (std::size_t k = 0; k < rows * ranks; ++k) parts[part][k] += parts[part + half][k];
        sum_lanes<T, width, rows * ranks>(parts[0], sums);
    }
};

// p[row][c] += u[row] . columns[c], over n elements; beyond them `columns` is zero up to a whole line.
template <int width, std::size_t rows, std::size_t ranks, class T, class U>
KERNEL void add_dots(U u, std::size_t stride, const T* columns, std::size_t columns_stride, std::size_t n, T* p,
                     std::size_t p_stride) {
    constexpr std::size_t line = Line<T>::size;
    Sums<T, width, rows, ranks> sums;
    std::size_t i = 0;
    for (; i + line <= n; i += line) sums.add(u.from(i), stride, columns + i, columns_stride);
    if (i < n) {
        T rest[rows * line] = {};
        for (std::size_t row = 0; row < rows; ++row)
            for (std::size_t lane = 0; lane < n - i; ++lane) rest[row * line + lane] = u[row * stride + i + lane];
        sums.add(Compensated<T, false>{nullptr, rest}, line, columns + i, columns_stride);
    }
    T totals[std::max(rows * ranks, line)];
    sums.total(totals);
    for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t c = 0; c < ranks; ++c) p[row * p_stride + c] += totals[row * ranks + c];
}

// p = U Q, where fill(begin, n, padded, scratch) writes rows [begin, begin + n) of Q as columns of `padded` elements.
template <class T, class U, class Fill>
struct TimesNarrow {
    template <int width>
    static KERNEL void run(U u, Shape shape, Fill fill, T* scratch, T* p) {
        constexpr std::size_t rows = width == 64 ? 4 : 1, ranks = width == 16 ? 2 : 4;  // as many sums as registers hold
        const std::size_t stride = shape.columns, rank = shape.rank, block = block_columns<T>(shape);
        std::fill(p, p + shape.rows * rank, T{0});
        for (std::size_t begin = 0; begin < shape.columns; begin += block) {
            const std::size_t n = std::min(block, shape.columns - begin), padded = Line<T>::padded(n);
            fill(begin, n, padded, scratch);
            in_groups<rows>(shape.rows, [&](std::size_t i, auto height) KERNEL_LAMBDA {
                in_groups<ranks>(rank, [&](std::size_t c, auto breadth) KERNEL_LAMBDA {
                    add_dots<width, height, breadth>(u.from(i * stride + begin), stride, scratch + c * padded, padded, n,
                                                     p + i * rank + c, rank);
                });
            });
        }
    }
};

// ---- rows times weights: sums across rows, a line at a time

// Rows of n elements: dst[a] (+)= sum over b of weights(a, b) * src[b]. With `add` to what dst holds, else in its place.
template <std::size_t targets, std::size_t sources, bool add, class T, class U, class Weights>
KERNEL void weighted_sums(T* dst, std::size_t dst_stride, U src, std::size_t src_stride, Weights weights, std::size_t n) {
    T w[targets][sources];
    for (std::size_t a = 0; a < targets; ++a)
        for (std::size_t b = 0; b < sources; ++b) w[a][b] = weights(a, b);
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) {
        T from[sources];
        for (std::size_t b = 0; b < sources; ++b) from[b] = src[b * src_stride + i];
        for (std::size_t a = 0; a < targets; ++a) {
            T sum = add ? dst[a * dst_stride + i] : T{0};
            for (std::size_t b = 0; b < sources; ++b) sum += w[a][b] * from[b];
            dst[a * dst_stride + i] = sum;
        }
    }
}
