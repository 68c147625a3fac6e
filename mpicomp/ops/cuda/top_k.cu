// Radix select: one digit of the k-th largest magnitude a pass; the host need not know the digits.
#include "common.cuh"
#include "groups.cuh"

constexpr int digit_bits = 11, digits = 1 << digit_bits;
constexpr int tally = digits + 2;  // counts of the digits, how many blocks have added theirs, and 8 bytes of room
constexpr int digit_piece = 65536;  // elements of a span for one block

// cut[0]: the digits found so far; cut[1]: which of the magnitudes that begin with them is looked for, counted from the
// largest. Both are settled when all digits are. The first pass writes what the others read.
template <typename T> __device__ inline bool is_first(int shift) { return Real<T>::magnitude >> shift < digits; }

// Whether this block is the last of `blocks` to say so, whose counts are then all there. All threads must call it.
__device__ inline bool is_last(unsigned long long* counts, long long blocks) {
    __shared__ bool last;
    __threadfence();  // what this thread has counted is seen before the block says that it is done
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&counts[digits], 1ull) == blocks - 1;
    __syncthreads();
    __threadfence();
    return last;
}

// Append the digit of the `wanted`-th largest to `prefix`, and take those above it off `wanted`; the tally becomes zero. By
// one block: a thread adds up some digits, from the top; a lane of the first warp some threads; then one lane looks digit
// by digit.
__device__ inline void choose_digit(long long prefix, unsigned long long wanted, long long* cut,
                                    volatile unsigned long long* counts) {
    constexpr int each = digits / threads, of_lane = digits / warp_size;
    __shared__ unsigned long long sums[threads];
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
            cut[0] = prefix << digit_bits | (digits - 1 - place);
            cut[1] = wanted - above;
        }
    }
    __syncthreads();
    for (int d = threadIdx.x; d < tally; d += threads) counts[d] = 0;
}

// One pass, for the k-th largest: count how many of the n magnitudes begin with cut[0] and have which next digit, which is
// the digit_bits bits from `shift` on; each block in its shared memory first. The last block to be done chooses the digit.
// counts: a tally, zero at first.
template <typename T>
__global__ void count_digits(const T* memory, const T* grad, long long n, int shift, long long k, long long* cut,
                             unsigned long long* counts) {
    __shared__ int of_block[digits];
    for (int d = threadIdx.x; d < digits; d += threads) of_block[d] = 0;
    __syncthreads();
    const long long prefix = is_first<T>(shift) ? 0 : cut[0], wanted = is_first<T>(shift) ? k : cut[1];
    visit(memory, grad, n, [&](long long, T value) {
        const Bits<T> key = magnitude(value) >> shift;
        if (key >> digit_bits == (Bits<T>)prefix) atomicAdd(&of_block[key & (digits - 1)], 1);
    });
    __syncthreads();
    for (int d = threadIdx.x; d < digits; d += threads)
        if (of_block[d]) atomicAdd(&counts[d], (unsigned long long)of_block[d]);
    if (is_last(counts, gridDim.x)) choose_digit(prefix, wanted, cut, counts);
}

// The same for `count` spans of the vector, each with a cut and a tally of its own, one behind another. Behind the spans
// stand running sums of how many are looked for in each: `count` + 1 of them.
template <typename T>
__global__ void count_digits_spans(const T* memory, const T* grad, const long long* spans, long long count, int shift,
                                   long long* cuts, unsigned long long* counts) {
    __shared__ int of_block[digits];
    const long long* until = spans + 3 * count + 1;
    for (long long t = blockIdx.x; t < spans[count]; t += gridDim.x) {
        const auto [s, begin, end] = piece_of(spans, count, digit_piece, t);
        const T *g = grad + begin, *m = memory ? memory + begin : memory;
        unsigned long long* own = counts + s * tally;
        for (int d = threadIdx.x; d < digits; d += threads) of_block[d] = 0;
        __syncthreads();
        const bool first = is_first<T>(shift);
        const long long prefix = first ? 0 : cuts[2 * s], wanted = first ? until[s + 1] - until[s] : cuts[2 * s + 1];
        visit_by(threadIdx.x, threads, m, g, end - begin, [&](long long, T value) {
            const Bits<T> key = magnitude(value) >> shift;
            if (key >> digit_bits == (Bits<T>)prefix) atomicAdd(&of_block[key & (digits - 1)], 1);
        });
        __syncthreads();
        for (int d = threadIdx.x; d < digits; d += threads)
            if (of_block[d]) atomicAdd(&own[d], (unsigned long long)of_block[d]);
        if (is_last(own, spans[s + 1] - spans[s])) choose_digit(prefix, wanted, cuts + 2 * s, own);
        __syncthreads();  // the counts have been read
    }
}
