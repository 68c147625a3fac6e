// Sums of many numbers in one order of addition, whatever the width of vectors: the same bits on every instruction set.
#pragma once

#include <cstddef>

#include "isa.h"

constexpr std::size_t lanes = 16;  // partial sums

// Adds the partial sums into the first of them.
KERNEL double fold(double* sums) {
    for (std::size_t half = lanes / 2; half; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    return sums[0];
}

// The sum of term(0) to term(n - 1).
template <class Term>
KERNEL double sum_of(std::size_t n, Term term) {
    double sums[lanes] = {};
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += term(i + lane);
    for (std::size_t lane = 0; i < n; ++i, ++lane) sums[lane] += term(i);
    return fold(sums);
}
