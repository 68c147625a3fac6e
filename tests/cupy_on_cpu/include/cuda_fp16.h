// CUDA's half, by the compiler's own type.
#pragma once

#include "toolkit.h"

struct __half_raw {
    unsigned short x;
};

struct half {
    unsigned short bits;
    half() = default;
    half(float value) : bits(emulator::bits<unsigned short>(static_cast<_Float16>(value))) {}
    half(double value) : bits(emulator::bits<unsigned short>(static_cast<_Float16>(value))) {}
    template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
    half(T value) : half(static_cast<float>(value)) {}
    half(const __half_raw& raw) : bits(raw.x) {}
    operator float() const { return emulator::bits<_Float16>(bits); }
    operator __half_raw() const { return {bits}; }
};
using __half = half;

inline unsigned short __half_as_ushort(half value) { return value.bits; }
inline half __ushort_as_half(unsigned short bits) { return __half_raw{bits}; }
