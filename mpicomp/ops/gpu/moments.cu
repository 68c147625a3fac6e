// What a selector measures before it chooses: sums over the large entries, and an evenly spread sample.
// Instances: moments sample<REAL>
#include "common.cuh"
#include "groups.cuh"
#include "moments.cuh"

// Of the elements of piece p with |u| >= floor: sums[p] = how many; then, each behind those of all pieces before, the other
// sums. memory may be null.
template <typename T>
__global__ void moments(const T* memory, const T* grad, const long long* spans, long long count, Bits<T> floor,
                        double* sums) {
    const long long pieces = spans[count];
    for (long long p = blockIdx.x; p < pieces; p += gridDim.x) {
        const auto [span, begin, end] = piece_of(spans, count, moments_piece, p);
        const Sums own = sums_of(memory ? memory + begin : memory, grad + begin, (int)(end - begin), floor);
        if (threadIdx.x == 0) {
            sums[p] = own.number, sums[pieces + p] = own.sum;
            sums[2 * pieces + p] = own.magnitudes, sums[3 * pieces + p] = own.squares;
        }
    }
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
