// The position of the largest |u| in a run of elements, and the checks of chunk-wise operations.
#pragma once

#include <algorithm>
#include <string>

#include "arrays.h"
#include "isa.h"
#include "real.h"

inline constexpr std::size_t arg_max_block = 1024;  // elements looked at twice: few enough to stay in the L1 cache

template <class U>
KERNEL auto largest(U u, std::size_t n) {
    auto best = magnitude(u[0]);
    for (std::size_t i = 1; i < n; ++i) best = std::max(best, magnitude(u[i]));
    return best;
}

// The first position with this magnitude; a minimum over all is faster than a search that may stop early.
template <class U, class B>
KERNEL B first_with(U u, std::size_t n, B wanted) {
    B position = static_cast<B>(n);
    for (B i = 0; i < static_cast<B>(n); ++i)
        position = std::min(position, magnitude(u[i]) == wanted ? i : static_cast<B>(n));
    return position;
}

template <class U>
KERNEL std::size_t arg_max(U u, std::size_t n) {
    auto best = largest(u, std::min(arg_max_block, n));
    std::size_t position = first_with(u, std::min(arg_max_block, n), best);
    for (std::size_t begin = arg_max_block; begin < n; begin += arg_max_block) {
        const auto part = u.from(begin);
        const std::size_t length = std::min(arg_max_block, n - begin);
        const auto candidate = largest(part, length);
        if (candidate <= best) continue;
        best = candidate;
        position = begin + first_with(part, length, best);
    }
    return position;
}

inline void check_chunk(std::int64_t chunk) {
    if (chunk < 1 || chunk > 65536)
        throw InvalidArgument("chunk must be in [1, 65536], got " + std::to_string(chunk));
}

inline std::size_t chunk_count(std::size_t n, std::size_t chunk) { return (n + chunk - 1) / chunk; }

// Calls f with a zero of the type that positions inside a chunk have.
template <class F>
void visit_positions(const py::array& positions, std::int64_t chunk, F&& f) {
    if (chunk <= 256) return visit<std::uint8_t>(positions, "positions", f);
    visit<std::uint16_t>(positions, "positions", f);
}
