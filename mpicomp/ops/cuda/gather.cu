// Reading and writing at k given indices, which have been checked. One index a thread and round.
#include "common.cuh"

template <typename T, typename I>
__global__ void gather(const T* memory, const T* grad, const I* indices, long long k, T* values) {
    for (long long j = grid_index(); j < k; j += grid_size()) values[j] = compensated(memory, grad, indices[j]);
}

template <typename T, typename I> __global__ void scatter(T* dst, const I* indices, long long k, const T* values) {
    for (long long j = grid_index(); j < k; j += grid_size()) dst[indices[j]] = values[j];
}

template <typename T, typename I>
__global__ void scatter_add(T* dst, const I* indices, long long k, const T* values) {
    for (long long j = grid_index(); j < k; j += grid_size()) dst[indices[j]] += values[j];
}

template <typename T, typename I> __global__ void clear(T* dst, const I* indices, long long k) {
    for (long long j = grid_index(); j < k; j += grid_size()) dst[indices[j]] = 0;
}

// Index lists come over the wire. largest[0] = the largest of k indices read as unsigned (a negative one is huge);
// largest[1] > 0 where they do not ascend strictly. Both begin as 0.
template <typename I> __global__ void check_indices(const I* indices, long long k, unsigned long long* largest) {
    unsigned long long mine = 0;
    bool descent = false;
    for (long long j = grid_index(); j < k; j += grid_size()) {
        mine = max(mine, (unsigned long long)(long long)indices[j]);
        descent = descent || (j > 0 && indices[j] <= indices[j - 1]);
    }
    for (int offset = warp_size / 2; offset; offset /= 2) mine = max(mine, __shfl_down_sync(all_lanes, mine, offset));
    if (threadIdx.x % warp_size == 0) atomicMax(&largest[0], mine);
    if (descent) atomicMax(&largest[1], 1ull);
}
