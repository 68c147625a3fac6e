// Ascending index lists written in few bytes: as gaps of a fixed width, or as one bit per element.
// Instances: measure_gaps look_up pack_gaps write_indices set_bits write_bitmap write_bits<INDEX>
// Instances: read_gaps count_bits
#include "common.cuh"
#include "indices.cuh"

// Of each block the largest gap, huge where the list does not ascend from 0 on.
template <typename I> __global__ void measure_gaps(const I* indices, long long k, unsigned long long* found) {
    unsigned long long largest = 0;
    for (long long j = grid_index(); j < k; j += grid_size()) largest = max(largest, gap(indices, j));
    largest = block_max(largest);
    if (threadIdx.x == 0) found[blockIdx.x] = largest;
}

// Where in b (m ascending indices) the entries of a would stand; found[j] = 1 where the j-th stands there, else 0.
template <typename I>
__global__ void look_up(const I* a, long long k, const I* b, long long m, long long* places, float* found) {
    for (long long j = grid_index(); j < k; j += grid_size()) {
        const long long place = count_below(b, m, a[j]);
        places[j] = place;
        found[j] = place < m && b[place] == a[j] ? 1.0f : 0.0f;
    }
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

// indices[j] = until[j] - 1, or -1 if that is not below n; and of each block the largest of these, read as unsigned, where
// `found` is given.
template <typename I>
__global__ void write_indices(const long long* until, long long k, long long n, I* indices, unsigned long long* found) {
    unsigned long long largest = 0;
    for (long long j = grid_index(); j < k; j += grid_size()) {
        const unsigned long long index = (unsigned long long)until[j] - 1;  // which nonsense takes round
        indices[j] = index < (unsigned long long)n ? (I)index : (I)-1;
        largest = max(largest, index);
    }
    if (!found) return;
    largest = block_max(largest);
    if (threadIdx.x == 0) found[blockIdx.x] = largest;
}

// words: bit i mod 32 of word i div 32 is set for every i of k indices, which have been checked. Begin as zero.
template <typename I> __global__ void set_bits(const I* indices, long long k, unsigned* words) {
    for (long long j = grid_index(); j < k; j += grid_size()) atomicOr(&words[indices[j] / 32], 1u << indices[j] % 32);
}

// The same of an ascending list, straight to the bytes of a bitmap of n bits: a block writes `bits_piece` of them at a time.
constexpr int bits_piece = BITS_PIECE;

template <typename I>
__global__ void write_bitmap(const I* indices, long long k, long long n, unsigned char* out) {
    __shared__ unsigned words[bits_piece / 32];
    __shared__ long long cuts[2];
    for (long long begin = (long long)blockIdx.x * bits_piece; begin < n; begin += (long long)gridDim.x * bits_piece) {
        const long long end = min(begin + bits_piece, n);
        if (threadIdx.x < 2) cuts[threadIdx.x] = count_below(indices, k, threadIdx.x ? end : begin);
        for (int w = threadIdx.x; w < bits_piece / 32; w += threads) words[w] = 0;
        __syncthreads();
        for (long long j = cuts[0] + threadIdx.x; j < cuts[1]; j += threads) {
            const int bit = (int)(indices[j] - begin);
            atomicOr(&words[bit / 32], 1u << bit % 32);
        }
        __syncthreads();
        for (int byte = threadIdx.x; begin + 8 * byte < end; byte += threads)
            out[begin / 8 + byte] = (unsigned char)(words[byte / 4] >> byte % 4 * 8);
        __syncthreads();  // the words have been read
    }
}

// 64 bits of a bitmap of n bits, whose bytes need not be aligned; elements from n on are left out.
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

// until: running sums of the counts, each word's own included. Where these are not k in all, indices become -1.
template <typename I>
__global__ void write_bits(const unsigned char* bitmap, long long n, long long words, const long long* until, long long k,
                           I* indices) {
    if (until[words - 1] != k) {
        for (long long j = grid_index(); j < k; j += grid_size()) indices[j] = -1;
        return;
    }
    for (long long w = grid_index(); w < words; w += grid_size()) {
        long long place = w ? until[w - 1] : 0;
        for (unsigned long long word = bits_at(bitmap, n, 64 * w); word; word &= word - 1)
            indices[place++] = (I)(64 * w + __ffsll(word) - 1);
    }
}
