// Several ascending index lists at once: their union with the sums of their values, and what of each is in another list.
// A table locates `count` lists: running sums of their lengths (`count` + 1 of them), the addresses of their
// indices, and those of their values.
// Instances: mark_lists<INDEX>
// Instances: write_union find_common write_common<REAL, INDEX>
#include "common.cuh"
#include "groups.cuh"
#include "indices.cuh"

__device__ inline const unsigned long long* addresses_in(const long long* table, long long count) {
    return (const unsigned long long*)(table + count + 1);
}

// words: bit i mod 32 of word i div 32 is set for every index of any list, and counts[t] = how many of the bits
// [t * tile, (t + 1) * tile) are, of `tiles`. counts[tiles] = how many entries show that their list does not ascend within
// [0, n), or, where they may be `filled` up, is not followed by n alone: the host has yet to ask. All zero at first.
template <typename I>
__global__ void mark_lists(const long long* table, long long count, long long n, int filled, long long tile,
                           long long tiles, unsigned* words, unsigned long long* counts) {
    for (long long j = grid_index(); j < table[count]; j += grid_size()) {
        const long long l = group_of(table, count, j), place = j - table[l];
        const I* list = (const I*)addresses_in(table, count)[l];
        const long long i = list[place], previous = place ? (long long)list[place - 1] : -1;
        if (i >= 0 && i < n) {
            const unsigned bit = 1u << i % 32;
            if (!(atomicOr(&words[i / 32], bit) & bit)) atomicAdd(&counts[i / tile], 1ull);
        }
        if (!(previous < i && i < n) && !(filled && i == n && previous <= n)) atomicAdd(&counts[tiles], 1ull);
    }
}

constexpr int union_piece = UNION_PIECE;  // bits that a block looks at together, a word a thread; a tile is some of these
constexpr int union_lists = threads / 2;   // lists whose ends in a piece are looked for together

// The union, whose part in a tile is written behind as many as the tiles before it hold; and where sums is given, the values
// at each index, added in the order of the lists. Nothing where a list has been found wrong.
template <typename T, typename I>
__global__ void write_union(const long long* table, long long count, long long n, long long tile, long long tiles,
                            const unsigned* words, const unsigned long long* counts, I* indices, T* sums) {
    __shared__ unsigned bits[threads];
    __shared__ int earlier[threads], of_warp[threads / warp_size];
    __shared__ long long cuts[threads], first;
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const unsigned long long* addresses = addresses_in(table, count);
    if (counts[tiles]) return;
    for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {
        unsigned long long before = 0;
        for (long long other = threadIdx.x; other < t; other += threads) before += counts[other];
        before = block_sum(before);
        if (threadIdx.x == 0) first = (long long)before;
        __syncthreads();
        long long start = first;
        const long long stop = min((t + 1) * tile, n);
        for (long long begin = t * tile; begin < stop; begin += union_piece) {
            const long long end = min(begin + union_piece, stop);
            const unsigned word = begin + 32 * threadIdx.x < end ? words[begin / 32 + threadIdx.x] : 0;
            const int until = running_sum(__popc(word));
            if (lane == warp_size - 1) of_warp[warp] = until;
            __syncthreads();
            int own = until - __popc(word), all = 0;
            for (int w = 0; w < threads / warp_size; ++w) {
                if (w < warp) own += of_warp[w];
                all += of_warp[w];
            }
            bits[threadIdx.x] = word, earlier[threadIdx.x] = own;
            long long place = start + own;
            for (unsigned left = word; left; left &= left - 1, ++place) {
                indices[place] = (I)(begin + 32 * threadIdx.x + __ffs(left) - 1);
                if (sums) sums[place] = 0;
            }
            for (long long some = 0; sums && all && some < count; some += union_lists) {
                const long long l = some + threadIdx.x / 2;
                if (l < count)
                    cuts[threadIdx.x] = count_below((const I*)addresses[l], table[l + 1] - table[l],
                                                    threadIdx.x % 2 ? end : begin);
                __syncthreads();
                for (long long k = some; k < min(some + union_lists, count); ++k) {
                    const I* list = (const I*)addresses[k];
                    const T* values = (const T*)addresses[count + k];
                    for (long long j = cuts[2 * (k - some)] + threadIdx.x; j < cuts[2 * (k - some) + 1]; j += threads) {
                        const int bit = (int)(list[j] - begin), w = bit / 32;
                        sums[start + earlier[w] + __popc(bits[w] & ((1u << bit % 32) - 1))] += values[j];
                    }
                    __syncthreads();  // the next list adds to the same sums
                }
            }
            start += all;
            __syncthreads();  // shared memory has been read
        }
    }
}

// ---- what each of several lists has in common with `whole`, m ascending indices. Behind the lists' addresses stand, of each:
// whether its entries of value zero are left out, and the number of its first tile of `tile` entries (`count` + 1 of these).

constexpr int warps = threads / warp_size;

__device__ inline const long long* tiles_in(const long long* table, long long count) { return table + 4 * count + 1; }

// Of each tile: bits of the entries that remain, a word a warp and round; and how many these are.
template <typename T, typename I>
__global__ void find_common(const long long* table, long long count, long long tile, const I* whole, long long m,
                            unsigned* words, long long* counts) {
    const long long* tiles = tiles_in(table, count);
    const unsigned long long* addresses = addresses_in(table, count);
    for (long long t = blockIdx.x; t < tiles[count]; t += gridDim.x) {
        const long long l = group_of(tiles, count, t), k = table[l + 1] - table[l], begin = (t - tiles[l]) * tile;
        const I* list = (const I*)addresses[l];
        const T* values = (const T*)addresses[count + l];
        const bool all = !table[3 * count + 1 + l];
        long long found = 0;
        for (long long round = 0; round < tile / threads; ++round) {
            const long long j = begin + round * threads + threadIdx.x;
            bool remains = false;
            if (j < k && (all || values[j] != 0)) {
                const long long place = count_below(whole, m, list[j]);
                remains = place < m && whole[place] == list[j];
            }
            const unsigned word = __ballot_sync(all_lanes, remains);
            if (threadIdx.x % warp_size == 0) {
                words[(t * (tile / threads) + round) * warps + threadIdx.x / warp_size] = word;
                found += __popc(word);
            }
        }
        found = block_sum(found);
        if (threadIdx.x == 0) counts[t] = found;
    }
}

// Write these to the front of where each list would begin if lists stood one behind another.
template <typename T, typename I>
__global__ void write_common(const long long* table, long long count, long long tile, const unsigned* words,
                             const long long* counts, I* indices, T* kept) {
    __shared__ long long first;
    const long long* tiles = tiles_in(table, count);
    const unsigned long long* addresses = addresses_in(table, count);
    for (long long t = blockIdx.x; t < tiles[count]; t += gridDim.x) {
        const long long l = group_of(tiles, count, t), begin = (t - tiles[l]) * tile;
        const I* list = (const I*)addresses[l];
        const T* values = (const T*)addresses[count + l];
        long long before = 0;
        for (long long other = tiles[l] + threadIdx.x; other < t; other += threads) before += counts[other];
        before = block_sum(before);
        if (threadIdx.x == 0) first = table[l] + before;
        __syncthreads();
        long long start = first;
        for (long long round = 0; round < tile / threads; ++round) {
            const unsigned* of_warp = words + (t * (tile / threads) + round) * warps;
            const int warp = threadIdx.x / warp_size;
            long long place = start;
            for (int w = 0; w < warps; ++w) {
                if (w < warp) place += __popc(of_warp[w]);
                start += __popc(of_warp[w]);
            }
            const unsigned own = 1u << threadIdx.x % warp_size;
            if (of_warp[warp] & own) {
                const long long j = begin + round * threads + threadIdx.x;
                place += __popc(of_warp[warp] & (own - 1));
                indices[place] = list[j];
                kept[place] = values[j];
            }
        }
        __syncthreads();  // `first` has been read
    }
}
