// The bits of real numbers, and the compensated gradient u = memory + grad, which is never stored.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "isa.h"

template <class T>
struct Real;

template <>
struct Real<float> {
    using Bits = std::int32_t;
    static constexpr Bits magnitude = 0x7fffffff, infinity = 0x7f800000;
};

template <>
struct Real<double> {
    using Bits = std::int64_t;
    static constexpr Bits magnitude = 0x7fffffffffffffff, infinity = 0x7ff0000000000000;
};

template <class T>
using Bits = typename Real<T>::Bits;

template <class T>
KERNEL Bits<T> bits_of(T value) {
    Bits<T> bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

template <class T>
KERNEL T real_of(Bits<T> bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// `condition ? yes : no`, both worked out in any case: a branch around arithmetic would keep a loop from vectorising.
template <class T>
KERNEL T choose(bool condition, T yes, T no) {
    const Bits<T> mask = -static_cast<Bits<T>>(condition);
    return real_of<T>((bits_of(yes) & mask) | (bits_of(no) & ~mask));
}

// |value| as an integer: never negative, ordered as |value|, all NaN alike just above infinity (which NaN a sum
// gives depends on the processor and on the order of its operands).
template <class T>
KERNEL Bits<T> magnitude(T value) {
    return std::min(bits_of(value) & Real<T>::magnitude, Real<T>::infinity + 1);
}

// One cache line of elements is one step of a loop that also prefetches: far enough ahead to hide the memory's latency
// where the loop alternates between reading on and looking again at what it has read.
template <class T>
constexpr std::size_t line_elements = 64 / sizeof(T);
template <class T>
constexpr std::size_t prefetch_distance = 32 * line_elements<T>;

template <class T>
KERNEL bool is_nonfinite(T value) {
    return (bits_of(value) & Real<T>::infinity) == Real<T>::infinity;
}

// u[i] = memory[i] + grad[i], or grad[i] where there is no memory (a compile-time choice, for the vectoriser).
template <class T, bool has_memory>
struct Compensated {
    using Element = T;
    static constexpr bool prefetches = has_memory;  // one stream alone the processor itself foresees better
    const T* memory;
    const T* grad;
    KERNEL T operator[](std::size_t i) const {
        if constexpr (has_memory) return memory[i] + grad[i];
        return grad[i];
    }
    KERNEL void prefetch(std::size_t i) const {
        if constexpr (has_memory) __builtin_prefetch(memory + i);
        __builtin_prefetch(grad + i);
    }
    KERNEL Compensated from(std::size_t i) const { return {has_memory ? memory + i : nullptr, grad + i}; }
};

// Calls f with the Compensated that fits `memory` (null: none).
template <class T, class F>
auto with_compensated(const T* memory, const T* grad, F&& f) {
    if (memory) return f(Compensated<T, true>{memory, grad});
    return f(Compensated<T, false>{nullptr, grad});
}
