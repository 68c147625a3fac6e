// Element-wise dst = dst OP src, and scale.
#include "arrays.h"
#include "bind.h"
#include "isa.h"
#include "pool.h"
#include "reduce.h"

namespace {

template <class Op, class T>
KERNEL void combine(T* dst, const T* src, std::size_t n) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) dst[i] = Op::apply(dst[i], src[i]);
}

template <class T>
KERNEL void scale_by(T* x, std::size_t n, T factor) {
    for (std::size_t i = 0; i < n; ++i) x[i] *= factor;
}

template <class Op>
void bind_combine(py::module_& m, const char* name, const char* doc) {
    m.def(name, [](py::array dst, const py::array& src) {
        visit<float, double, std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
              std::uint32_t, std::uint64_t>(dst, "dst", [&](auto zero) {
            using T = decltype(zero);
            const auto to = output<T>(dst, "dst");
            const auto from = input<T>(src, "src", to.n);
            py::gil_scoped_release release;
            parallel_parts(to.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
                dispatch<combine<Op, T>>(to.data + begin, from.data + begin, end - begin);
            });
        });
    }, py::arg("dst"), py::arg("src"), doc);
}

}  // namespace

void bind_reduce(py::module_& m) {
    bind_combine<Add>(m, "add", "dst += src; integers wrap around.");
    bind_combine<Multiply>(m, "multiply", "dst *= src; integers wrap around.");
    bind_combine<Minimum>(m, "minimum", "dst = min(dst, src); NaN wins.");
    bind_combine<Maximum>(m, "maximum", "dst = max(dst, src); NaN wins.");
    m.def("scale", [](py::array x, double factor) {
        visit_real(x, "x", [&](auto zero) {
            using T = decltype(zero);
            const auto to = output<T>(x, "x");
            py::gil_scoped_release release;
            parallel_parts(to.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
                dispatch<scale_by<T>>(to.data + begin, end - begin, static_cast<T>(factor));
            });
        });
    }, py::arg("x"), py::arg("factor"), "x *= factor, the factor rounded to x's precision first.");
}
