// Half precision on the wire: float16 and bfloat16 (as uint16) to and from float32, to nearest even.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "arrays.h"
#include "bind.h"
#include "isa.h"
#include "real.h"

namespace {

KERNEL float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

struct BFloat16 {
    static KERNEL float widen(std::uint16_t half) { return float_of(static_cast<std::uint32_t>(half) << 16); }

    static KERNEL std::uint16_t narrow(float value) {
        const auto bits = static_cast<std::uint32_t>(bits_of(value));
        const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        const std::uint32_t quiet_nan = (bits >> 16) | 0x40;
        return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
    }
};

struct Float16 {
    // 1 sign, 5 exponent, 10 fraction bits. Moved to float32's fields the value is 2^112 too small, which one
    // exact multiplication puts right, subnormal numbers included; infinity and NaN need the full exponent.
    static KERNEL float widen(std::uint16_t half) {
        const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
        const std::uint32_t fields = static_cast<std::uint32_t>(half & 0x7fff) << 13;
        const float scaled = float_of(fields) * 0x1p112f;
        const std::uint32_t special = fields | 0x7f800000 | ((fields & 0x007fffff) ? 0x00400000 : 0);
        const std::uint32_t bits = fields >= 0x0f800000 ? special : static_cast<std::uint32_t>(bits_of(scaled));
        return float_of(bits | sign);
    }

    // Adding a power of two 2^13 float32 units above the value rounds its fraction to 10 bits, to nearest even, in
    // hardware; the power is at least that of the smallest normal half, so subnormal results round alike.
    static KERNEL std::uint16_t narrow(float value) {
        const auto bits = static_cast<std::uint32_t>(bits_of(value));
        const std::uint32_t sign = (bits >> 16) & 0x8000, absolute = bits & 0x7fffffff;
        const std::uint32_t exponent = absolute & 0x7f800000;
        const std::uint32_t least = exponent > 0x38800000 ? exponent : 0x38800000;  // 2^-14
        const std::uint32_t magic = least + (13u << 23);
        const auto rounded = static_cast<std::uint32_t>(bits_of(float_of(absolute) + float_of(magic)));
        const std::uint32_t finite = (((least >> 23) - 113) << 10) + (rounded - magic);
        const std::uint32_t quiet_nan = 0x7e00 | ((absolute >> 13) & 0x1ff);
        const std::uint32_t limited = absolute >= 0x477ff000 ? 0x7c00 : finite;  // 65520 rounds to infinity
        return static_cast<std::uint16_t>(sign | (absolute > 0x7f800000 ? quiet_nan : limited));
    }
};

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

// kind in {"float16", "bfloat16"} decides the kernel; dst and src have one length.
template <template <class> class Kernels, class D, class S>
void convert(py::array& dst, const py::array& src, const std::string& kind) {
    const auto to = output<D>(dst, "dst");
    const auto from = input<S>(src, "src", to.n);
    if (kind != "float16" && kind != "bfloat16")
        throw InvalidArgument("kind must be float16 or bfloat16, got " + kind);
    py::gil_scoped_release release;
    if (kind == "float16")
        Kernels<Float16>::run(to.data, from.data, to.n);
    else
        Kernels<BFloat16>::run(to.data, from.data, to.n);
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
