// Chunk-wise selection: the position of the largest |memory + grad| in every chunk.
#include "common.cuh"

// Calls visit(i) for every element i of every chunk, and done(j, position) once a chunk with the position of its
// largest |u|, the lowest among equals. `lanes` neighbouring threads (a power of two, at most a warp) share a chunk
// and read it side by side; each keeps the best it saw, and the group then halves itself until its first lane holds
// the best of all.
template <typename T, typename Visit, typename Done>
__device__ void for_chunks(const T* memory, const T* grad, long long n, int chunk, int lanes, Visit visit, Done done) {
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
            visit(begin + i);
        }
        for (int offset = lanes / 2; offset; offset /= 2) {
            const Bits<T> other = __shfl_down_sync(all_lanes, best, offset, lanes);
            const int other_position = __shfl_down_sync(all_lanes, position, offset, lanes);
            if (other > best || (other == best && other_position < position))
                best = other, position = other_position;
        }
        if (lane == 0 && j < chunks) done(j, position);
    }
}

// memory (may be null), grad: n elements; positions: one a chunk.
template <typename T, typename P>
__global__ void chunk_max(const T* memory, const T* grad, long long n, int chunk, int lanes, P* positions) {
    for_chunks(
        memory, grad, n, chunk, lanes, [](long long) {}, [=](long long j, int position) { positions[j] = (P)position; });
}

// The same, and next = memory + beta * grad in the same pass; *nonfinite += how many of grad are NaN or infinite.
template <typename T, typename P>
__global__ void update_chunk_max(T* next, const T* memory, const T* grad, long long n, T beta, int chunk, int lanes,
                                 P* positions, unsigned long long* nonfinite) {
    int mine = 0;
    const auto update = [&](long long i) {
        next[i] = memory[i] + beta * grad[i];
        mine += is_nonfinite(grad[i]);
    };
    for_chunks(memory, grad, n, chunk, lanes, update,
               [=](long long j, int position) { positions[j] = (P)position; });
    mine = block_sum(mine);
    if (threadIdx.x == 0 && mine) atomicAdd(nonfinite, (unsigned long long)mine);
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
