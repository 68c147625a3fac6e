// Radix select: one digit of the k-th largest magnitude a pass.
#include "common.cuh"

constexpr int digit_bits = 11, digits = 1 << digit_bits;

// counts[d] += how many of the n magnitudes begin with `prefix` and have d as their next digit, which is the
// digit_bits bits from `shift` on. Each block counts in its shared memory first.
template <typename T>
__global__ void count_digits(const T* memory, const T* grad, long long n, int shift, Bits<T> prefix,
                             unsigned long long* counts) {
    __shared__ int of_block[digits];
    for (int d = threadIdx.x; d < digits; d += threads) of_block[d] = 0;
    __syncthreads();
    for (long long i = grid_index(); i < n; i += grid_size()) {
        const Bits<T> key = magnitude(compensated(memory, grad, i)) >> shift;
        if (key >> digit_bits == prefix) atomicAdd(&of_block[key & (digits - 1)], 1);
    }
    __syncthreads();
    for (int d = threadIdx.x; d < digits; d += threads)
        if (of_block[d]) atomicAdd(&counts[d], (unsigned long long)of_block[d]);
}
