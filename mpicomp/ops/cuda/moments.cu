// What a selector measures before it chooses: sums over the large entries, and an evenly spread sample.
#include "common.cuh"
#include "groups.cuh"

constexpr int moments_piece = 16384;  // elements of a span that a block adds up at a time

// Of the elements of piece p with |u| >= floor: sums[p] = how many (exact below 2^53); then, each behind those of all pieces
// before, the sums of u, of |u| and of u squared. In float64, and in an order that depends on nothing but their number.
// memory may be null.
template <typename T>
__global__ void moments(const T* memory, const T* grad, const long long* spans, long long count, Bits<T> floor,
                        double* sums) {
    constexpr int size = Pack<T>::size;
    const long long pieces = spans[count];
    for (long long p = blockIdx.x; p < pieces; p += gridDim.x) {
        const auto [span, begin, end] = piece_of(spans, count, moments_piece, p);
        const T *g = grad + begin, *m = memory ? memory + begin : memory;
        const int n = (int)(end - begin), whole = aligned(m, g) ? n / size : 0;
        double number = 0, sum = 0, magnitudes = 0, squares = 0;
        for (int v = threadIdx.x; v * size < n; v += threads) {
            Pack<T> u;
            if (v < whole) u = compensated_pack(m, g, v);
#pragma unroll
            for (int j = 0; j < size; ++j) {
                const int i = v * size + j;
                if (v >= whole && i < n) u.at[j] = compensated(m, g, i);
                if (i >= n || magnitude(u.at[j]) < floor) continue;
                const double wide = u.at[j];
                number += 1;
                sum += wide;
                magnitudes += wide < 0 ? -wide : wide;
                squares += wide * wide;
            }
        }
        number = block_sum(number), sum = block_sum(sum);
        magnitudes = block_sum(magnitudes), squares = block_sum(squares);
        if (threadIdx.x == 0) {
            sums[p] = number, sums[pieces + p] = sum;
            sums[2 * pieces + p] = magnitudes, sums[3 * pieces + p] = squares;
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
