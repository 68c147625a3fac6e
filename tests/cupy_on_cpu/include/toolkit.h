// What CuPy's own kernels take from CUDA beyond cuda_on_cpu.h.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <type_traits>

#include "cuda_on_cpu.h"

#define __constant__
#define __noinline__ __attribute__((noinline))
#define __align__(n) alignas(n)

namespace emulator {

// The sizes of a kernel's arguments in bytes, those of pointers negative.
template <class... P>
int sizes(void (*)(P...), int* to) {
    ((*to++ = std::is_pointer_v<P> ? -static_cast<int>(sizeof(P)) : static_cast<int>(sizeof(P))), ...);
    return sizeof...(P);
}

}  // namespace emulator

// The lesser and the larger of unlike numbers, which CUDA compares as C would add them.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B> && !std::is_same_v<A, B>>>
std::common_type_t<A, B> max(A a, B b) {
    using Common = std::common_type_t<A, B>;
    return std::max<Common>(a, b);
}

template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B> && !std::is_same_v<A, B>>>
std::common_type_t<A, B> min(A a, B b) {
    using Common = std::common_type_t<A, B>;
    return std::min<Common>(a, b);
}

template <class T>
T atomicCAS(T* address, T expected, T desired) {
    return emulator::change(address, [=](T old) { return old == expected ? desired : old; });
}

template <class T>
T atomicExch(T* address, T value) {
    return emulator::change(address, [=](T) { return value; });
}

template <class T>
T __ldg(const T* address) { return *address; }

template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned lanes, int) { return __shfl_xor_sync(mask, value, lanes); }

template <class T>
T __shfl_sync(unsigned mask, T value, unsigned source, int) { return __shfl_sync(mask, value, source); }

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned offset, int) { return __shfl_up_sync(mask, value, offset); }

inline void __syncwarp(unsigned = ~0u) { __ballot_sync(~0u, true); }
inline int __clz(int bits) { return bits ? __builtin_clz(bits) : 32; }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float rsqrt(float x) { return 1 / std::sqrt(x); }

using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;
