// Stream compaction: ascending indices of the elements a cut admits, which are those whose magnitude is above `key`
// and the first `ties` whose magnitude equals it. One pass: a block counts its tile, learns by looking back how many the
// tiles before it hold, and writes its indices to their place (Merrill and Garland, Single-pass parallel prefix scan with
// decoupled look-back, NVIDIA 2016). What is written does not depend on the order in which blocks run.
#include "common.cuh"
#include "groups.cuh"

constexpr int rounds = 4;  // packs of 16 bytes that a thread looks at
template <typename T> constexpr int tile = threads * rounds * Pack<T>::size;

struct Count {
    long long above, equal;
};

// What the tiles tell each other. A tile publishes its own count, then the sum of all counts up to its own; `told` says
// which, and is written after what it tells of. Zero at first.
enum { nothing, own_count, running_count };
struct Board {
    volatile int* ticket;  // tiles are taken in order: those before a block's are being worked on or done
    volatile int* told;
    volatile Count *own, *running;
};

__device__ inline Board board_at(char* memory, long long tiles) {
    const long long words = (tiles + 1 + 3) / 4 * 4;  // counts begin at a multiple of 16 bytes
    int* head = (int*)memory;
    Count* counts = (Count*)(head + words);
    return {head, head + 1, counts, counts + tiles};
}

__device__ inline void tell(volatile Count* counts, volatile int* told, long long t, Count count, int what) {
    counts[t].above = count.above;
    counts[t].equal = count.equal;
    __threadfence();
    told[t] = what;
}

// The sum over the lanes, in all of them.
__device__ inline long long warp_total(long long value) {
    for (int offset = warp_size / 2; offset; offset /= 2) value += __shfl_down_sync(all_lanes, value, offset);
    return __shfl_sync(all_lanes, value, 0);
}

// The counts of all tiles from `first` to before tile t, which one warp adds up, 32 at a time, back to one that knows its sum.
__device__ inline Count count_before(const Board& board, long long first, long long t) {
    const int lane = threadIdx.x % warp_size;
    Count before = {0, 0};
    for (long long last = t - 1; last >= first; last -= warp_size) {
        const long long other = last - lane;
        int told = running_count;  // in front of the first tile
        Count count = {0, 0};
        if (other >= first) {
            do told = board.told[other];
            while (told == nothing);
            __threadfence();
            volatile Count* counts = told == own_count ? board.own : board.running;
            count.above = counts[other].above;
            count.equal = counts[other].equal;
        }
        const unsigned sums = __ballot_sync(all_lanes, told == running_count);
        if (sums && lane > __ffs(sums) - 1) count = {0, 0};  // the nearest sum holds those further back
        before.above += warp_total(count.above);
        before.equal += warp_total(count.equal);
        if (sums) break;
    }
    return before;
}

// indices: at least as many as `capacity`; further ones are only counted. totals = how many are above the key, and how many
// equal it, in all of n elements. cut (may be null): key and ties as top_k.cu leaves them, in the place of these.
// Where `many` is set, of `count` spans of the vector, with a cut each: spans has of each the number of its first tile
// (`count` + 1 of them), then where each begins, where each ends, and where its indices begin in the list. Or, where totals is
// given, one list goes on through all spans, whose cuts admit all that equal them: totals[s] = where that of span s ends.
template <typename T, typename I, bool many>
__global__ void select(const T* memory, const T* grad, long long n, Bits<T> key, long long ties, const long long* cut,
                       const long long* spans, long long count, char* board_memory, long long tiles, long long capacity,
                       I* indices, long long* totals) {
    constexpr int size = Pack<T>::size, warps = threads / warp_size;
    __shared__ long long taken;
    __shared__ int of_warp[rounds * warps];  // above and equal, 16 bits each, as `mine` below
    __shared__ Count before;
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const Board board = board_at(board_memory, tiles);
    if (threadIdx.x == 0) taken = atomicAdd((int*)board.ticket, 1);
    __syncthreads();
    const long long t = taken;
    long long first = 0, start = 0, begin = t * tile<T>;  // the list's first tile; where the span begins, and in it the tile
    if constexpr (many) {
        const long long s = group_of(spans, count, t), *of = spans + count + 1 + s;
        start = of[0], n = of[count] - start, begin = (t - spans[s]) * tile<T>;
        grad += start, memory = memory ? memory + start : memory, cut += 2 * s;
        if (!totals) first = spans[s], indices += of[2 * count];
        else totals = t + 1 == spans[s + 1] ? totals + s : nullptr;
    } else if (t + 1 < tiles) {
        totals = nullptr;
    }
    if (cut) key = (Bits<T>)cut[0], ties = cut[1];

    // Pack `round * threads + thread` of the tile is this thread's: which of its elements are above and equal.
    unsigned above = 0, equal = 0;
    int until[rounds];  // counts of this warp's lanes up to this one's, in each round
    const bool whole = begin + tile<T> <= n && aligned(memory, grad);
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
        const long long v = begin / size + round * threads + threadIdx.x;
        Pack<T> u;
        if (whole) u = compensated_pack(memory, grad, v);
        int mine = 0;
#pragma unroll
        for (int j = 0; j < size; ++j) {
            const long long i = v * size + j;
            if (!whole && i < n) u.at[j] = compensated(memory, grad, i);
            const Bits<T> bits = i < n ? magnitude(u.at[j]) : -1;
            above |= (unsigned)(bits > key) << (round * size + j);
            equal |= (unsigned)(bits == key) << (round * size + j);
            mine += (bits > key) + ((bits == key) << 16);
        }
        until[round] = mine;
        for (int offset = 1; offset < warp_size; offset *= 2) {
            const int below = __shfl_up_sync(all_lanes, until[round], offset);
            if (lane >= offset) until[round] += below;
        }
        if (lane == warp_size - 1) of_warp[round * warps + warp] = until[round];
        until[round] -= mine;
    }
    __syncthreads();

    if (warp == 0) {  // rounds * warps counts are a warp's: their running sums, this tile's count, those before it
        const int own = of_warp[lane];
        int sum = own;
        for (int offset = 1; offset < warp_size; offset *= 2) {
            const int below = __shfl_up_sync(all_lanes, sum, offset);
            if (lane >= offset) sum += below;
        }
        of_warp[lane] = sum - own;
        const int all = __shfl_sync(all_lanes, sum, warp_size - 1);
        const Count count = {all & 0xffff, all >> 16};
        if (lane == 0) tell(board.own, board.told, t, count, own_count);
        const Count earlier = count_before(board, first, t);
        if (lane == 0) {
            const Count sums = {earlier.above + count.above, earlier.equal + count.equal};
            tell(board.running, board.told, t, sums, running_count);
            before = earlier;
            if (totals) totals[0] = many ? sums.above + sums.equal : sums.above;
            if (totals && !many) totals[1] = sums.equal;
        }
    }
    __syncthreads();

    if (!(above | equal)) return;
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
        const int inside = of_warp[round * warps + warp] + until[round];
        long long larger = before.above + (inside & 0xffff), same = before.equal + (inside >> 16);
#pragma unroll
        for (int j = 0; j < size; ++j) {
            const bool is_above = above >> (round * size + j) & 1, is_equal = equal >> (round * size + j) & 1;
            const long long place = larger + min(same, ties);
            if ((is_above || (is_equal && same < ties)) && place < capacity)
                indices[place] = (I)(start + begin + (round * threads + threadIdx.x) * size + j);
            larger += is_above;
            same += is_equal;
        }
    }
}
