// Reading and writing at given indices.
#include "arrays.h"
#include "bind.h"
#include "indices.h"
#include "isa.h"
#include "real.h"

namespace {

constexpr std::size_t ahead = 32;  // elements prefetched ahead: about one memory latency

template <class U, class I, class T>
KERNEL void gather(U u, const I* indices, std::size_t k, T* values) {
    for (std::size_t j = 0; j < k; ++j) {
        if (j + ahead < k) u.prefetch(indices[j + ahead]);
        values[j] = u[indices[j]];
    }
}

struct Assign {
    template <class T>
    static KERNEL void apply(T& dst, T value) { dst = value; }
};

struct AddTo {
    template <class T>
    static KERNEL void apply(T& dst, T value) { dst += value; }
};

template <class Op, class T, class I>
KERNEL void write_at(T* dst, const I* indices, std::size_t k, const T* values) {
    for (std::size_t j = 0; j < k; ++j) {
        if (j + ahead < k) __builtin_prefetch(dst + indices[j + ahead], 1);
        Op::apply(dst[indices[j]], values ? values[j] : T{0});
    }
}

template <class Op>
void write_checked(py::array& dst, const py::array& indices, const py::array* values) {
    visit_real(dst, "dst", [&](auto zero) {
        visit_index(indices, "indices", [&](auto index) {
            using T = decltype(zero);
            using I = decltype(index);
            const auto to = output<T>(dst, "dst");
            const auto at = input<I>(indices, "indices");
            const T* from = values ? input<T>(*values, "values", at.n).data : nullptr;
            require_in_range(at, to.n);
            py::gil_scoped_release release;
            // Of an index that comes twice the last value is to stay.
            const bool apart = is_shared(at.n, indices_in_part) && ascends_throughout(at.data, at.n);
            parallel_parts(at.n, apart ? indices_in_part : std::max<std::size_t>(1, at.n),
                           [&](std::size_t, std::size_t begin, std::size_t end) {
                dispatch<write_at<Op, T, I>>(to.data, at.data + begin, end - begin, from ? from + begin : nullptr);
            });
        });
    });
}

}  // namespace

void bind_gather(py::module_& m) {
    m.def("gather", [](const py::object& memory, const py::array& grad, const py::array& indices, py::array values) {
        visit_real(grad, "grad", [&](auto zero) {
            visit_index(indices, "indices", [&](auto index) {
                using T = decltype(zero);
                using I = decltype(index);
                const auto g = input<T>(grad, "grad");
                const T* m = optional_input<T>(memory, "memory", g.n);
                const auto at = input<I>(indices, "indices");
                const auto to = output<T>(values, "values", at.n);
                require_in_range(at, g.n);
                py::gil_scoped_release release;
                with_compensated(m, g.data, [&](auto u) {
                    parallel_parts(at.n, indices_in_part, [&](std::size_t, std::size_t begin, std::size_t end) {
                        dispatch<gather<decltype(u), I, T>>(u, at.data + begin, end - begin, to.data + begin);
                    });
                });
            });
        });
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("indices"), py::arg("values"),
       "values[j] = (memory + grad)[indices[j]].");

    m.def("scatter", [](py::array dst, const py::array& indices, const py::array& values) {
        write_checked<Assign>(dst, indices, &values);
    }, py::arg("dst"), py::arg("indices"), py::arg("values"), "dst[indices] = values.");

    m.def("scatter_add", [](py::array dst, const py::array& indices, const py::array& values) {
        write_checked<AddTo>(dst, indices, &values);
    }, py::arg("dst"), py::arg("indices"), py::arg("values"), "dst[indices] += values; indices are distinct.");

    m.def("clear", [](py::array dst, const py::array& indices) {
        write_checked<Assign>(dst, indices, nullptr);
    }, py::arg("dst"), py::arg("indices"), "dst[indices] = 0.");
}
