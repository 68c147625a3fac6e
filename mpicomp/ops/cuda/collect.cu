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
    __shared__ int of_warp[rounds * warps];  // how many are above and equal, 16 bits each, in each round of each warp
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

    // Pack `round * threads + thread` of the tile is this thread's.
    Bits<T> keys[rounds][size];
    const long long v = begin / size + threadIdx.x;
    if (begin + tile<T> <= n && aligned(memory, grad)) {
#pragma unroll
        for (int round = 0; round < rounds; ++round) {
            const Pack<T> u = compensated_pack(memory, grad, v + round * threads);
#pragma unroll
            for (int j = 0; j < size; ++j) keys[round][j] = magnitude(u.at[j]);
        }
    } else {
#pragma unroll
        for (int round = 0; round < rounds; ++round)
#pragma unroll
            for (int j = 0; j < size; ++j) {
                const long long i = (v + round * threads) * size + j;
                keys[round][j] = i < n ? magnitude(compensated(memory, grad, i)) : -1;
            }
    }

    // Which of its elements are above and equal, and how many in each round: 8 bits each, for a warp has at most 128.
    unsigned above = 0, equal = 0, aboves = 0, equals = 0;
#pragma unroll
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int j = 0; j < size; ++j) {
            const unsigned bit = 1u << (round * size + j), one = 1u << (8 * round);
            if (keys[round][j] > key) above |= bit, aboves += one;
            if (keys[round][j] == key) equal |= bit, equals += one;
        }
    const unsigned own_aboves = aboves, own_equals = equals;
#pragma unroll
    for (int offset = 1; offset < warp_size; offset *= 2) {  // running sums over the lanes
        const unsigned more_aboves = __shfl_up_sync(all_lanes, aboves, offset);
        const unsigned more_equals = __shfl_up_sync(all_lanes, equals, offset);
        if (lane >= offset) aboves += more_aboves, equals += more_equals;
    }
    if (lane == warp_size - 1)
#pragma unroll
        for (int round = 0; round < rounds; ++round)
            of_warp[round * warps + warp] = (aboves >> (8 * round) & 255) | (equals >> (8 * round) & 255) << 16;
    aboves -= own_aboves, equals -= own_equals;
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

    for (unsigned left = above | equal; left; left &= left - 1) {
        const int bit = __ffs(left) - 1, round = bit / size, shift = 8 * round, inside = of_warp[round * warps + warp];
        const unsigned earlier = (1u << bit) - (1u << (round * size));  // of this round
        const long long larger = before.above + (inside & 0xffff) + (aboves >> shift & 255) + __popc(above & earlier);
        const long long same = before.equal + (inside >> 16) + (equals >> shift & 255) + __popc(equal & earlier);
        const long long place = larger + min(same, ties);
        if (place < capacity && (above >> bit & 1 || same < ties))
            indices[place] = (I)(start + begin + (round * threads + threadIdx.x) * size + bit % size);
    }
}
