// Ascending index lists written in few bytes: as gaps of a fixed width, or as one bit an element.
#include "common.cuh"

// How many indices are left out before the j-th; read as unsigned, so that a descent is huge. A first one follows -1.
template <typename I> __device__ inline unsigned long long gap(const I* indices, long long j) {
    const unsigned long long next = j ? (unsigned long long)(long long)indices[j - 1] + 1 : 0;
    return (unsigned long long)(long long)indices[j] - next;
}

// found[0] = the largest gap of k indices, found[1] > 0 where they do not ascend from 0 on. Both begin as 0.
template <typename I> __global__ void measure_gaps(const I* indices, long long k, unsigned long long* found) {
    unsigned long long mine = 0;
    bool descent = false;
    for (long long j = grid_index(); j < k; j += grid_size()) {
        const unsigned long long here = gap(indices, j);
        if ((long long)here < 0) descent = true;
        else mine = max(mine, here);
    }
    for (int offset = warp_size / 2; offset; offset /= 2) mine = max(mine, __shfl_down_sync(all_lanes, mine, offset));
    if (threadIdx.x % warp_size == 0) atomicMax(&found[0], mine);
    if (descent) atomicMax(&found[1], 1ull);
}

// One byte of the stream a thread, put together from the few gaps that reach into it: nothing is written twice. Bits
// beyond the last gap are zero.
template <typename I>
__global__ void pack_gaps(const I* indices, long long k, int width, unsigned char* out, long long nbytes) {
    for (long long b = grid_index(); b < nbytes; b += grid_size()) {
        unsigned long long byte = 0;
        for (long long j = 8 * b / width; j < k && j * width < 8 * b + 8; ++j) {
            const int shift = (int)(j * width - 8 * b);  // -62 .. 7: where in the byte the gap begins
            byte |= shift < 0 ? gap(indices, j) >> -shift : gap(indices, j) << shift;
        }
        out[b] = (unsigned char)byte;
    }
}

// steps[j] = the j-th gap and one more, so that their running sum is one above the indices. A gap a thread.
__global__ void read_gaps(const unsigned char* packed, int width, long long k, long long* steps) {
    for (long long j = grid_index(); j < k; j += grid_size()) {
        unsigned long long bits = 0;
        for (int have = 0; have < width;) {
            const long long bit = j * width + have;
            bits |= (unsigned long long)(packed[bit / 8] >> bit % 8) << have;
            have += 8 - (int)(bit % 8);
        }
        steps[j] = (long long)((bits & ((1ull << width) - 1)) + 1);
    }
}

// words: bit i mod 32 of word i div 32 is set for every i of k indices, which have been checked. Begin as zero.
template <typename I> __global__ void set_bits(const I* indices, long long k, unsigned* words) {
    for (long long j = grid_index(); j < k; j += grid_size()) atomicOr(&words[indices[j] / 32], 1u << indices[j] % 32);
}

// 64 bits of a bitmap of n bits, whose bytes need not be aligned; what lies beyond n is left out.
__device__ inline unsigned long long bits_at(const unsigned char* bitmap, long long n, long long first) {
    unsigned long long word = 0;
    for (int bit = 0; bit < 64 && first + bit < n; bit += 8)
        word |= (unsigned long long)bitmap[(first + bit) / 8] << bit;
    return n - first < 64 ? word & ((1ull << (n - first)) - 1) : word;
}

// counts[w] = how many of the bits [64 w, 64 w + 64) are set.
__global__ void count_bits(const unsigned char* bitmap, long long n, long long words, long long* counts) {
    for (long long w = grid_index(); w < words; w += grid_size()) counts[w] = __popcll(bits_at(bitmap, n, 64 * w));
}

// until: running sums of the counts, each word's own included.
template <typename I>
__global__ void write_bits(const unsigned char* bitmap, long long n, long long words, const long long* until,
                           I* indices) {
    for (long long w = grid_index(); w < words; w += grid_size()) {
        long long place = w ? until[w - 1] : 0;
        for (unsigned long long word = bits_at(bitmap, n, 64 * w); word; word &= word - 1)
            indices[place++] = (I)(64 * w + __ffsll(word) - 1);
    }
}
