// What a vector of n elements looks like: non-finite entries, squared norm.
// Instances: count_nonfinite count_beyond squared_norm<REAL>
#include "common.cuh"

// found[0] += how many are NaN or infinite; found[1] = n less the index of the first, zero at first.
template <typename T> __global__ void count_nonfinite(const T* x, long long n, unsigned long long* found) {
    visit<T>(nullptr, x, n, [found, n](long long i, T value) {
        if (!is_nonfinite(value)) return;  // nearly always, so the atomics are rare
        atomicAdd(&found[0], 1ull);
        atomicMax(&found[1], (unsigned long long)(n - i));
    });
}

// found += how many |u| are not below the limit, NaN included.
template <typename T>
__global__ void count_beyond(const T* memory, const T* grad, long long n, T limit, unsigned long long* found) {
    visit<T>(memory, grad, n, [found, limit](long long, T value) {
        if (!(fabs(value) < limit)) atomicAdd(found, 1ull);  // hardly ever
    });
}

// sums[b] = the sum of squares of block b's elements, in float64 and in a fixed order.
template <typename T> __global__ void squared_norm(const T* x, long long n, double* sums) {
    double mine = 0;
    visit<T>(nullptr, x, n, [&mine](long long, T value) { mine += (double)value * value; });
    mine = block_sum(mine);
    if (threadIdx.x == 0) sums[blockIdx.x] = mine;
}
