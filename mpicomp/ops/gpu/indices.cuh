// Lists of ascending indices. The loader puts this text in the place of the #include.

// How many indices are left out before the j-th; read as unsigned, so that a descent is huge. A first one follows -1.
template <typename I> __device__ inline unsigned long long gap(const I* indices, long long j) {
    const unsigned long long next = j ? (unsigned long long)(long long)indices[j - 1] + 1 : 0;
    return (unsigned long long)(long long)indices[j] - next;
}

// How many of k ascending indices are below `bound`.
template <typename I> __device__ inline long long count_below(const I* indices, long long k, long long bound) {
    long long low = 0, high = k;
    while (low < high) {
        const long long middle = low + (high - low) / 2;
        if (indices[middle] < bound) low = middle + 1;
        else high = middle;
    }
    return low;
}

// The largest over the block; the result is right in thread 0. All threads must call it.
__device__ inline unsigned long long block_max(unsigned long long value) {
    __shared__ unsigned long long of_warp[threads / warp_size];
    for (int offset = warp_size / 2; offset; offset /= 2) value = max(value, __shfl_down_sync(all_lanes, value, offset));
    __syncthreads();  // an earlier call's have been read
    if (threadIdx.x % warp_size == 0) of_warp[threadIdx.x / warp_size] = value;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int warp = 1; warp < threads / warp_size; ++warp) value = max(value, of_warp[warp]);
    return value;
}
