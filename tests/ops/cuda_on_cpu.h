// Runs CUDA kernels on the CPU: what a .cu file needs of CUDA, defined for g++.
//
// Blocks run one after the other; each thread of a block is a fibre. A fibre runs until it has to wait at a barrier, then
// the next one runs, in turn: ucontext gives it a stack, _setjmp and _longjmp switch, which ask nothing of the system.
// Warp exchanges write to a slot, wait for the warp, read, and wait again. Threads that have returned no longer count at
// a barrier. A round in which nobody gets further is a deadlock in the kernel (a barrier that not all threads reach) and
// ends the process with a message.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
};

static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

constexpr int lanes = 32;
constexpr std::size_t stack_bytes = 64 << 10;

struct Barrier {
    int members = 0, arrived = 0;
    long generation = 0;
};

struct Fibre {
    ucontext_t context;
    jmp_buf place;  // where it waits
    std::vector<char> stack;
    bool begun = false, done = false;
};

static std::vector<Fibre> fibres;
static std::vector<Barrier> warps;
static std::vector<unsigned long long> slots;  // one a thread, for warp exchanges
static Barrier block;
static jmp_buf scheduler;
static unsigned current;
static bool progress;
static unsigned first_block = 0, most_blocks = ~0u;  // of a grid, those that are run
static void (*body)(void**);
static void** arguments;

inline void release_if_full(Barrier& barrier) {
    if (barrier.arrived < barrier.members || barrier.arrived == 0) return;
    barrier.arrived = 0;
    ++barrier.generation;
    progress = true;
}

inline void wait(Barrier& barrier) {
    const long mine = barrier.generation;
    ++barrier.arrived;
    release_if_full(barrier);
    while (barrier.generation == mine)
        if (_setjmp(fibres[current].place) == 0) _longjmp(scheduler, 1);
}

inline Barrier& warp() { return warps[current / lanes]; }

// Every lane of the warp hands in a value; read(slots of the warp) is evaluated between two barriers.
template <class Read>
auto exchange(unsigned long long value, Read read) {
    slots[current] = value;
    wait(warp());
    const auto result = read(&slots[current / lanes * lanes]);
    wait(warp());
    return result;
}

inline void run_fibre() {
    body(arguments);
    fibres[current].done = progress = true;
    for (Barrier* barrier : {&warp(), &block}) {
        --barrier->members;
        release_if_full(*barrier);
    }
    _longjmp(scheduler, 1);
}

// Let a fibre run until it waits or is done.
inline void resume(Fibre& fibre) {
    if (_setjmp(scheduler) != 0) return;
    if (fibre.begun) _longjmp(fibre.place, 1);
    fibre.begun = true;
    setcontext(&fibre.context);
}

inline void run_block(unsigned n) {
    if (fibres.size() < n) fibres.resize(n);
    warps.assign((n + lanes - 1) / lanes, Barrier{});
    slots.assign(warps.size() * lanes, 0);
    block = Barrier{};
    for (unsigned t = 0; t < n; ++t) {
        Fibre& fibre = fibres[t];
        fibre.stack.resize(stack_bytes);
        fibre.begun = fibre.done = false;
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack.data();
        fibre.context.uc_stack.ss_size = stack_bytes;
        fibre.context.uc_link = nullptr;  // it never returns
        makecontext(&fibre.context, run_fibre, 0);
        ++block.members;
        ++warps[t / lanes].members;
    }
    do {
        progress = false;
        for (unsigned t = 0; t < n; ++t) {
            if (fibres[t].done) continue;
            current = t;
            threadIdx = {t, 0, 0};
            resume(fibres[t]);
        }
    } while (progress);
    if (block.members == 0) return;
    std::fprintf(stderr, "deadlock: %d threads of block %u wait for each other\n", block.members, blockIdx.x);
    std::abort();
}

template <auto kernel, class... P, std::size_t... i>
void call(void (*)(P...), void** args, std::index_sequence<i...>) {
    kernel(*static_cast<P*>(args[i])...);
}

template <auto kernel, class... P>
void call(void (*signature)(P...), void** args) {
    call<kernel>(signature, args, std::index_sequence_for<P...>{});
}

template <class... P>
constexpr int count_arguments(void (*)(P...)) {
    return sizeof...(P);
}

// args[i] points to the i-th argument's value, as in cuLaunchKernel.
template <auto kernel>
int launch(unsigned blocks, unsigned n, void** args, int given) {
    if (given != count_arguments(kernel)) return count_arguments(kernel);
    body = [](void** values) { call<kernel>(kernel, values); };
    arguments = args;
    gridDim = {blocks, 1, 1};
    blockDim = {n, 1, 1};
    for (unsigned b = first_block; b < blocks && b - first_block < most_blocks; ++b) {
        blockIdx = {b, 0, 0};
        run_block(n);
    }
    return given;
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
T from_lane(unsigned source, T value) {
    unsigned long long wide = 0;
    std::memcpy(&wide, &value, sizeof value);
    wide = emulator::exchange(wide, [source](const unsigned long long* slots) { return slots[source]; });
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

}  // namespace emulator

// Of the next grids run only these blocks: what a huge grid does at its end, without what comes before.
extern "C" void window(unsigned first, unsigned most) {
    emulator::first_block = first;
    emulator::most_blocks = most;
}

inline void __syncthreads() { emulator::wait(emulator::block); }

template <class T>
T __shfl_down_sync(unsigned, T value, unsigned offset, int width = emulator::lanes) {
    const unsigned lane = threadIdx.x % emulator::lanes;
    const unsigned source = lane % width + offset < static_cast<unsigned>(width) ? lane + offset : lane;
    return emulator::from_lane(source, value);
}

template <class T>
T __shfl_up_sync(unsigned, T value, unsigned offset) {
    const unsigned lane = threadIdx.x % emulator::lanes, source = lane >= offset ? lane - offset : lane;
    return emulator::from_lane(source, value);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
    const unsigned source = threadIdx.x % emulator::lanes ^ mask;
    return emulator::from_lane(source, value);
}

template <class T>
T __shfl_sync(unsigned, T value, unsigned source) {
    return emulator::from_lane(source, value);
}

inline unsigned __ballot_sync(unsigned, bool flag) {
    return emulator::exchange(flag, [](const unsigned long long* slots) {
        unsigned raised = 0;
        for (int lane = 0; lane < emulator::lanes; ++lane) raised |= static_cast<unsigned>(slots[lane] != 0) << lane;
        return raised;
    });
}

// Of all lanes' values, in all lanes: all must be there.
template <class Better>
int of_all_lanes(int value, Better better) {
    return emulator::exchange(static_cast<unsigned>(value), [better](const unsigned long long* slots) {
        int best = static_cast<int>(slots[0]);
        for (int lane = 1; lane < emulator::lanes; ++lane) {
            const int other = static_cast<int>(slots[lane]);
            if (better(other, best)) best = other;
        }
        return best;
    });
}

inline int __reduce_max_sync(unsigned, int value) { return of_all_lanes(value, [](int a, int b) { return a > b; }); }
inline int __reduce_min_sync(unsigned, int value) { return of_all_lanes(value, [](int a, int b) { return a < b; }); }

// Only one fibre runs at a time, and it is never interrupted.
template <class T>
T atomicAdd(T* address, T value) {
    return std::exchange(*address, static_cast<T>(*address + value));
}

template <class T>
T atomicMax(T* address, T value) {
    return std::exchange(*address, std::max(*address, value));
}

template <class T>
T atomicMin(T* address, T value) {
    return std::exchange(*address, std::min(*address, value));
}

template <class T>
T atomicOr(T* address, T value) {
    return std::exchange(*address, static_cast<T>(*address | value));
}

inline void __threadfence() {}

inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
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
