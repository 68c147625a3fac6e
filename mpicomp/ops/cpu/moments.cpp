// What a selector measures before it chooses: sums over the large entries, and an evenly spread sample.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "arrays.h"
#include "bind.h"
#include "indices.h"
#include "isa.h"
#include "pool.h"
#include "real.h"
#include "sums.h"

namespace {

constexpr std::size_t kept_block = 512;  // elements held in the L1 cache between the two loops; a multiple of lanes

struct Moments {
    std::size_t count = 0;
    double sum[lanes] = {}, size[lanes] = {}, square[lanes] = {};
};

// What reaches the floor is kept and counted, the rest becomes zero: by masks of bits, since a branch stays a branch.
template <class U, class T>
KERNEL std::size_t keep(U u, std::size_t n, Bits<T> floor, T* kept) {
    Bits<T> count = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const T value = u[i];
        const Bits<T> mask = -static_cast<Bits<T>>(magnitude(value) >= floor), bits = bits_of(value) & mask;
        std::memcpy(kept + i, &bits, sizeof bits);
        count -= mask;
    }
    return static_cast<std::size_t>(count);
}

// Meanwhile the block that comes next is fetched.
template <class U, class T>
KERNEL void add_up(const T* kept, U next, Moments* total) {
    for (std::size_t i = 0; i < kept_block; i += lanes) {
        for (std::size_t at = i; at < i + lanes; at += line_elements<T>) next.prefetch(at);
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            const double value = kept[i + lane];
            total->sum[lane] += value;
            total->size[lane] += std::fabs(value);
            total->square[lane] += value * value;
        }
    }
}

template <class U, class T>
KERNEL Moments moments(U u, std::size_t n, Bits<T> floor) {
    Moments total;
    for (std::size_t begin = 0; begin < n; begin += kept_block) {
        T kept[kept_block];
        const std::size_t length = std::min(kept_block, n - begin);
        total.count += keep<U, T>(u.from(begin), length, floor, kept);
        std::fill(kept + length, kept + kept_block, T{0});
        add_up(kept, u.from(begin + kept_block), &total);
    }
    fold(total.sum), fold(total.size), fold(total.square);
    return total;
}

// The sums of the parts, in their order.
template <class T, class U>
Moments moments_in_parts(U u, std::size_t n, Bits<T> floor) {
    std::vector<Moments> parts(part_count(n));
    parallel_parts(n, part_elements, [&](std::size_t part, std::size_t begin, std::size_t end) {
        parts[part] = dispatch<moments<U, T>>(u.from(begin), end - begin, floor);
    });
    Moments total;
    for (const Moments& part : parts) {
        total.count += part.count;
        total.sum[0] += part.sum[0];
        total.size[0] += part.size[0];
        total.square[0] += part.square[0];
    }
    return total;
}

template <class U, class T>
KERNEL void sample(U u, std::size_t stride, std::size_t k, T* values) {
    constexpr std::size_t ahead = 32;  // samples prefetched: about one memory latency
    for (std::size_t j = 0; j < k; ++j) {
        if (j + ahead < k) u.prefetch((j + ahead) * stride);
        values[j] = u[j * stride];
    }
}

void check_sample(std::size_t n, std::int64_t first, std::int64_t stride, std::size_t k) {
    const auto end = static_cast<std::int64_t>(n), count = static_cast<std::int64_t>(k);
    if (stride >= 1 && first >= 0 && (k == 0 || (first < end && count - 1 <= (end - 1 - first) / stride))) return;
    throw InvalidArgument("a sample must lie in [0, " + std::to_string(n) + "), got " + std::to_string(k) +
                          " elements from " + std::to_string(first) + " in steps of " + std::to_string(stride));
}

}  // namespace

void bind_moments(py::module_& m) {
    m.def("moments_in_span", [](const py::object& memory, const py::array& grad, double floor) {
        if (!(floor >= 0)) throw InvalidArgument("floor must be a number >= 0, got " + std::to_string(floor));
        Moments total;
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            py::gil_scoped_release release;
            with_compensated(m, g.data, [&](auto u) {
                total = moments_in_parts<T>(u, g.n, magnitude(static_cast<T>(floor)));
            });
        });
        return py::make_tuple(total.count, total.sum[0], total.size[0], total.square[0]);
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("floor"),
       "Of the entries with |u| >= floor: how many, sum of u, of |u| and of u squared.");

    m.def("sample_in_span", [](const py::object& memory, const py::array& grad, std::int64_t first, std::int64_t stride,
                       py::array values) {
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            const auto to = output<T>(values, "values");
            check_sample(g.n, first, stride, to.n);
            py::gil_scoped_release release;
            with_compensated(m, g.data, [&](auto u) {
                const auto step = static_cast<std::size_t>(stride);
                parallel_parts(to.n, indices_in_part, [&](std::size_t, std::size_t begin, std::size_t end) {
                    dispatch<sample<decltype(u), T>>(u.from(first + begin * step), step, end - begin, to.data + begin);
                });
            });
        });
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("first"), py::arg("stride"), py::arg("values"),
       "values[j] = (memory + grad)[first + j * stride].");
}
