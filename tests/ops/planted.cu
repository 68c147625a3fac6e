// Small kernels, correct or with a fault that cuda_checks.h must find (test_cuda_checked.py). 256 threads per block.
#include "common.cuh"

// x of a block, the last first.
template <bool barrier> __global__ void reverse(int* x) {
    __shared__ int held[threads];
    held[threadIdx.x] = x[grid_index()];
    if (barrier) __syncthreads();
    x[grid_index()] = held[threads - 1 - threadIdx.x];
}

// A memory used twice: `between` the uses all have read it.
template <bool between> __global__ void shift_twice(int* x) {
    __shared__ int held[threads];
    for (int round = 0; round < 2; ++round) {
        held[threadIdx.x] = x[grid_index()];
        __syncthreads();
        x[grid_index()] = held[(threadIdx.x + 1) % threads];
        if (between) __syncthreads();
    }
}

// Bytes that are neighbours have nothing to do with each other.
__global__ void fill(unsigned char* x) { x[grid_index()] = 1; }

template <bool atomic> __global__ void count(int* total) {
    if (threadIdx.x) return;
    if (atomic) atomicAdd(total, 1);
    else *total += 1;
}

// The same value from many threads; 16 bytes at a time.
template <bool apart> __global__ void write_packs(float* x) {
    store(x, apart ? grid_index() : grid_index() / 2, Pack<float>{1, 2, 3, 4});
}

// The total of x, by the block that is done last.
template <bool before, bool after>
__global__ void last_block(const long long* x, long long* copy, int* done, long long* total) {
    __shared__ bool last;
    copy[grid_index()] = x[grid_index()];
    if (before) __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(done, 1) == (int)gridDim.x - 1;
    __syncthreads();
    if (after) __threadfence();
    long long sum = 0;
    if (last)
        for (long long i = threadIdx.x; i < grid_size(); i += threads) sum += copy[i];
    sum = block_sum(sum);
    if (last && threadIdx.x == 0) *total = sum, *done = 0;
}

// The same where one thread has the fences.
template <bool before, bool after>
__global__ void last_block_of_one(const long long* x, long long* copy, int* done, long long* total) {
    __shared__ bool last;
    copy[grid_index()] = x[grid_index()];
    __syncthreads();
    if (threadIdx.x == 0) {
        if (before) __threadfence();
        last = atomicAdd(done, 1) == (int)gridDim.x - 1;
        if (after) __threadfence();
    }
    __syncthreads();
    long long sum = 0;
    if (last)
        for (long long i = threadIdx.x; i < grid_size(); i += threads) sum += copy[i];
    sum = block_sum(sum);
    if (last && threadIdx.x == 0) *total = sum, *done = 0;
}

// Each block waits for the one before: by number, which may not have begun.
template <bool in_turn> __global__ void chain(int* ticket, volatile int* told) {
    if (threadIdx.x) return;
    const int own = in_turn ? atomicAdd(ticket, 1) : (int)blockIdx.x;
    while (own > 0 && told[own - 1] == 0) continue;
    told[own] = 1;
}

template <bool inside> __global__ void read(const int* x, long long n, int* y) {
    const long long i = inside ? grid_index() : grid_index() + 1;
    if (i <= n - inside) y[grid_index()] = x[i];
}

template <bool inside> __global__ void write_shared(int* x) {
    __shared__ int held[threads];
    held[threadIdx.x + !inside] = x[grid_index()];
    x[grid_index()] = held[threadIdx.x + !inside];
}

// Some lanes of a warp have returned when the others exchange values.
template <bool all> __global__ void exchange(int* x) {
    if (!all && threadIdx.x % warp_size > 20) return;
    x[grid_index()] = __shfl_down_sync(all_lanes, x[grid_index()], 1);
}

template <bool wide> __global__ void add_one(int* x) {
    int& own = x[grid_index()];
    own = wide ? (int)((long long)own + 1) : own + 1;
}

template <bool aligned> __global__ void load_packs(const float* x, float* y) {
    y[grid_index()] = load(x + !aligned, grid_index()).at[0];
}
