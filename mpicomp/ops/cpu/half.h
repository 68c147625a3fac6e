// The two half precisions, held as uint16: to float32 and back, to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

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
