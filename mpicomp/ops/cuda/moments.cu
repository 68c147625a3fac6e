// What a selector measures before it chooses: sums over the large entries, and an evenly spread sample.
#include "common.cuh"
#include "groups.cuh"

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

// values: `count` samples, one behind another. samples: of each the number of its first value (`count` + 1 of them), then
// which element of u that is, then the step from one to the next.
template <typename T>
__global__ void sample(const T* memory, const T* grad, const long long* samples, long long count, T* values) {
    for (long long j = grid_index(); j < samples[count]; j += grid_size()) {
        const long long s = group_of(samples, count, j), *of = samples + count + 1 + s;
        values[j] = compensated(memory, grad, of[0] + (j - samples[s]) * of[count]);
    }
}
