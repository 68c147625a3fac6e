// Many arrays and one vector that holds them one behind another: copied in one launch.
// Instances: move_arrays<WORD, true|false>
// Instances: move_sparse<unsigned int|unsigned long long, INDEX>
#include "common.cuh"
#include "groups.cuh"
#include "indices.cuh"

constexpr int list_piece = PIECE;  // elements of the vector that a block moves at a time

// Array g, at address addresses[g], is elements [bounds[g], bounds[g + 1]) of `flat`, which has n; some may be empty.
// Into the vector, or out of it. Only the width of T matters.
template <typename T, bool into_vector>
__global__ void move_arrays(const unsigned long long* addresses, const long long* bounds, long long count, long long n,
                            T* flat) {
    constexpr int size = Pack<T>::size;
    __shared__ long long first;
    for (long long begin = (long long)blockIdx.x * list_piece; begin < n; begin += (long long)gridDim.x * list_piece) {
        const long long end = min(begin + list_piece, n);
        if (threadIdx.x < warp_size) {
            const long long group = group_of_warp(bounds, count, begin);
            if (threadIdx.x == 0) first = group;
        }
        __syncthreads();
        long long g = first;
        for (long long i = begin + size * threadIdx.x; i < end; i += size * threads) {
            const long long stop = min(i + size, end);
            g = next_group_of(bounds, g, i);
            T* own = (T*)addresses[g] + (i - bounds[g]);
            if (i + size == stop && stop <= bounds[g + 1] && aligned(own, flat)) {  // 16 bytes of one array
                if (into_vector) store(flat, i / size, load(own, 0));
                else store(own, 0, load(flat, i / size));
                continue;
            }
            for (long long j = i; j < stop; ++j) {
                g = next_group_of(bounds, g, j);
                own = (T*)addresses[g] + (j - bounds[g]);
                if (into_vector) flat[j] = *own;
                else *own = flat[j];
            }
        }
        __syncthreads();  // `first` has been read
    }
}

// Out of a vector that has values[j] at indices[j], k of them, ascending, and is zero elsewhere.
template <typename T, typename I>
__global__ void move_sparse(const unsigned long long* addresses, const long long* bounds, long long count, long long n,
                            const I* indices, const T* values, long long k) {
    constexpr int size = Pack<T>::size;
    __shared__ long long first, cuts[2];
    for (long long begin = (long long)blockIdx.x * list_piece; begin < n; begin += (long long)gridDim.x * list_piece) {
        const long long end = min(begin + list_piece, n);
        const int warp = threadIdx.x / warp_size;  // one asks for the group, and two for the piece's indices
        if (warp < 3) {
            const long long bound = warp == 2 ? end : begin;
            const long long found = warp == 0 ? group_of_warp(bounds, count, begin)
                                              : count_passing(k, [=](long long j) { return indices[j] < bound; });
            if (threadIdx.x % warp_size == 0) (warp == 0 ? first : cuts[warp - 1]) = found;
        }
        __syncthreads();
        long long g = first;
        const auto place = [&](long long i) {
            g = next_group_of(bounds, g, i);
            return (T*)addresses[g] + (i - bounds[g]);
        };
        for (long long i = begin + size * threadIdx.x; i < end; i += size * threads) {
            T* own = place(i);
            if (i + size <= bounds[g + 1] && i + size <= end && aligned(own)) store(own, 0, Pack<T>{});
            else
                for (long long j = i; j < min(i + size, end); ++j) *place(j) = 0;
        }
        __syncthreads();
        g = first;
        for (long long j = cuts[0] + threadIdx.x; j < cuts[1]; j += threads) *place(indices[j]) = values[j];
        __syncthreads();  // `first` and `cuts` have been read
    }
}
