// One number a group: norms, and the means of its negative and of its other entries.
#include <cmath>
#include <vector>

#include "bind.h"
#include "groups.h"
#include "pool.h"
#include "real.h"
#include "sums.h"

namespace {

enum class Norm { l2, max, mean };

template <class T>
KERNEL double largest_of(const T* x, std::size_t n) {
    Bits<T> key = 0;
    for (std::size_t i = 0; i < n; ++i) key = std::max(key, magnitude(x[i]));
    return real_of<T>(key);
}

template <class T, Norm kind>
KERNEL double norm(const T* x, std::size_t n) {
    if constexpr (kind == Norm::max) return largest_of(x, n);
    if constexpr (kind == Norm::l2)
        return std::sqrt(sum_of(n, [=](std::size_t i) KERNEL_LAMBDA { return static_cast<double>(x[i]) * x[i]; }));
    const double total = sum_of(n, [=](std::size_t i) KERNEL_LAMBDA { return std::fabs(static_cast<double>(x[i])); });
    return total / std::max<std::size_t>(1, n);
}

template <class T, Norm kind>
KERNEL void group_norms(const T* x, const std::int64_t* bounds, std::size_t count, T* out) {
    for (std::size_t g = 0; g < count; ++g)
        out[g] = static_cast<T>(norm<T, kind>(x + bounds[g], static_cast<std::size_t>(bounds[g + 1] - bounds[g])));
}

template <class T>
KERNEL void larger(const T* x, std::size_t n, Bits<T>* key) {
    *key = magnitude(static_cast<T>(largest_of(x, n)));
}

// The largest of a group by all threads; a sum keeps its order, so that one thread makes it.
template <class T>
T largest_in_parts(const T* x, std::size_t n) {
    std::vector<Bits<T>> keys(part_count(n));
    parallel_parts(n, part_elements, [&](std::size_t part, std::size_t begin, std::size_t end) {
        dispatch<larger<T>>(x + begin, end - begin, &keys[part]);
    });
    Bits<T> key = 0;
    for (const Bits<T> one : keys) key = std::max(key, one);
    return real_of<T>(key);
}

struct Halves {
    double negative = 0, positive = 0;
    std::size_t negatives = 0;
};

// The sign bit, spread over a mask, sorts entries without a branch. n is small enough for a count to fit a mask.
template <class T>
KERNEL void add_halves(const T* x, std::size_t n, Halves* to) {
    double negative[lanes] = {}, positive[lanes] = {};
    Bits<T> negatives[lanes] = {};
    const auto add = [&](std::size_t i, std::size_t lane) KERNEL_LAMBDA {
        const Bits<T> bits = bits_of(x[i]), mask = bits >> (8 * sizeof bits - 1);
        negative[lane] += real_of<T>(bits & mask);
        positive[lane] += real_of<T>(bits & ~mask);
        negatives[lane] -= mask;
    };
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (std::size_t lane = 0; lane < lanes; ++lane) add(i + lane, lane);
    for (std::size_t lane = 0; i < n; ++i, ++lane) add(i, lane);
    to->negative += fold(negative);
    to->positive += fold(positive);
    for (const Bits<T> count : negatives) to->negatives += static_cast<std::size_t>(count);
}

template <class T>
KERNEL void group_means(const T* x, const std::int64_t* bounds, std::size_t count, T* negative, T* positive) {
    constexpr std::size_t block = 1 << 16;
    for (std::size_t g = 0; g < count; ++g) {
        const std::size_t begin = bounds[g], end = bounds[g + 1];
        Halves halves;
        for (std::size_t i = begin; i < end; i += block) add_halves(x + i, std::min(block, end - i), &halves);
        const std::size_t others = end - begin - halves.negatives;
        negative[g] = static_cast<T>(halves.negative / std::max<std::size_t>(1, halves.negatives));
        positive[g] = static_cast<T>(halves.positive / std::max<std::size_t>(1, others));
    }
}

// run(first, last) for all groups, in parts of about equally many elements: a group is of the part that it begins in.
template <class F>
void in_parts_of_groups(Groups groups, F&& run) {
    const std::size_t n = static_cast<std::size_t>(groups.bounds[groups.count]);
    const auto first_from = [&](std::size_t i) {
        const auto* found = std::lower_bound(groups.bounds, groups.bounds + groups.count, static_cast<std::int64_t>(i));
        return static_cast<std::size_t>(found - groups.bounds);
    };
    if (n <= part_elements) return run(std::size_t{0}, groups.count);
    parallel_parts(n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
        run(first_from(begin), end == n ? groups.count : first_from(end));
    });
}

template <class F>
void with_norm(const std::string& kind, F&& f) {
    using N = Norm;
    if (kind == "l2") return f(std::integral_constant<N, N::l2>());
    if (kind == "max") return f(std::integral_constant<N, N::max>());
    if (kind == "mean") return f(std::integral_constant<N, N::mean>());
    throw InvalidArgument("kind must be one of l2, max, mean, got " + kind);
}

}  // namespace

void bind_norms(py::module_& m) {
    m.def("group_norms_of", [](const py::array& x, const py::array& bounds, const std::string& kind, py::array out) {
        visit_real(x, "x", [&](auto zero) {
            using T = decltype(zero);
            const auto from = input<T>(x, "x");
            const Groups groups = groups_of(bounds, from.n);
            const auto to = output<T>(out, "out", groups.count);
            with_norm(kind, [&](auto norm) {
                constexpr Norm kind = decltype(norm)::value;
                py::gil_scoped_release release;
                if (kind == Norm::max && groups.count == 1) {
                    to.data[0] = largest_in_parts(from.data, from.n);
                    return;
                }
                in_parts_of_groups(groups, [&](std::size_t first, std::size_t last) {
                    dispatch<group_norms<T, kind>>(from.data, groups.bounds + first, last - first, to.data + first);
                });
            });
        });
    }, py::arg("x"), py::arg("bounds"), py::arg("kind"), py::arg("out"),
       "out[g] = a norm of group g: l2, max or mean of magnitudes; 0 for an empty group.");

    m.def("group_means", [](const py::array& x, const py::array& bounds, py::array negative, py::array positive) {
        visit_real(x, "x", [&](auto zero) {
            using T = decltype(zero);
            const auto from = input<T>(x, "x");
            const Groups groups = groups_of(bounds, from.n);
            const auto below = output<T>(negative, "negative", groups.count);
            const auto above = output<T>(positive, "positive", groups.count);
            py::gil_scoped_release release;
            in_parts_of_groups(groups, [&](std::size_t first, std::size_t last) {
                dispatch<group_means<T>>(from.data, groups.bounds + first, last - first, below.data + first,
                                         above.data + first);
            });
        });
    }, py::arg("x"), py::arg("bounds"), py::arg("negative"), py::arg("positive"),
       "The mean of each group's entries with the sign bit set, and of the others; 0 where there are none.");
}
