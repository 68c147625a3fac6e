// Index lists come over the wire: they are checked before anything is read or written through them.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>
#include <type_traits>
#include <vector>

#include "arrays.h"
#include "isa.h"
#include "pool.h"

// A negative index is a huge one when read as unsigned, so one maximum checks both ends.
template <class I>
KERNEL std::make_unsigned_t<I> largest_index(const I* indices, std::size_t k) {
    std::make_unsigned_t<I> largest = 0;
    for (std::size_t j = 0; j < k; ++j) largest = std::max(largest, static_cast<std::make_unsigned_t<I>>(indices[j]));
    return largest;
}

template <class I>
KERNEL bool is_ascending(const I* indices, std::size_t k) {
    bool ascending = true;
    for (std::size_t j = 1; j < k; ++j) ascending &= indices[j - 1] < indices[j];
    return ascending;
}

constexpr std::size_t indices_in_part = 1 << 14;  // each costs more than an element that is read in passing

template <class I>
bool ascends_throughout(const I* indices, std::size_t k) {
    std::atomic<bool> ascending{true};
    parallel_parts(k, indices_in_part, [&](std::size_t, std::size_t begin, std::size_t end) {
        begin -= begin != 0;  // with the last one of the part in front
        if (!dispatch<is_ascending<I>>(indices + begin, end - begin)) ascending = false;
    });
    return ascending;
}

// How many of ascending indices are below i.
template <class I>
std::size_t below(View<const I> indices, std::int64_t i) {
    const I* end = indices.data + indices.n;
    return static_cast<std::size_t>(std::lower_bound(indices.data, end, i) - indices.data);
}

template <class I>
void require_in_range(View<const I> indices, std::size_t n, const std::string& name = "indices") {
    if (indices.n == 0) return;
    std::vector<std::make_unsigned_t<I>> of_parts(part_count(indices.n, indices_in_part));
    parallel_parts(indices.n, indices_in_part, [&](std::size_t part, std::size_t begin, std::size_t end) {
        of_parts[part] = dispatch<largest_index<I>>(indices.data + begin, end - begin);
    });
    const auto largest = *std::max_element(of_parts.begin(), of_parts.end());
    if (largest >= n)
        throw InvalidArgument(name + " must be in [0, " + std::to_string(n) + "), got " +
                              std::to_string(static_cast<I>(largest)));
}

template <class I>
void require_ascending(View<const I> indices, const std::string& name = "indices") {
    if (!ascends_throughout(indices.data, indices.n))
        throw InvalidArgument(name + " must be strictly ascending");
}
