// Half precision on the wire: float16 and bfloat16 (as uint16) to and from float32, to nearest even.
#include "arrays.h"
#include "bind.h"
#include "half.h"
#include "isa.h"
#include "pool.h"

namespace {

template <class Half>
KERNEL void widen(float* dst, const std::uint16_t* src, std::size_t n) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) dst[i] = Half::widen(src[i]);
}

template <class Half>
KERNEL void add_widened(float* dst, const std::uint16_t* src, std::size_t n) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) dst[i] += Half::widen(src[i]);
}

template <class Half>
KERNEL void narrow(std::uint16_t* dst, const float* src, std::size_t n) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) dst[i] = Half::narrow(src[i]);
}

template <class Kernel, class D, class S>
void in_parts(D* dst, const S* src, std::size_t n) {
    parallel_parts(n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
        Kernel::run(dst + begin, src + begin, end - begin);
    });
}

// kind in {"float16", "bfloat16"} decides the kernel; dst and src have one length.
template <template <class> class Kernels, class D, class S>
void convert(py::array& dst, const py::array& src, const std::string& kind) {
    const auto to = output<D>(dst, "dst");
    const auto from = input<S>(src, "src", to.n);
    if (kind != "float16" && kind != "bfloat16")
        throw InvalidArgument("kind must be float16 or bfloat16, got " + kind);
    py::gil_scoped_release release;
    if (kind == "float16")
        in_parts<Kernels<Float16>>(to.data, from.data, to.n);
    else
        in_parts<Kernels<BFloat16>>(to.data, from.data, to.n);
}

template <class Half>
struct Widen {
    static void run(float* dst, const std::uint16_t* src, std::size_t n) { dispatch<widen<Half>>(dst, src, n); }
};

template <class Half>
struct AddWidened {
    static void run(float* dst, const std::uint16_t* src, std::size_t n) {
        dispatch<add_widened<Half>>(dst, src, n);
    }
};

template <class Half>
struct Narrow {
    static void run(std::uint16_t* dst, const float* src, std::size_t n) { dispatch<narrow<Half>>(dst, src, n); }
};

}  // namespace

void bind_half(py::module_& m) {
    m.def("widen", &convert<Widen, float, std::uint16_t>, py::arg("dst"), py::arg("src"), py::arg("kind"),
          "dst (float32) = src (uint16 bits of float16 or bfloat16).");
    m.def("narrow", &convert<Narrow, std::uint16_t, float>, py::arg("dst"), py::arg("src"), py::arg("kind"),
          "dst (uint16 bits of float16 or bfloat16) = src (float32), to nearest even; NaN stays NaN.");
    m.def("add_widened", &convert<AddWidened, float, std::uint16_t>, py::arg("dst"), py::arg("src"), py::arg("kind"),
          "dst (float32) += src (uint16 bits of float16 or bfloat16).");
}
