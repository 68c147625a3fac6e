// Updates of memories: one pass over what is read, in place.
#include <algorithm>
#include <cmath>

#include "arrays.h"
#include "bind.h"
#include "indices.h"
#include "isa.h"
#include "real.h"

namespace {

constexpr std::size_t filtered_block = 1024;  // elements looked at twice: few enough to stay in the L1 cache

template <class T>
KERNEL T keep_unsent(T memory, T grad, T sent, T beta) {
    const T unsent = (memory + grad) - sent;
    return (T{1} - beta) * memory + beta * unsent;
}

// memory += beta * grad
template <class T>
KERNEL void filter(T* memory, const T* grad, std::size_t n, T beta) {
    constexpr std::size_t line = line_elements<T>, ahead = filtered_block + prefetch_distance<T>;
    const auto one = [=](std::size_t i) KERNEL_LAMBDA {
        const T change = beta * grad[i];
        memory[i] = memory[i] + change;
    };
    std::size_t i = 0;
    for (; i + line <= n; i += line) {
        __builtin_prefetch(memory + i + ahead, 1);
        __builtin_prefetch(grad + i + ahead);
        for (std::size_t lane = 0; lane < line; ++lane) one(i + lane);
    }
    for (; i < n; ++i) one(i);
}

// In every block what stays of what was sent is worked out first, and written over the filtered values last.
template <class T, class I>
KERNEL void masked_update(T* memory, const T* grad, std::size_t start, std::size_t stop, const I* indices,
                          std::size_t first, const T* sent, std::size_t k, T beta) {
    T kept[filtered_block];
    for (std::size_t begin = start; begin < stop; begin += filtered_block) {
        const std::size_t end = std::min(stop, begin + filtered_block);
        std::size_t last = first;
        for (; last < k && static_cast<std::size_t>(indices[last]) < end; ++last) {
            const std::size_t i = indices[last];
            kept[last - first] = keep_unsent(memory[i], grad[i], sent[last], beta);
        }
        filter(memory + begin, grad + begin, end - begin, beta);
        for (std::size_t j = first; j < last; ++j) memory[indices[j]] = kept[j - first];
        first = last;
    }
}

// Of one cache line everything is read before anything is written, so out may be x or y.
template <class T>
KERNEL void axpby(T* out, T a, const T* x, T b, const T* y, std::size_t n) {
    constexpr std::size_t line = line_elements<T>;
    T sum[line];
    std::size_t i = 0;
    for (; i + line <= n; i += line) {
        for (std::size_t lane = 0; lane < line; ++lane) sum[lane] = a * x[i + lane] + b * y[i + lane];
        for (std::size_t lane = 0; lane < line; ++lane) out[i + lane] = sum[lane];
    }
    for (; i < n; ++i) out[i] = a * x[i] + b * y[i];
}

template <class T>
KERNEL void divide_by_root(T* x, const T* y, std::size_t n, T eps) {
    for (std::size_t i = 0; i < n; ++i) x[i] = x[i] / (std::sqrt(y[i]) + eps);
}

template <class T>
KERNEL void dense_update(T* memory, const T* grad, const T* sent, std::size_t n, T beta) {
    for (std::size_t i = 0; i < n; ++i) memory[i] = keep_unsent(memory[i], grad[i], sent[i], beta);
}

template <class T>
void refuse_overlap(View<T> a, View<const T> b, const std::string& names) {
    if (a.data < b.data + b.n && b.data < a.data + a.n) throw BufferRefused(names + " must not overlap");
}

template <class T>
void refuse_partial_overlap(View<T> out, View<const T> other, const std::string& name) {
    if (out.data != other.data) refuse_overlap(out, other, "out and " + name + ", unless they are one array,");
}

}  // namespace

void bind_update(py::module_& m) {
    m.def("masked_update", [](py::array memory, const py::array& grad, const py::array& indices, const py::array& sent,
                              double beta) {
        visit_real(grad, "grad", [&](auto zero) {
            visit_index(indices, "indices", [&](auto index) {
                using T = decltype(zero);
                using I = decltype(index);
                const auto g = input<T>(grad, "grad");
                const auto m = output<T>(memory, "memory", g.n);
                const auto at = input<I>(indices, "indices");
                const auto s = input<T>(sent, "sent", at.n);
                require_in_range(at, g.n);
                require_ascending(at);
                refuse_overlap(m, g, "memory and grad");
                py::gil_scoped_release release;
                parallel_parts(g.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
                    dispatch<masked_update<T, I>>(m.data, g.data, begin, end, at.data, below(at, begin), s.data, at.n,
                                                  static_cast<T>(beta));
                });
            });
        });
    }, py::arg("memory"), py::arg("grad"), py::arg("indices"), py::arg("sent"), py::arg("beta"),
       "memory += beta * grad, but at indices (1 - beta) * memory + beta * ((memory + grad) - sent).");

    m.def("dense_update", [](py::array memory, const py::array& grad, const py::array& sent, double beta) {
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const auto m = output<T>(memory, "memory", g.n);
            const auto s = input<T>(sent, "sent", g.n);
            refuse_overlap(m, g, "memory and grad");
            refuse_overlap(m, s, "memory and sent");
            py::gil_scoped_release release;
            parallel_parts(g.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
                dispatch<dense_update<T>>(m.data + begin, g.data + begin, s.data + begin, end - begin,
                                          static_cast<T>(beta));
            });
        });
    }, py::arg("memory"), py::arg("grad"), py::arg("sent"), py::arg("beta"),
       "memory = (1 - beta) * memory + beta * ((memory + grad) - sent).");

    m.def("axpby", [](py::array out, double a, const py::array& x, double b, const py::array& y) {
        visit_real(x, "x", [&](auto zero) {
            using T = decltype(zero);
            const auto from = input<T>(x, "x"), other = input<T>(y, "y", from.n);
            const auto to = output<T>(out, "out", from.n);
            refuse_partial_overlap(to, from, "x");
            refuse_partial_overlap(to, other, "y");
            py::gil_scoped_release release;
            parallel_parts(from.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
                dispatch<axpby<T>>(to.data + begin, static_cast<T>(a), from.data + begin, static_cast<T>(b),
                                   other.data + begin, end - begin);
            });
        });
    }, py::arg("out"), py::arg("a"), py::arg("x"), py::arg("b"), py::arg("y"),
       "out = a * x + b * y; out may be x or y.");

    m.def("divide_by_root", [](py::array x, const py::array& y, double eps) {
        visit_real(y, "y", [&](auto zero) {
            using T = decltype(zero);
            const auto squares = input<T>(y, "y");
            const auto to = output<T>(x, "x", squares.n);
            refuse_overlap(to, squares, "x and y");
            py::gil_scoped_release release;
            parallel_parts(squares.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
                dispatch<divide_by_root<T>>(to.data + begin, squares.data + begin, end - begin, static_cast<T>(eps));
            });
        });
    }, py::arg("x"), py::arg("y"), py::arg("eps"), "x /= sqrt(y) + eps.");
}
