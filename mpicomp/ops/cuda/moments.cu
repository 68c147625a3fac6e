// What a selector measures before it chooses: sums over the large entries, and an evenly spread sample.
#include "common.cuh"

// sums[4 b], ... = of block b's elements with |u| >= floor: how many (exact below 2^53), sums of u, |u| and u squared, in
// float64 and in a fixed order. memory (may be null), grad: n elements.
template <typename T>
__global__ void moments(const T* memory, const T* grad, long long n, Bits<T> floor, double* sums) {
    double count = 0, sum = 0, size = 0, square = 0;
    visit(memory, grad, n, [&](long long, T value) {
        if (magnitude(value) < floor) return;
        const double wide = value;
        count += 1;
        sum += wide;
        size += wide < 0 ? -wide : wide;
        square += wide * wide;
    });
    count = block_sum(count), sum = block_sum(sum), size = block_sum(size), square = block_sum(square);
    if (threadIdx.x) return;
    double* mine = sums + 4ll * blockIdx.x;
    mine[0] = count, mine[1] = sum, mine[2] = size, mine[3] = square;
}

// values[j] = u[first + j * stride], k of them.
template <typename T>
__global__ void sample(const T* memory, const T* grad, long long first, long long stride, long long k, T* values) {
    for (long long j = grid_index(); j < k; j += grid_size())
        values[j] = compensated(memory, grad, first + j * stride);
}
