// Reading and writing at k given indices, which have been checked. One index a thread and round.
// Instances: gather gather_counted scatter scatter_add clear<REAL, INDEX>
// Instances: check_indices check_filled<INDEX>
#include "common.cuh"
#include "indices.cuh"

template <typename T, typename I>
__global__ void gather(const T* memory, const T* grad, const I* indices, long long k, T* values) {
    for (long long j = grid_index(); j < k; j += grid_size()) values[j] = compensated(memory, grad, indices[j]);
}

// The same. Of each block, too: how many values are not below the limit in magnitude, and the largest gap between indices, huge where they do not
// ascend (found: 2 a block).
template <typename T, typename I>
__global__ void gather_counted(const T* memory, const T* grad, const I* indices, long long k, T* values, T limit,
                               unsigned long long* found) {
    unsigned long long bad = 0, largest = 0;
    for (long long j = grid_index(); j < k; j += grid_size()) {
        const T u = compensated(memory, grad, indices[j]);
        values[j] = u;
        bad += !(fabs(u) < limit);
        largest = max(largest, gap(indices, j));
    }
    bad = block_sum(bad), largest = block_max(largest);
    if (threadIdx.x == 0) found[2 * blockIdx.x] = bad, found[2 * blockIdx.x + 1] = largest;
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

// Index lists come over the wire. Of each block: the largest of its indices read as unsigned (a negative one is huge), and
// the largest gap, huge where they do not ascend from 0 on (found: 2 a block).
template <typename I> __global__ void check_indices(const I* indices, long long k, unsigned long long* found) {
    unsigned long long last = 0, largest = 0;
    for (long long j = grid_index(); j < k; j += grid_size()) {
        last = max(last, (unsigned long long)(long long)indices[j]);
        largest = max(largest, gap(indices, j));
    }
    last = block_max(last), largest = block_max(largest);
    if (threadIdx.x == 0) found[2 * blockIdx.x] = last, found[2 * blockIdx.x + 1] = largest;
}

// Of each block, about a list that ends with the filling n (found: 3 a block): how many of k indices are not n; the largest
// gap between these, huge where they do not ascend from 0 on; how many follow a filling or are above n.
template <typename I>
__global__ void check_filled(const I* indices, long long k, long long n, unsigned long long* found) {
    unsigned long long own = 0, largest = 0, wrong = 0;
    for (long long j = grid_index(); j < k; j += grid_size()) {
        const long long i = indices[j];
        if (i == n) continue;
        ++own;
        wrong += i > n || (j && indices[j - 1] == n);
        largest = max(largest, gap(indices, j));
    }
    own = block_sum(own), wrong = block_sum(wrong), largest = block_max(largest);
    if (threadIdx.x == 0) {
        unsigned long long* of_block = found + 3 * (long long)blockIdx.x;
        of_block[0] = own, of_block[1] = largest, of_block[2] = wrong;
    }
}
