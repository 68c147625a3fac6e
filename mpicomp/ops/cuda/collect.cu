// Stream compaction: ascending indices of the elements a cut admits, which are those whose magnitude is above `key`
// and the first `ties` whose magnitude equals it. Two passes: count by tile, then (after a running sum of the
// counts) write each tile's indices to their place. No order depends on which block runs first.
#include "common.cuh"

constexpr int tile = 1024;  // elements one block looks at

// above, equal: one count a tile.
template <typename T>
__global__ void count_selected(const T* memory, const T* grad, long long n, Bits<T> key, long long* above,
                               long long* equal) {
    const long long begin = (long long)blockIdx.x * tile, end = min(begin + tile, n);
    int my_above = 0, my_equal = 0;
    for (long long i = begin + threadIdx.x; i < end; i += threads) {
        const Bits<T> mine = magnitude(compensated(memory, grad, i));
        my_above += mine > key;
        my_equal += mine == key;
    }
    my_above = block_sum(my_above);
    my_equal = block_sum(my_equal);
    if (threadIdx.x == 0) above[blockIdx.x] = my_above, equal[blockIdx.x] = my_equal;
}

// How many threads of the block before this one raise `flag`, and how many in all. All threads must call it.
__device__ inline int block_rank(bool flag, int* total) {
    __shared__ int of_warp[threads / warp_size];
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const unsigned raised = __ballot_sync(all_lanes, flag);
    __syncthreads();  // an earlier call's counts have been read
    if (lane == 0) of_warp[warp] = __popc(raised);
    __syncthreads();
    int before = __popc(raised & ((1u << lane) - 1)), sum = 0;
    for (int other = 0; other < threads / warp_size; ++other) {
        if (other < warp) before += of_warp[other];
        sum += of_warp[other];
    }
    *total = sum;
    return before;
}

// above_until, equal_until: running sums of the counts, each tile's own included.
template <typename T, typename I>
__global__ void write_selected(const T* memory, const T* grad, long long n, Bits<T> key, long long ties,
                               const long long* above_until, const long long* equal_until, I* indices) {
    const int b = blockIdx.x;
    const long long above_before = b ? above_until[b - 1] : 0, equal_before = b ? equal_until[b - 1] : 0;
    const bool nothing = above_until[b] == above_before && equal_until[b] == equal_before;
    if (nothing) return;  // the whole block: most tiles at a low density are not read again
    long long place = above_before + min(equal_before, ties), ties_left = ties - min(equal_before, ties);
    for (int round = 0; round < tile / threads; ++round) {
        const long long i = (long long)b * tile + round * threads + threadIdx.x;
        const Bits<T> mine = i < n ? magnitude(compensated(memory, grad, i)) : -1;
        int equals, selections;
        const int equal_rank = block_rank(mine == key, &equals);
        const bool selected = mine > key || (mine == key && equal_rank < ties_left);
        const int rank = block_rank(selected, &selections);
        if (selected) indices[place + rank] = (I)i;
        place += selections;
        ties_left -= min((long long)equals, ties_left);
    }
}
