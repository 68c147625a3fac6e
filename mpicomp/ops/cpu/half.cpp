// Half precision on the wire: float16 and bfloat16 (as uint16) to and from float32, to nearest even.
#include "arrays.h"
#include "bind.h"
#include "half.h"
#include "lanes.h"
#include "past_caches.h"
#include "pool.h"

namespace {

template <class Kernel, class D, class S>
void in_parts(D* dst, const S* src, std::size_t n) {
    parallel_parts(n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
        dispatch_by_width<Kernel>(dst + begin, src + begin, end - begin);
    });
}

// f(Half{}) with the type of kind, "float16" or "bfloat16".
template <class F>
void with_kind(const std::string& kind, F&& f) {
    if (kind != "float16" && kind != "bfloat16")
        throw InvalidArgument("kind must be float16 or bfloat16, got " + kind);
    py::gil_scoped_release release;
    if (kind == "float16")
        f(Float16{});
    else
        f(BFloat16{});
}

// kind decides the kernel; dst and src have one length.
template <template <class> class Kernels, class D, class S>
void convert(py::array& dst, const py::array& src, const std::string& kind) {
    const auto to = output<D>(dst, "dst");
    const auto from = input<S>(src, "src", to.n);
    with_kind(kind, [&](auto half) { in_parts<Kernels<decltype(half)>>(to.data, from.data, to.n); });
}

template <class Half>
struct Widen {
    template <int width>
    static KERNEL void run(float* dst, const std::uint16_t* src, std::size_t n, float factor) {
        widen_all<Half, width>(dst, src, n);
        if (factor != 1)
            for (std::size_t i = 0; i < n; ++i) dst[i] *= factor;
    }
};

void widen(py::array& dst, const py::array& src, const std::string& kind, double factor) {
    const auto to = output<float>(dst, "dst");
    const auto from = input<std::uint16_t>(src, "src", to.n);
    with_kind(kind, [&](auto half) {
        parallel_parts(to.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
            write_result(to.data, to.n, begin, end, [&](std::size_t first, std::size_t last, float* ready) {
                dispatch_by_width<Widen<decltype(half)>>(ready, from.data + first, last - first,
                                                         static_cast<float>(factor));
            });
        });
    });
}

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
    m.def("widen", &widen, py::arg("dst"), py::arg("src"), py::arg("kind"), py::arg("factor") = 1.0,
          "dst (float32) = src (uint16 bits of float16 or bfloat16) * factor.");
    m.def("narrow", &convert<Narrow, std::uint16_t, float>, py::arg("dst"), py::arg("src"), py::arg("kind"),
          "dst (uint16 bits of float16 or bfloat16) = src (float32), to nearest even; NaN stays NaN.");
    m.def("add_widened", &convert<AddWidened, float, std::uint16_t>, py::arg("dst"), py::arg("src"), py::arg("kind"),
          "dst (float32) += src (uint16 bits of float16 or bfloat16).");
}
