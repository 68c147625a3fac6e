// One cache line of numbers in the registers of the instruction set at hand, for sums that have to stay in registers.
//
// Loops over lanes are left to the vectoriser elsewhere; where a dozen sums are kept at once it puts them in memory.
// A line is as long for every instruction set, and its sums are added in one order: the same bits everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "real.h"

template <class T>
struct Line {
    static constexpr std::size_t size = line_elements<T>;
    static constexpr std::size_t padded(std::size_t n) { return (n + size - 1) / size * size; }
};

// `width` bytes: one register.
template <class T, int width>
struct Register {
    using Integer = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
    typedef T Type __attribute__((vector_size(width)));
    typedef T Unaligned __attribute__((vector_size(width), aligned(alignof(T)), may_alias));
    typedef Integer Mask __attribute__((vector_size(width)));
    static constexpr std::size_t lanes = width / sizeof(T), in_line = 64 / width;

    static KERNEL void load(const T* from, Type& to) { to = *reinterpret_cast<const Unaligned*>(from); }
    static KERNEL void store(const Type& from, T* to) { *reinterpret_cast<Unaligned*>(to) = from; }

    template <bool has_memory>
    static KERNEL void load(Compensated<T, has_memory> u, std::size_t i, Type& to) {
        load(u.grad + i, to);
        if constexpr (has_memory) to = *reinterpret_cast<const Unaligned*>(u.memory + i) + to;
    }

    // Groups of 2 * half lanes become groups of `half`: the sums of their halves. Those of a come first, then b's.
    template <std::size_t half>
    static KERNEL void halve(const Type& a, const Type& b, Type& to) {
        halve<half>(a, b, to, std::make_integer_sequence<int, static_cast<int>(lanes)>{});
    }

    // x moved up by `by` lanes; the last ones of `below` come in.
    template <std::size_t by>
    static KERNEL void move_up(const Type& below, const Type& x, Type& to) {
        move_up<by>(below, x, to, std::make_integer_sequence<int, static_cast<int>(lanes)>{});
    }

    // x becomes the sums of its lanes up to each.
    template <std::size_t by = 1>
    static KERNEL void sum_up(Type& x) {
        if constexpr (by < lanes) {
            Type moved;
            move_up<by>(Type{}, x, moved);
            x += moved;
            sum_up<2 * by>(x);
        }
    }

private:
    template <std::size_t by, int... lane>
    static KERNEL void move_up(const Type& below, const Type& x, Type& to, std::integer_sequence<int, lane...>) {
        constexpr int first = lanes - by;
#if defined(__clang__)
        to = __builtin_shufflevector(below, x, (first + lane)...);
#else
        to = __builtin_shuffle(below, x, Mask{(first + lane)...});
#endif
    }

    template <std::size_t half, int... lane>
    static KERNEL void halve(const Type& a, const Type& b, Type& to, std::integer_sequence<int, lane...>) {
        constexpr int h = half;
#if defined(__clang__)
        to = __builtin_shufflevector(a, b, (lane / h * 2 * h + lane % h)...) +
             __builtin_shufflevector(a, b, (lane / h * 2 * h + lane % h + h)...);
#else
        to = __builtin_shuffle(a, b, Mask{(lane / h * 2 * h + lane % h)...}) +
             __builtin_shuffle(a, b, Mask{(lane / h * 2 * h + lane % h + h)...});
#endif
    }
};

// sums[k] = the sum of all lanes of x[k], `count` (a power of two) of them. Overwrites x; sums has room for a register.
template <class T, int width, std::size_t count, std::size_t half = Register<T, width>::lanes / 2>
KERNEL void sum_lanes(typename Register<T, width>::Type* x, T* sums) {
    using R = Register<T, width>;
    if constexpr (half == 0) {
        for (std::size_t k = 0; k < count; ++k) R::store(x[k], sums + k * R::lanes);
    } else if constexpr (count == 1) {
        R::template halve<half>(x[0], x[0], x[0]);
        sum_lanes<T, width, 1, half / 2>(x, sums);
    } else {
        for (std::size_t k = 0; k < count / 2; ++k) R::template halve<half>(x[2 * k], x[2 * k + 1], x[k]);
        sum_lanes<T, width, count / 2, half / 2>(x, sums);
    }
}

// Runs Kernel::run<width>(arguments...) with the width of the registers in use, compiled for them.
template <class Kernel, class... Arguments>
void dispatch_by_width(Arguments... arguments) {
#if defined(__x86_64__)
    switch (current_isa()) {
        case Isa::avx512: return run_avx512<Kernel::template run<64>>(arguments...);
        case Isa::avx2: return run_avx2<Kernel::template run<32>>(arguments...);
        case Isa::baseline: break;
    }
#endif
    Kernel::template run<16>(arguments...);
}
