// The two half precisions, held as uint16: to float32 and back, to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "isa.h"
#include "real.h"

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

// Processors with AVX2 convert eight float16 by one instruction, which GCC does not find in the loops below.
#if defined(__x86_64__) && !defined(__clang__)
#define MPICOMP_F16C
// Vectors wider than the baseline's are passed to nothing that is not inlined, so no ABI is at stake.
#pragma GCC diagnostic ignored "-Wpsabi"

struct Eight {
    typedef short Halves __attribute__((vector_size(16)));
    typedef short UnalignedHalves __attribute__((vector_size(16), aligned(2), may_alias));
    typedef float Floats __attribute__((vector_size(32)));
    typedef float UnalignedFloats __attribute__((vector_size(32), aligned(4), may_alias));

    template <class Half, int width>
    static constexpr bool at_once = std::is_same_v<Half, Float16> && width >= 32;

    template <bool adds>
    static KERNEL void widen(float* dst, const std::uint16_t* src) {
        Floats wide = __builtin_ia32_vcvtph2ps256(*reinterpret_cast<const UnalignedHalves*>(src));
        if constexpr (adds) wide = *reinterpret_cast<const UnalignedFloats*>(dst) + wide;
        *reinterpret_cast<UnalignedFloats*>(dst) = wide;
    }

    static KERNEL void narrow(std::uint16_t* dst, const float* src) {
        constexpr int to_nearest = 0;
        const Floats wide = *reinterpret_cast<const UnalignedFloats*>(src);
        *reinterpret_cast<UnalignedHalves*>(dst) = __builtin_ia32_vcvtps2ph256(wide, to_nearest);
    }
};
#endif

// dst = src, or dst += src.
template <class Half, int width, bool adds = false>
KERNEL void widen_all(float* dst, const std::uint16_t* src, std::size_t n) {
    std::size_t i = 0;
#if defined(MPICOMP_F16C)
    if constexpr (Eight::at_once<Half, width>)
        for (; i + 8 <= n; i += 8) Eight::widen<adds>(dst + i, src + i);
#endif
#pragma GCC ivdep
    for (; i < n; ++i) dst[i] = adds ? dst[i] + Half::widen(src[i]) : Half::widen(src[i]);
}

template <class Half, int width>
KERNEL void narrow_all(std::uint16_t* dst, const float* src, std::size_t n) {
    std::size_t i = 0;
#if defined(MPICOMP_F16C)
    if constexpr (Eight::at_once<Half, width>)
        for (; i + 8 <= n; i += 8) Eight::narrow(dst + i, src + i);
#endif
#pragma GCC ivdep
    for (; i < n; ++i) dst[i] = Half::narrow(src[i]);
}
