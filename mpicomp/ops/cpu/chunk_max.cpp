// Chunk-wise selection: the position of the largest |memory + grad| in every chunk.
#include <algorithm>

#include "arrays.h"
#include "bind.h"
#include "isa.h"
#include "real.h"

namespace {

constexpr std::size_t block = 1024;  // elements looked at twice: few enough to stay in the L1 cache


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
    auto best = largest(u, std::min(block, n));
    std::size_t position = first_with(u, std::min(block, n), best);
    for (std::size_t begin = block; begin < n; begin += block) {
        const auto part = u.from(begin);
        const std::size_t length = std::min(block, n - begin);
        const auto candidate = largest(part, length);
        if (candidate <= best) continue;
        best = candidate;
        position = begin + first_with(part, length, best);
    }
    return position;
}

template <class U, class P>
KERNEL void chunk_max(U u, std::size_t n, std::size_t chunk, P* positions) {
    const std::size_t whole = n / chunk;
    for (std::size_t j = 0; j < whole; ++j) positions[j] = static_cast<P>(arg_max(u.from(j * chunk), chunk));
    if (n % chunk) positions[whole] = static_cast<P>(arg_max(u.from(whole * chunk), n % chunk));
}

template <class P, class I>
KERNEL bool chunk_indices(const P* positions, std::size_t count, std::size_t chunk, std::size_t n, I* indices) {
    bool valid = true;
    for (std::size_t j = 0; j < count; ++j) {
        const std::size_t index = j * chunk + positions[j];
        valid &= (positions[j] < chunk) & (index < n);
        indices[j] = static_cast<I>(index);
    }
    return valid;
}

void check_chunk(std::int64_t chunk) {
    if (chunk < 1 || chunk > 65536)
        throw InvalidArgument("chunk must be in [1, 65536], got " + std::to_string(chunk));
}

template <class F>
void visit_positions(const py::array& positions, std::int64_t chunk, F&& f) {
    if (chunk <= 256) return visit<std::uint8_t>(positions, "positions", f);
    visit<std::uint16_t>(positions, "positions", f);
}

std::size_t chunk_count(std::size_t n, std::size_t chunk) { return (n + chunk - 1) / chunk; }

}  // namespace

void bind_chunk_max(py::module_& m) {
    m.def("chunk_max", [](const py::object& memory, const py::array& grad, std::int64_t chunk, py::array positions) {
        check_chunk(chunk);
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            visit_positions(positions, chunk, [&](auto byte) {
                using P = decltype(byte);
                const auto to = output<P>(positions, "positions", chunk_count(g.n, chunk));
                py::gil_scoped_release release;
                with_compensated(m, g.data, [&](auto u) {
                    dispatch<chunk_max<decltype(u), P>>(u, g.n, static_cast<std::size_t>(chunk), to.data);
                });
            });
        });
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("chunk"), py::arg("positions"),
       "positions[j] = position inside chunk j of its largest |memory + grad|, the lowest of equals.");

    m.def("chunk_indices", [](const py::array& positions, std::int64_t chunk, std::int64_t n, py::array indices) {
        check_chunk(chunk);
        visit_positions(positions, chunk, [&](auto byte) {
            visit_index(indices, "indices", [&](auto zero) {
                using P = decltype(byte);
                using I = decltype(zero);
                const auto from = input<P>(positions, "positions", chunk_count(n, chunk));
                const auto to = output<I>(indices, "indices", from.n);
                if (n > std::numeric_limits<I>::max())
                    throw InvalidArgument("indices must be int64 for n = " + std::to_string(n));
                bool valid;
                {
                    py::gil_scoped_release release;
                    valid = dispatch<chunk_indices<P, I>>(from.data, from.n, static_cast<std::size_t>(chunk),
                                                          static_cast<std::size_t>(n), to.data);
                }
                if (!valid)
                    throw InvalidArgument("positions must lie inside their chunks of " + std::to_string(chunk) +
                                          " elements and below n = " + std::to_string(n));
            });
        });
    }, py::arg("positions"), py::arg("chunk"), py::arg("n"), py::arg("indices"),
       "indices[j] = j * chunk + positions[j].");
}
