// What a vector looks like: non-finite entries, squared norm.
#include <atomic>
#include <vector>

#include "arrays.h"
#include "bind.h"
#include "isa.h"
#include "pool.h"
#include "real.h"
#include "sums.h"

namespace {

constexpr std::size_t counted_block = 4096;  // elements whose count fits one of their own width

template <class T>
KERNEL std::size_t count_nonfinite(const T* x, std::size_t n) {
    std::size_t count = 0;
    for (std::size_t begin = 0; begin < n; begin += counted_block) {
        Bits<T> in_block = 0;  // as wide as an element, so that counting keeps to full vectors
        const std::size_t end = begin + counted_block < n ? begin + counted_block : n;
        for (std::size_t i = begin; i < end; ++i) in_block += is_nonfinite(x[i]);
        count += static_cast<std::size_t>(in_block);
    }
    return count;
}

// Magnitudes are compared as integers, among which NaN is above infinity.
template <class U, class T>
KERNEL std::size_t count_beyond(U u, std::size_t n, Bits<T> limit) {
    std::size_t count = 0;
    for (std::size_t begin = 0; begin < n; begin += counted_block) {
        Bits<T> in_block = 0;
        const std::size_t end = begin + counted_block < n ? begin + counted_block : n;
        for (std::size_t i = begin; i < end; ++i) in_block += magnitude(static_cast<T>(u[i])) >= limit;
        count += static_cast<std::size_t>(in_block);
    }
    return count;
}

template <class T>
std::int64_t first_nonfinite(const T* x, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
        if (is_nonfinite(x[i])) return static_cast<std::int64_t>(i);
    return -1;
}

// The sum of count(begin, end) over all parts of n elements.
template <class Count>
std::size_t count_in_parts(std::size_t n, Count&& count) {
    std::atomic<std::size_t> total{0};
    parallel_parts(n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
        total.fetch_add(count(begin, end), std::memory_order_relaxed);
    });
    return total;
}

template <class T>
KERNEL double squared_norm(const T* x, std::size_t n) {
    return sum_of(n, [=](std::size_t i) KERNEL_LAMBDA { return static_cast<double>(x[i]) * x[i]; });
}

}  // namespace

void bind_measure(py::module_& m) {
    m.def("count_nonfinite", [](const py::array& x) {
        std::size_t count = 0;
        std::int64_t first = -1;
        visit_real(x, "x", [&](auto zero) {
            using T = decltype(zero);
            const auto from = input<T>(x, "x");
            py::gil_scoped_release release;
            count = count_in_parts(from.n, [&](std::size_t begin, std::size_t end) {
                return dispatch<count_nonfinite<T>>(from.data + begin, end - begin);
            });
            if (count) first = first_nonfinite(from.data, from.n);
        });
        return py::make_tuple(count, first);
    }, py::arg("x"), "(how many entries are NaN or infinite, the index of the first or -1).");

    m.def("count_beyond", [](const py::object& memory, const py::array& grad, double limit) {
        if (!(limit > 0)) throw InvalidArgument("limit must be a number above 0, got " + std::to_string(limit));
        std::size_t count = 0;
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            py::gil_scoped_release release;
            with_compensated(m, g.data, [&](auto u) {
                const auto least = magnitude(static_cast<T>(limit));
                count = count_in_parts(g.n, [&](std::size_t begin, std::size_t end) {
                    return dispatch<count_beyond<decltype(u), T>>(u.from(begin), end - begin, least);
                });
            });
        });
        return count;
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("limit"),
       "How many |memory + grad| are not below limit, NaN included.");

    m.def("squared_norm", [](const py::array& x) {
        double sum = 0;
        visit_real(x, "x", [&](auto zero) {
            using T = decltype(zero);
            const auto from = input<T>(x, "x");
            py::gil_scoped_release release;
            std::vector<double> sums(part_count(from.n));
            parallel_parts(from.n, part_elements, [&](std::size_t part, std::size_t begin, std::size_t end) {
                sums[part] = dispatch<squared_norm<T>>(from.data + begin, end - begin);
            });
            for (const double one : sums) sum += one;
        });
        return sum;
    }, py::arg("x"), "Sum of squares, accumulated in float64.");
}
