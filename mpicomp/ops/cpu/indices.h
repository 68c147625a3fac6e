// Index lists come over the wire: they are checked before anything is read or written through them.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>

#include "arrays.h"
#include "isa.h"

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

template <class I>
void require_in_range(View<const I> indices, std::size_t n, const std::string& name = "indices") {
    if (indices.n == 0) return;
    const auto largest = dispatch<largest_index<I>>(indices.data, indices.n);
    if (largest >= n)
        throw InvalidArgument(name + " must be in [0, " + std::to_string(n) + "), got " +
                              std::to_string(static_cast<I>(largest)));
}

template <class I>
void require_ascending(View<const I> indices, const std::string& name = "indices") {
    if (!dispatch<is_ascending<I>>(indices.data, indices.n))
        throw InvalidArgument(name + " must be strictly ascending");
}
