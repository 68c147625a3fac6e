// Chunk-wise selection: the position of the largest |memory + grad| in every chunk.
#include "common.cuh"

// positions[j] = position inside chunk j of its largest |u|, the lowest among equals. `lanes` neighbouring threads (a
// power of two, at most a warp) share a chunk and read it side by side; each keeps the best it saw, and the group then
// halves itself until its first lane holds the best of all. memory (may be null), grad: n elements.
template <typename T, typename P>
__global__ void chunk_max(const T* memory, const T* grad, long long n, int chunk, int lanes, P* positions) {
    const long long chunks = (n + chunk - 1) / chunk, groups = grid_size() / lanes;
    const int lane = threadIdx.x % lanes;
    // All lanes of a warp stay in the loop as long as one has a chunk: they exchange values below.
    for (long long j = grid_index() / lanes; j - j % (warp_size / lanes) < chunks; j += groups) {
        const long long begin = j * chunk, length = j < chunks ? min((long long)chunk, n - begin) : 0;
        Bits<T> best = -1;
        int position = chunk;
        for (int i = lane; i < length; i += lanes) {
            const Bits<T> key = magnitude(compensated(memory, grad, begin + i));
            if (key > best) best = key, position = i;
        }
        for (int offset = lanes / 2; offset; offset /= 2) {
            const Bits<T> other = __shfl_down_sync(all_lanes, best, offset, lanes);
            const int other_position = __shfl_down_sync(all_lanes, position, offset, lanes);
            if (other > best || (other == best && other_position < position))
                best = other, position = other_position;
        }
        if (lane == 0 && j < chunks) positions[j] = (P)position;
    }
}

// indices[j] = j * chunk + positions[j] for m chunks of n elements; *invalid is set where that is outside the chunk
// or the vector (positions come over the wire).
template <typename P, typename I>
__global__ void chunk_indices(const P* positions, long long m, int chunk, long long n, I* indices, int* invalid) {
    for (long long j = grid_index(); j < m; j += grid_size()) {
        const long long index = j * chunk + positions[j];
        if (positions[j] >= chunk || index >= n) *invalid = 1;
        indices[j] = (I)index;
    }
}
