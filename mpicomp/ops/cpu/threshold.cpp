// Threshold selection: every |memory + grad| >= lam.
#include <cmath>

#include "bind.h"
#include "collect.h"

namespace {

template <class T, class I>
py::array threshold(const T* memory, View<const T> grad, T lam) {
    Selection<I, Bits<T>> found;
    {
        py::gil_scoped_release release;
        with_compensated(memory, grad.data, [&](auto u) {
            // For lam >= 0 the order of magnitudes is the order of their bits, and NaN lies above infinity.
            const AtLeast<Bits<T>> test{magnitude(lam)};
            found = collected<false, I, Bits<T>>(u, grad.n, test);
        });
    }
    return std::move(found.indices).to_numpy();
}

}  // namespace

void bind_threshold(py::module_& m) {
    m.def("threshold_in_span", [](const py::object& memory, const py::array& grad, double lam) {
        if (!(lam >= 0)) throw InvalidArgument("lam must be a number >= 0, got " + std::to_string(lam));
        py::array result;
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            result = with_index(g.n, [&](auto index) {
                return threshold<T, decltype(index)>(m, g, static_cast<T>(lam));
            });
        });
        return result;
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("lam"),
       "Ascending indices of |memory + grad| >= lam, NaN included.");
}
