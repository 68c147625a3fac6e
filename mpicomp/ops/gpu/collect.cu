// Stream compaction: ascending indices of the elements a cut admits, which are those whose magnitude is above `key`
// and the first `ties` whose magnitude equals it. One pass: a block counts a tile, learns by looking back how many the
// tiles before it hold, writes its indices to their place (Merrill and Garland, Single-pass parallel prefix scan with
// decoupled look-back, NVIDIA 2016), and takes the next tile. The output does not depend on the order in which
// blocks run, nor on their number.
// Instances: select keep select_largest<REAL, INDEX, false|true>
#include "common.cuh"
#include "groups.cuh"
#include "kept.cuh"

constexpr int rounds = ROUNDS, turns = TURNS;  // a thread looks at so many packs of 16 bytes at a time, and so often
template <typename T> constexpr int stretch = threads * rounds * Pack<T>::size;
template <typename T> constexpr int tile = turns * stretch<T>;

struct Count {
    long long above, equal;
};

// Counts that tiles publish: per tile a word for the elements above and a word for those equal, zero at first. A word holds
// the tile's own count, later the sum of all counts up to it; its two highest bits say which. A reader needs nothing but
// the word, which is written and read whole, so there is no fence.
using Word = unsigned long long;
constexpr Word own_count = 1ull << 62, running_count = 2ull << 62, kind_bits = 3ull << 62;
struct Board {
    int* ticket;  // tiles are taken in order: those before a block's are being worked on or done
    volatile Word *above, *equal;
};

__device__ inline Board board_at(char* memory, long long tiles) {
    Word* words = (Word*)(memory + 16);
    return {(int*)memory, words, words + tiles};
}

template <bool tied> __device__ inline void publish(const Board& board, long long t, Count count, Word kind) {
    board.above[t] = kind | (Word)count.above;
    if (tied) board.equal[t] = kind | (Word)count.equal;
}

// The sum over the lanes, in all of them.
__device__ inline long long warp_total(long long value) {
    for (int offset = warp_size / 2; offset; offset /= 2) value += __shfl_down_sync(all_lanes, value, offset);
    return __shfl_sync(all_lanes, value, 0);
}

// The counts of all tiles from `first` to before tile t, which one warp adds up, 32 at a time, back to one that knows its sum.
template <bool tied> __device__ inline Count count_before(const Board& board, long long first, long long t) {
    const int lane = threadIdx.x % warp_size;
    Count before = {0, 0};
    for (long long last = t - 1; last >= first; last -= warp_size) {
        const long long other = last - lane;
        Word above = running_count, equal = running_count;  // in front of the first tile
        if (other >= first) do {
            above = board.above[other];
            if (tied) equal = board.equal[other];
        } while (!(above & kind_bits) || (tied && (above ^ equal) & kind_bits));
        const unsigned sums = __ballot_sync(all_lanes, (above & kind_bits) == running_count);
        if (sums && lane > __ffs(sums) - 1) above = equal = 0;  // the nearest sum holds those further back
        before.above += warp_total((long long)(above & ~kind_bits));
        if (tied) before.equal += warp_total((long long)(equal & ~kind_bits));
        if (sums) break;
    }
    return before;
}

// The next tile, for the whole block.
__device__ inline long long take(const Board& board) {
    __shared__ long long taken;
    __syncthreads();  // the number of the one before has been read
    if (threadIdx.x == 0) taken = atomicAdd(board.ticket, 1);
    __syncthreads();
    return taken;
}

// Tile t, which begins at element `begin` of n, of a list whose first tile is `first`. Thread 0 hands how many are above and
// equal in all tiles so far to `counted`; for each admitted element i, `write` gets its place in the list. Without `tied` all
// that equal the key are above it.
template <bool tied, typename T, typename F, typename G>
__device__ inline void compact(const Board& board, long long first, long long t, const T* memory, const T* grad,
                               long long n, long long begin, Bits<T> key, long long ties, F counted, G write) {
    constexpr int size = Pack<T>::size, warps = threads / warp_size;
    __shared__ int of_warp[turns][rounds * warps];  // how many are above and equal, 16 bits each, in each round of each warp
    __shared__ Count before;
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const bool whole = begin + tile<T> <= n && aligned(memory, grad);

    // Which of a thread's elements are above and equal, and how many of the lanes' before it in each round: 8 bits each, for a
    // warp has at most 128. Pack `round * threads + thread` of a stretch is this thread's.
    unsigned above[turns] = {}, equal[turns] = {}, aboves[turns] = {}, equals[turns] = {};
#pragma unroll
    for (int turn = 0; turn < turns; ++turn) {
        Bits<T> keys[rounds][size];
        const long long v = (begin + turn * stretch<T>) / size + threadIdx.x;
        if (whole) {
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
#pragma unroll
        for (int round = 0; round < rounds; ++round)
#pragma unroll
            for (int j = 0; j < size; ++j) {
                const unsigned bit = 1u << (round * size + j), one = 1u << (8 * round);
                if (keys[round][j] > key || (!tied && keys[round][j] == key)) above[turn] |= bit, aboves[turn] += one;
                if (tied && keys[round][j] == key) equal[turn] |= bit, equals[turn] += one;
            }
        const unsigned own_aboves = aboves[turn], own_equals = equals[turn];
        aboves[turn] = running_sum(aboves[turn]);
        if constexpr (tied) equals[turn] = running_sum(equals[turn]);
        if (lane == warp_size - 1)
#pragma unroll
            for (int round = 0; round < rounds; ++round)
                of_warp[turn][round * warps + warp]
                    = (aboves[turn] >> (8 * round) & 255) | (equals[turn] >> (8 * round) & 255) << 16;
        aboves[turn] -= own_aboves, equals[turn] -= own_equals;
    }
    __syncthreads();

    if (warp == 0) {  // a turn's rounds * warps counts are a warp's: running sums, this tile's count, those before it
        int all = 0;
#pragma unroll
        for (int turn = 0; turn < turns; ++turn) {
            const int own = of_warp[turn][lane];
            const int sum = running_sum(own);
            of_warp[turn][lane] = all + sum - own;
            all += __shfl_sync(all_lanes, sum, warp_size - 1);
        }
        const Count count = {all & 0xffff, all >> 16};
        if (lane == 0) publish<tied>(board, t, count, own_count);
        const Count earlier = count_before<tied>(board, first, t);
        if (lane == 0) {
            const Count sums = {earlier.above + count.above, earlier.equal + count.equal};
            publish<tied>(board, t, sums, running_count);
            before = earlier;
            counted(sums);
        }
    }
    __syncthreads();

#pragma unroll
    for (int turn = 0; turn < turns; ++turn)
        for (unsigned left = above[turn] | equal[turn]; left; left &= left - 1) {
            const int bit = __ffs(left) - 1, round = bit / size, shift = 8 * round;
            const int inside = of_warp[turn][round * warps + warp];
            const unsigned earlier = (1u << bit) - (1u << (round * size));  // of this round
            const long long larger = before.above + (inside & 0xffff) + (aboves[turn] >> shift & 255)
                                     + __popc(above[turn] & earlier);
            const long long i = begin + turn * stretch<T> + (round * threads + threadIdx.x) * size + bit % size;
            if constexpr (tied) {
                const long long same = before.equal + (inside >> 16) + (equals[turn] >> shift & 255)
                                       + __popc(equal[turn] & earlier);
                if (above[turn] >> bit & 1 || same < ties) write(larger + min(same, ties), i);
            } else {
                write(larger, i);
            }
        }
}

// Where tile t of several spans lies: its span, which begins at element `start`, and where the tile begins in the span.
struct Tile {
    long long span, start, begin;
};

template <typename T> __device__ inline Tile tile_of(const long long* spans, long long count, long long t) {
    const long long s = group_of(spans, count, t);
    return {s, spans[count + 1 + s], (t - spans[s]) * tile<T>};
}

// All magnitudes of at least `key`. indices: room for `capacity`; further ones are only counted. total: how many they are.
// Where `many` is set, in `count` spans of the vector, each with a key of its own in `cuts`: one list through all of them,
// and total[s] is where that of span s ends. spans: of each the number of its first tile (`count` + 1 of them), then where
// each begins, where each ends.
template <typename T, typename I, bool many>
__global__ void select(const T* memory, const T* grad, long long n, Bits<T> key, const long long* cuts,
                       const long long* spans, long long count, char* board_memory, long long tiles, long long capacity,
                       I* indices, long long* total) {
    const Board board = board_at(board_memory, tiles);
    for (long long t = take(board); t < tiles; t = take(board)) {
        Tile own = {0, 0, t * tile<T>};
        long long end = n;
        if constexpr (many) {
            own = tile_of<T>(spans, count, t), end = spans[2 * count + 1 + own.span] - own.start;
            key = (Bits<T>)cuts[own.span];
        }
        const bool last = t + 1 == (many ? spans[own.span + 1] : tiles);
        compact<false>(
            board, 0, t, memory ? memory + own.start : memory, grad + own.start, end, own.begin, key, 0,
            [&](Count sums) { if (last) total[own.span] = sums.above; },
            [&](long long place, long long i) { if (place < capacity) indices[place] = (I)(own.start + i); });
    }
}

// The candidates for the k largest: all magnitudes of at least guesses[0], as far as there is room for them, with their
// indices; found[0] = how many they are. Nothing where the guess is zero. Where `many` is set, the same of each of `count`
// spans (as above), which have an area each.
template <typename T, typename I, bool many>
__global__ void keep(const T* memory, const T* grad, long long n, const long long* guesses, const long long* spans,
                     long long count, char* board_memory, long long tiles, long long room, const long long* areas,
                     T* kept, I* kept_at, long long* found) {
    if (!many && guesses[0] == 0) return;
    const Board board = board_at(board_memory, tiles);
    for (long long t = take(board); t < tiles; t = take(board)) {
        Tile own = {0, 0, t * tile<T>};
        long long end = n, first = 0, last = tiles - 1;
        if constexpr (many) {
            own = tile_of<T>(spans, count, t), end = spans[2 * count + 1 + own.span] - own.start;
            first = spans[own.span], last = spans[own.span + 1] - 1;
        }
        const Bits<T> guess = (Bits<T>)guesses[own.span];
        if (guess == 0) continue;
        const Area area = area_of(areas, own.span, room);
        const T *m = memory ? memory + own.start : memory, *g = grad + own.start;
        compact<false>(
            board, first, t, m, g, end, own.begin, guess, 0,
            [&](Count sums) { if (t == last) found[own.span] = sums.above; },
            [&](long long place, long long i) {
                if (place >= area.room) return;
                kept[area.begin + place] = Real<T>::value(magnitude(compensated(m, g, i)));
                kept_at[area.begin + place] = (I)(own.start + i);
            });
    }
}

// The k largest, the least of which is cuts[0], and cuts[1] equal it. Where `many` is set, of `count` spans one behind
// another: behind the spans stand running sums of how many of each. From the candidates, where they stand in.
template <typename T, typename I, bool many>
__global__ void select_largest(const T* memory, const T* grad, long long n, const long long* cuts, const long long* spans,
                               long long count, char* board_memory, long long tiles, long long k, I* indices,
                               long long room, const long long* areas, const T* kept, const I* kept_at,
                               const long long* found) {
    const Board board = board_at(board_memory, tiles);
    const bool short_cut = !many && stand_in(found, 0, k, room);
    const long long until = short_cut ? (found[0] + tile<T> - 1) / tile<T> : tiles;
    for (long long t = take(board); t < until; t = take(board)) {
        Tile own = {0, 0, t * tile<T>};
        long long end = n, first = 0;
        I* list = indices;
        if constexpr (many) {
            own = tile_of<T>(spans, count, t), end = spans[2 * count + 1 + own.span] - own.start, first = spans[own.span];
            const long long* lists = spans + 3 * count + 1 + own.span;
            k = lists[1] - lists[0], list += lists[0];
        }
        const T *m = memory ? memory + own.start : memory, *g = grad + own.start;
        const I* at = nullptr;
        const Area area = area_of(areas, own.span, room);
        if (stand_in(found, own.span, k, area.room)) {
            m = nullptr, g = kept + area.begin, at = kept_at + area.begin, end = found[own.span];
            if (own.begin >= end) continue;
        }
        compact<true>(
            board, first, t, m, g, end, own.begin, (Bits<T>)cuts[2 * own.span], cuts[2 * own.span + 1], [](Count) {},
            [&](long long place, long long i) { list[place] = at ? at[i] : (I)(own.start + i); });
    }
}
