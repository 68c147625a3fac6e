// Radix select: one digit of the k-th largest magnitude a pass; the host need not know the digits.
#include "common.cuh"
#include "groups.cuh"

constexpr int digit_bits = 11, digits = 1 << digit_bits;
constexpr int digit_piece = 65536;  // elements of a span for one block

// cut[0]: the digits found so far; cut[1]: which of the magnitudes that begin with them is looked for, counted from the
// largest. Both are settled when all digits are.

// counts[d] += how many of the n magnitudes begin with cut[0] and have d as their next digit, which is the digit_bits bits
// from `shift` on. Each block counts in its shared memory first.
template <typename T>
__global__ void count_digits(const T* memory, const T* grad, long long n, int shift, const long long* cut,
                             unsigned long long* counts) {
    __shared__ int of_block[digits];
    for (int d = threadIdx.x; d < digits; d += threads) of_block[d] = 0;
    __syncthreads();
    const Bits<T> prefix = (Bits<T>)cut[0];
    visit(memory, grad, n, [&](long long, T value) {
        const Bits<T> key = magnitude(value) >> shift;
        if (key >> digit_bits == prefix) atomicAdd(&of_block[key & (digits - 1)], 1);
    });
    __syncthreads();
    for (int d = threadIdx.x; d < digits; d += threads)
        if (of_block[d]) atomicAdd(&counts[d], (unsigned long long)of_block[d]);
}

// The same for `count` spans of the vector, each with a cut and counts of its own, one behind another.
template <typename T>
__global__ void count_digits_spans(const T* memory, const T* grad, const long long* spans, long long count, int shift,
                                   const long long* cuts, unsigned long long* counts) {
    __shared__ int of_block[digits];
    for (long long t = blockIdx.x; t < spans[count]; t += gridDim.x) {
        const auto [s, begin, end] = piece_of(spans, count, digit_piece, t);
        const T *g = grad + begin, *m = memory ? memory + begin : memory;
        for (int d = threadIdx.x; d < digits; d += threads) of_block[d] = 0;
        __syncthreads();
        const Bits<T> prefix = (Bits<T>)cuts[2 * s];
        visit_by(threadIdx.x, threads, m, g, end - begin, [&](long long, T value) {
            const Bits<T> key = magnitude(value) >> shift;
            if (key >> digit_bits == prefix) atomicAdd(&of_block[key & (digits - 1)], 1);
        });
        __syncthreads();
        for (int d = threadIdx.x; d < digits; d += threads)
            if (of_block[d]) atomicAdd(&counts[s * digits + d], (unsigned long long)of_block[d]);
        __syncthreads();  // the counts have been read
    }
}

// A block a cut: append the digit of the cut[1]-th largest to cut[0], and take those above it off cut[1]; counts become zero.
// A thread adds up some digits, from the top; a lane of the first warp some threads; then one lane looks digit by digit.
__global__ void choose_digit(long long* cut, unsigned long long* counts) {
    constexpr int each = digits / threads, of_lane = digits / warp_size;
    __shared__ unsigned long long sums[threads];
    cut += 2 * (long long)blockIdx.x, counts += digits * (long long)blockIdx.x;
    const unsigned long long wanted = cut[1];  // before the barrier, after which a lane changes it
    const auto from_top = [&](int place) { return counts[digits - 1 - place]; };
    unsigned long long mine = 0;
    for (int j = 0; j < each; ++j) mine += from_top(threadIdx.x * each + j);
    sums[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x < warp_size) {
        unsigned long long own = 0, until = 0;
        for (int j = 0; j < threads / warp_size; ++j) own += sums[threadIdx.x * (threads / warp_size) + j];
        until = own;
        for (int offset = 1; offset < warp_size; offset *= 2) {
            const unsigned long long below = __shfl_up_sync(all_lanes, until, offset);
            if (threadIdx.x >= offset) until += below;
        }
        const unsigned reached = __ballot_sync(all_lanes, until >= wanted);
        if (threadIdx.x == __ffs(reached) - 1) {
            unsigned long long above = until - own;
            int place = threadIdx.x * of_lane;
            while (above + from_top(place) < wanted) above += from_top(place++);
            cut[0] = cut[0] << digit_bits | (digits - 1 - place);
            cut[1] = wanted - above;
        }
    }
    __syncthreads();
    for (int d = threadIdx.x; d < digits; d += threads) counts[d] = 0;
}
