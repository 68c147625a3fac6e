// Runs CUDA kernels on the CPU: what a .cu file needs of CUDA, defined for g++. The machine that runs blocks and
// threads is cuda_on_cpu.cpp; where memory is checked (cuda_checks.h), what does so is compiled in there, and calls
// come from here.
#pragma once

#include <math.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define unchecked __attribute__((noinline, no_sanitize("thread")))  // its accesses are no kernel's

struct dim3 {
    unsigned x, y, z;
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline void __stwb(uint4* to, uint4 value) { *to = value; }

namespace emulator {

constexpr int lanes = 32;

struct Place {
    dim3 thread, block, threads, blocks;
};
extern Place place;  // of the thread that runs

void wait_for_block();
unsigned long long from_lane(unsigned source, unsigned long long value);  // every lane of the warp hands one in
unsigned ballot(bool flag);
int of_all_lanes(int value, bool largest);  // the largest, or the least, in every lane
void fence();
void atomic(const volatile void* address, unsigned bytes, const void* code);  // is about to be changed, from there
void* shared(const void* variable, std::size_t bytes);      // of this block
int run(void (*body)(void**), unsigned blocks, unsigned threads, void** arguments);

template <auto kernel, class... P, std::size_t... i>
unchecked void call(void (*)(P...), void** args, std::index_sequence<i...>) {
    kernel(*static_cast<P*>(args[i])...);
}

template <auto kernel, class... P>
unchecked void call(void (*signature)(P...), void** args) {
    call<kernel>(signature, args, std::index_sequence_for<P...>{});
}

template <class... P>
constexpr int count_arguments(void (*)(P...)) {
    return sizeof...(P);
}

// args[i] points to the i-th argument's value, as in cuLaunchKernel.
template <auto kernel>
int launch(unsigned blocks, unsigned threads, void** args, int given) {
    const auto body = [](void** values) { call<kernel>(kernel, values); };
    if (given == count_arguments(kernel)) run(body, blocks, threads, args);
    return count_arguments(kernel);
}

// In the place of `__shared__ T name`: the memory that the block's threads have in common for it. Every variable brings
// a lambda, whose type no other has, nor another instance of a template.
template <class T, class Variable>
T& shared_memory(Variable) {
    static const char variable = 0;
    return *static_cast<T*>(shared(&variable, sizeof(T)));
}

template <class To, class From>
To bits(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

// What another lane of the warp brought.
template <class T>
T value_of_lane(unsigned source, T value) {
    unsigned long long wide = 0;
    std::memcpy(&wide, &value, sizeof value);
    wide = from_lane(source, wide);
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

// One thread runs at a time, and it is not interrupted here.
template <class T, class Change>
unchecked T change(T* address, Change changed) {
    atomic(address, sizeof(T), __builtin_return_address(0));
    const T old = *address;
    *address = changed(old);
    return old;
}

}  // namespace emulator

#define threadIdx (emulator::place.thread)
#define blockIdx (emulator::place.block)
#define blockDim (emulator::place.threads)
#define gridDim (emulator::place.blocks)

inline void __syncthreads() { emulator::wait_for_block(); }
inline void __threadfence() { emulator::fence(); }

template <class T>
T __shfl_down_sync(unsigned, T value, unsigned offset, int width = emulator::lanes) {
    const unsigned lane = threadIdx.x % emulator::lanes;
    const unsigned source = lane % width + offset < static_cast<unsigned>(width) ? lane + offset : lane;
    return emulator::value_of_lane(source, value);
}

template <class T>
T __shfl_up_sync(unsigned, T value, unsigned offset) {
    const unsigned lane = threadIdx.x % emulator::lanes, source = lane >= offset ? lane - offset : lane;
    return emulator::value_of_lane(source, value);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
    const unsigned source = threadIdx.x % emulator::lanes ^ mask;
    return emulator::value_of_lane(source, value);
}

template <class T>
T __shfl_sync(unsigned, T value, unsigned source) {
    return emulator::value_of_lane(source, value);
}

inline unsigned __ballot_sync(unsigned, bool flag) { return emulator::ballot(flag); }

inline int __reduce_max_sync(unsigned, int value) { return emulator::of_all_lanes(value, true); }
inline int __reduce_min_sync(unsigned, int value) { return emulator::of_all_lanes(value, false); }

inline unsigned __reduce_or_sync(unsigned lanes, unsigned value) {
    for (unsigned mask = 1; mask < emulator::lanes; mask *= 2) value |= __shfl_xor_sync(lanes, value, mask);
    return value;
}

template <class T>
T atomicAdd(T* address, T value) {
    return emulator::change(address, [=](T old) { return static_cast<T>(old + value); });
}

template <class T>
T atomicMax(T* address, T value) {
    return emulator::change(address, [=](T old) { return old < value ? value : old; });
}

template <class T>
T atomicMin(T* address, T value) {
    return emulator::change(address, [=](T old) { return value < old ? value : old; });
}

template <class T>
T atomicOr(T* address, T value) {
    return emulator::change(address, [=](T old) { return static_cast<T>(old | value); });
}

inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clzll(long long bits) { return bits ? __builtin_clzll(bits) : 64; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(1ull * a * b >> 32); }
inline int __float_as_int(float value) { return emulator::bits<int>(value); }
inline unsigned __float_as_uint(float value) { return emulator::bits<unsigned>(value); }
inline float __uint_as_float(unsigned value) { return emulator::bits<float>(value); }
inline long long __double_as_longlong(double value) { return emulator::bits<long long>(value); }
inline float __int_as_float(int value) { return emulator::bits<float>(value); }
inline double __longlong_as_double(long long value) { return emulator::bits<double>(value); }

using std::copysign;
using std::fma;
using std::max;
using std::min;
