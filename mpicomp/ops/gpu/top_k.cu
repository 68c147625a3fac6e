// Radix select: one digit of the k-th largest magnitude a pass; the host need not know the digits. In long vectors after a
// guess, by a sample, of a magnitude that the k largest pass and few others do (Floyd and Rivest, Expected time bounds for
// selection, CACM 1975): collect.cu keeps these, and they stand in for the vector where the guess proves right.
// Instances: guess count_digits count_digits_spans<REAL>
#include "common.cuh"
#include "groups.cuh"
#include "kept.cuh"

constexpr int digit_bits = DIGIT_BITS, digits = 1 << digit_bits;
constexpr int tally = digits + 2;  // counts of the digits, how many blocks have added theirs, and 8 bytes of room
constexpr int digit_piece = DIGIT_PIECE;  // elements of a span for one block
constexpr int sample = SAMPLE;  // elements of a vector that a guess goes by

// cut[0]: the digits found so far; cut[1]: which of the magnitudes that begin with them is looked for, counted from the
// largest. Both are settled when all digits are. The first pass writes what the others read.
template <typename T> __device__ inline bool is_first(int shift) { return Real<T>::magnitude >> shift < digits; }

// Append the digit of the `wanted`-th largest to `prefix`, and take those above it off `wanted`; the counts become zero. By
// one block: a thread reads `each` digits at once, from the top, and keeps them; the thread whose digits' running sum reaches
// `wanted` looks through its own.
__device__ inline void choose_digit(long long prefix, unsigned long long wanted, long long* cut,
                                    unsigned long long* counts) {
    constexpr int each = digits / threads;
    __shared__ unsigned long long of_warp[threads / warp_size];
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, highest = digits - 1 - threadIdx.x * each;
    unsigned long long own[each], mine = 0;
#pragma unroll
    for (int j = 0; j < each; ++j) own[j] = counts[highest - j];
#pragma unroll
    for (int j = 0; j < each; ++j) mine += own[j], counts[highest - j] = 0;
    unsigned long long until = running_sum(mine);
    if (lane == warp_size - 1) of_warp[warp] = until;
    __syncthreads();
    for (int other = 0; other < warp; ++other) until += of_warp[other];
    unsigned long long above = until - mine;
    if (above >= wanted || until < wanted) return;
    int place = 0;
#pragma unroll
    for (int j = 0; j < each; ++j)
        if (place == j && above + own[j] < wanted) above += own[j], ++place;
    cut[0] = prefix << digit_bits | (highest - place);
    cut[1] = wanted - above;
}

// guesses[0] = the `wanted`-th largest magnitude of a sample of n elements, rounded down to 8 bits of mantissa; zero where it
// is zero, or where twice as many pass it as there is room for, by the sample. Where `table` is given, the same for a span a
// block: where each begins, where each ends, and as which it is wanted; zero in those that have no room.
template <typename T>
__global__ void guess(const T* memory, const T* grad, long long n, long long wanted, long long room,
                      const long long* table, const long long* areas, long long* guesses) {
    constexpr int each = sample / threads, lowest = sizeof(T) == 4 ? 15 : 44, width = 8;
    static_assert(threads == 1 << width, "a digit a thread");
    const long long s = blockIdx.x, count = gridDim.x;
    if (table) {
        const long long start = table[s];
        n = table[count + s] - start, wanted = table[2 * count + s], room = area_of(areas, s, 0).room;
        grad += start, memory = memory ? memory + start : memory;
    }
    if (room == 0) {
        if (threadIdx.x == 0) guesses[s] = 0;
        return;
    }
    // One element of each of `sample` equal parts, at places of no period that the vector might have, too.
    const long long part = n / sample;
    Bits<T> keys[each];
#pragma unroll
    for (int j = 0; j < each; ++j) {
        const unsigned p = j * threads + threadIdx.x;
        const unsigned long long place = ((unsigned long long)(p * 2654435769u) * part) >> 32;
        keys[j] = magnitude(compensated(memory, grad, (long long)(p * part + place)));
    }
    // Digit by digit: thread t counts those that begin with the digits found and have the t-th highest as their next.
    __shared__ int tallies[threads], of_warp[threads / warp_size], digit, above, until;
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    if (threadIdx.x == 0) above = 0, until = sample;
    Bits<T> found = 0;
    for (int shift = 8 * sizeof(T) - 1; shift > lowest;) {
        const int before = shift, bits = min(width, shift - lowest);
        shift -= bits;
        tallies[threadIdx.x] = 0;
        __syncthreads();
        if (threadIdx.x == 0) digit = 0;  // all have read the one before
#pragma unroll
        for (int j = 0; j < each; ++j)
            if (keys[j] >> before == found >> before) atomicAdd(&tallies[keys[j] >> shift & ((1 << bits) - 1)], 1);
        __syncthreads();
        const int mine = tallies[threads - 1 - threadIdx.x];
        int sum = running_sum(mine);
        if (lane == warp_size - 1) of_warp[warp] = sum;
        sum += above;
        __syncthreads();
        for (int other = 0; other < warp; ++other) sum += of_warp[other];
        if (sum >= wanted && sum - mine < wanted) digit = threads - 1 - threadIdx.x, above = sum - mine, until = sum;
        __syncthreads();
        found |= (Bits<T>)digit << shift;
    }
    if (threadIdx.x == 0) guesses[s] = until * part <= 2 * room ? found : 0;
}

// One pass, for the k-th largest: count how many of the n magnitudes begin with cut[0] and have which next digit, which is
// the digit_bits bits from `shift` on; each block in its shared memory first. The last block to be done chooses the digit.
// counts: a tally, zero at first. Of the candidates in `kept`, where they stand in for the vector.
template <typename T>
__global__ void count_digits(const T* memory, const T* grad, long long n, int shift, long long k, long long* cut,
                             unsigned long long* counts, long long room, const T* kept, const long long* found) {
    __shared__ int of_block[digits];
    if (stand_in(found, 0, k, room)) memory = nullptr, grad = kept, n = found[0];
    const long long of_pass = threads * Pack<T>::size, blocks = min((long long)gridDim.x, (n + of_pass - 1) / of_pass);
    if (blockIdx.x >= blocks) return;
    for (int d = threadIdx.x; d < digits; d += threads) of_block[d] = 0;
    __syncthreads();
    const long long prefix = is_first<T>(shift) ? 0 : cut[0], wanted = is_first<T>(shift) ? k : cut[1];
    visit_by(grid_index(), blocks * threads, memory, grad, n, [&](long long, T value) {
        const Bits<T> key = magnitude(value) >> shift;
        if (key >> digit_bits == (Bits<T>)prefix) atomicAdd(&of_block[key & (digits - 1)], 1);
    });
    __syncthreads();
    for (int d = threadIdx.x; d < digits; d += threads)
        if (of_block[d]) atomicAdd(&counts[d], (unsigned long long)of_block[d]);
    if (is_last(counts + digits, blocks)) choose_digit(prefix, wanted, cut, counts);
}

// The same for `count` spans of the vector, each with a cut and a tally of its own, one behind another. Behind the spans
// stand running sums of how many are looked for in each: `count` + 1 of them.
template <typename T>
__global__ void count_digits_spans(const T* memory, const T* grad, const long long* spans, long long count, int shift,
                                   long long* cuts, unsigned long long* counts, const long long* areas, const T* kept,
                                   const long long* found) {
    __shared__ int of_block[digits];
    const long long* until = spans + 3 * count + 1;
    for (long long t = blockIdx.x; t < spans[count]; t += gridDim.x) {
        auto [s, begin, end] = piece_of(spans, count, digit_piece, t);
        const long long k = until[s + 1] - until[s];
        const T *g = grad, *m = memory;
        long long pieces = spans[s + 1] - spans[s];
        if (const Area area = area_of(areas, s, 0); stand_in(found, s, k, area.room)) {
            begin = (t - spans[s]) * digit_piece, end = min(begin + digit_piece, found[s]);
            if (begin >= end) continue;
            g = kept + area.begin, m = nullptr, pieces = (found[s] + digit_piece - 1) / digit_piece;
        }
        unsigned long long* own = counts + s * tally;
        for (int d = threadIdx.x; d < digits; d += threads) of_block[d] = 0;
        __syncthreads();
        const bool first = is_first<T>(shift);
        const long long prefix = first ? 0 : cuts[2 * s], wanted = first ? k : cuts[2 * s + 1];
        visit_by(threadIdx.x, threads, m ? m + begin : m, g + begin, end - begin, [&](long long, T value) {
            const Bits<T> key = magnitude(value) >> shift;
            if (key >> digit_bits == (Bits<T>)prefix) atomicAdd(&of_block[key & (digits - 1)], 1);
        });
        __syncthreads();
        for (int d = threadIdx.x; d < digits; d += threads)
            if (of_block[d]) atomicAdd(&own[d], (unsigned long long)of_block[d]);
        if (is_last(own + digits, pieces)) choose_digit(prefix, wanted, cuts + 2 * s, own);
        __syncthreads();  // the counts have been read
    }
}
