// Half precision on the wire: float16 and bfloat16 (as uint16) to and from float32, to nearest even.
#include "arrays.h"
#include "bind.h"
#include "half.h"
#include "lanes.h"
#include "pool.h"

namespace {

template <class Kernel, class D, class S>
void in_parts(D* dst, const S* src, std::size_t n) {
    parallel_parts(n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
        dispatch_by_width<Kernel>(dst + begin, src + begin, end - begin);
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
    template <int width>
    static KERNEL void run(float* dst, const std::uint16_t* src, std::size_t n) {
        widen_all<Half, width>(dst, src, n);
    }
};

template <class Half>
struct AddWidened {
    template <int width>
    static KERNEL void run(float* dst, const std::uint16_t* src, std::size_t n) {
        widen_all<Half, width, true>(dst, src, n);
    }
};

template <class Half>
struct Narrow {
    template <int width>
    static KERNEL void run(std::uint16_t* dst, const float* src, std::size_t n) {
        narrow_all<Half, width>(dst, src, n);
    }
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
