// Chunk-wise selection: the position of the largest |memory + grad| in every chunk.
#include <algorithm>
#include <atomic>

#include "arrays.h"
#include "bind.h"
#include "isa.h"
#include "pool.h"
#include "real.h"

namespace {

constexpr std::size_t arg_max_block = 1024;  // elements looked at twice: few enough to stay in the L1 cache

// Each lane of a cache line keeps its own maximum: that is what the vectoriser turns into whole registers.
template <class U>
KERNEL auto largest(U u, std::size_t n) {
    constexpr std::size_t line = line_elements<typename U::Element>;
    Bits<typename U::Element> lanes[line] = {}, best = 0;
    std::size_t i = 0;
    for (; i + line <= n; i += line) {
        if constexpr (U::prefetches) u.prefetch(i + prefetch_distance<typename U::Element>);
        for (std::size_t lane = 0; lane < line; ++lane) lanes[lane] = std::max(lanes[lane], magnitude(u[i + lane]));
    }
    for (; i < n; ++i) best = std::max(best, magnitude(u[i]));
    for (std::size_t lane = 0; lane < line; ++lane) best = std::max(best, lanes[lane]);
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

void check_chunk(std::int64_t chunk) {
    if (chunk < 1 || chunk > 65536)
        throw InvalidArgument("chunk must be in [1, 65536], got " + std::to_string(chunk));
}

std::size_t chunk_count(std::size_t n, std::size_t chunk) { return (n + chunk - 1) / chunk; }

// Calls f with a zero of the type that positions inside a chunk have.
template <class F>
void visit_positions(const py::array& positions, std::int64_t chunk, F&& f) {
    if (chunk <= 256) return visit<std::uint8_t>(positions, "positions", f);
    visit<std::uint16_t>(positions, "positions", f);
}

// Short chunks cost more to begin and end than to read, so `abreast` of them are searched side by side, one a lane.
constexpr std::size_t short_chunk = 32, abreast = 16;

template <class B, class U, class P>
KERNEL void short_chunks(U u, std::size_t chunk, P* positions) {
    B keys[abreast * short_chunk], best[abreast], position[abreast];
    for (std::size_t i = 0; i < abreast * chunk; ++i) keys[i] = magnitude(u[i]);
    for (std::size_t lane = 0; lane < abreast; ++lane) best[lane] = -1, position[lane] = 0;
    for (std::size_t i = 0; i < chunk; ++i)
        for (std::size_t lane = 0; lane < abreast; ++lane) {
            const B key = keys[lane * chunk + i];
            position[lane] = key > best[lane] ? static_cast<B>(i) : position[lane];
            best[lane] = std::max(best[lane], key);
        }
    for (std::size_t lane = 0; lane < abreast; ++lane) positions[lane] = static_cast<P>(position[lane]);
}

// Of chunks next to each other, of which only the last may be short.
template <class U, class P>
KERNEL void chunk_max(U u, std::size_t n, std::size_t chunk, P* positions) {
    const std::size_t whole = n / chunk;
    std::size_t j = 0;
    if (chunk < short_chunk)
        for (; j + abreast <= whole; j += abreast)
            short_chunks<decltype(magnitude(u[0]))>(u.from(j * chunk), chunk, positions + j);
    for (; j < whole; ++j) positions[j] = static_cast<P>(arg_max(u.from(j * chunk), chunk));
    if (n % chunk) positions[whole] = static_cast<P>(arg_max(u.from(whole * chunk), n % chunk));
}

template <class P, class I>
KERNEL bool chunk_indices(const P* positions, std::size_t begin, std::size_t end, std::size_t chunk, std::size_t n,
                          I* indices) {
    bool valid = true;
    for (std::size_t j = begin; j < end; ++j) {
        const std::size_t index = j * chunk + positions[j];
        valid &= (positions[j] < chunk) & (index < n);
        indices[j] = static_cast<I>(index);
    }
    return valid;
}

constexpr std::size_t positions_in_part = 1 << 14;

}  // namespace

void bind_chunk_max(py::module_& m) {
    m.def("chunk_max_in_span", [](const py::object& memory, const py::array& grad, std::int64_t chunk, py::array positions) {
        check_chunk(chunk);
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            visit_positions(positions, chunk, [&](auto byte) {
                using P = decltype(byte);
                const auto to = output<P>(positions, "positions", chunk_count(g.n, chunk));
                py::gil_scoped_release release;
                const auto length = static_cast<std::size_t>(chunk);
                with_compensated(m, g.data, [&](auto u) {
                    parallel_parts(to.n, std::max<std::size_t>(1, part_elements / length),
                                   [&](std::size_t, std::size_t begin, std::size_t end) {
                        const std::size_t n = std::min(g.n, end * length) - begin * length;
                        dispatch<chunk_max<decltype(u), P>>(u.from(begin * length), n, length, to.data + begin);
                    });
                });
            });
        });
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("chunk"), py::arg("positions"),
       "positions[j] = position inside chunk j of its largest |memory + grad|, the lowest of equals.");

    m.def("chunk_indices_in_span", [](const py::array& positions, std::int64_t chunk, std::int64_t n, py::array indices) {
        check_chunk(chunk);
        visit_positions(positions, chunk, [&](auto byte) {
            visit_index(indices, "indices", [&](auto zero) {
                using P = decltype(byte);
                using I = decltype(zero);
                const auto from = input<P>(positions, "positions", chunk_count(n, chunk));
                const auto to = output<I>(indices, "indices", from.n);
                if (n > std::numeric_limits<I>::max())
                    throw InvalidArgument("indices must be int64 for n = " + std::to_string(n));
                std::atomic<bool> valid{true};
                {
                    py::gil_scoped_release release;
                    parallel_parts(from.n, positions_in_part, [&](std::size_t, std::size_t begin, std::size_t end) {
                        if (!dispatch<chunk_indices<P, I>>(from.data, begin, end, static_cast<std::size_t>(chunk),
                                                           static_cast<std::size_t>(n), to.data))
                            valid = false;
                    });
                }
                if (!valid)
                    throw InvalidArgument("positions must lie inside their chunks of " + std::to_string(chunk) +
                                          " elements and below n = " + std::to_string(n));
            });
        });
    }, py::arg("positions"), py::arg("chunk"), py::arg("n"), py::arg("indices"),
       "indices[j] = j * chunk + positions[j].");
}
