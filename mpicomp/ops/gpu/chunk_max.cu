// Chunk-wise selection: the position of the largest |memory + grad| in every chunk, of one vector or of many tensors in it.
// Instances: chunk_max chunk_max_spans<REAL, POSITION>
// Instances: chunk_indices chunk_indices_spans<POSITION, INDEX>
#include "common.cuh"
#include "groups.cuh"

// The position of the largest |u| among `length` elements, the lowest among equals, in the first of `lanes` neighbouring
// threads (a power of two, at most a warp), which read side by side. All threads of the warp must call it.
template <typename T> __device__ inline int largest_of(const T* memory, const T* grad, int length, int lanes) {
    const int lane = threadIdx.x % lanes;
    Bits<T> best = -1;
    int position = length, done = 0;
    const auto look = [&](T value, int i) {
        const Bits<T> key = magnitude(value);
        if (key > best) best = key, position = i;
    };
    if (aligned(memory, grad)) {
        constexpr int size = Pack<T>::size;
        for (int v = lane; v < length / size; v += lanes) {
            const Pack<T> u = compensated_pack(memory, grad, v);
#pragma unroll
            for (int j = 0; j < size; ++j) look(u.at[j], v * size + j);
        }
        done = length / size * size;
    }
    for (int i = done + lane; i < length; i += lanes) look(compensated(memory, grad, i), i);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    if constexpr (sizeof(T) == 4) {
        if (lanes == warp_size) {  // two instructions in the place of ten exchanges
            const Bits<T> most = __reduce_max_sync(all_lanes, best);
            return __reduce_min_sync(all_lanes, best == most ? position : 1 << 30);
        }
    }
#endif
    for (int offset = lanes / 2; offset; offset /= 2) {
        const Bits<T> other = __shfl_down_sync(all_lanes, best, offset, lanes);
        const int other_position = __shfl_down_sync(all_lanes, position, offset, lanes);
        if (other > best || (other == best && other_position < position)) best = other, position = other_position;
    }
    return position;
}

// positions[j] = position inside chunk j of its largest |u|. `lanes` threads share a chunk. memory (may be null), grad: n
// elements.
template <typename T, typename P>
__global__ void chunk_max(const T* memory, const T* grad, long long n, int chunk, int lanes, P* positions) {
    const long long chunks = (n + chunk - 1) / chunk, groups = grid_size() / lanes;
    const int place = threadIdx.x % warp_size / lanes;  // of the warp's chunks
    // All lanes of a warp stay in the loop as long as one has a chunk: they exchange values.
    for (long long j = grid_index() / lanes; j - place < chunks; j += groups) {
        const long long begin = j * chunk;
        const int length = j < chunks ? (int)min((long long)chunk, n - begin) : 0;
        const int position = largest_of(memory ? memory + begin : memory, grad + begin, length, lanes);
        if (threadIdx.x % lanes == 0 && j < chunks) positions[j] = (P)position;
    }
}

// Where chunk j lies, one of tensor g of many. spans: of each of `count` tensors the number of its first chunk (`count` + 1 of
// them), then where each begins, where each ends, and the length of its chunks.
struct Chunk {
    long long begin, start;
    int length, chunk;
};

__device__ inline Chunk chunk_of(const long long* spans, long long count, long long g, long long j) {
    const long long *starts = spans + count + 1, *stops = starts + count, *chunks = stops + count;
    const long long begin = starts[g] + (j - spans[g]) * chunks[g];
    return {begin, starts[g], (int)min(chunks[g], stops[g] - begin), (int)chunks[g]};
}

// The same for the `chunks` chunks of many tensors, which begin anew in each.
template <typename T, typename P>
__global__ void chunk_max_spans(const T* memory, const T* grad, const long long* spans, long long count,
                                long long chunks, int lanes, P* positions) {
    const long long groups = grid_size() / lanes;
    const int place = threadIdx.x % warp_size / lanes;
    for (long long j = grid_index() / lanes; j - place < chunks; j += groups) {
        const long long first = group_of_warp(spans, count, j - place);
        const Chunk own = j < chunks ? chunk_of(spans, count, next_group_of(spans, first, j), j) : Chunk{0, 0, 0, 0};
        const int position = largest_of(memory ? memory + own.begin : memory, grad + own.begin, own.length, lanes);
        if (threadIdx.x % lanes == 0 && j < chunks) positions[j] = (P)position;
    }
}

// indices[j] = j * chunk + positions[j] for m chunks of n elements; *invalid is set if one lies outside the chunk
// or the vector (positions come over the wire).
template <typename P, typename I>
__global__ void chunk_indices(const P* positions, long long m, int chunk, long long n, I* indices, int* invalid) {
    for (long long j = grid_index(); j < m; j += grid_size()) {
        const long long index = j * chunk + positions[j];
        if (positions[j] >= chunk || index >= n) atomicOr(invalid, 1);
        indices[j] = (I)index;
    }
}

// The same for the m chunks of many tensors.
template <typename P, typename I>
__global__ void chunk_indices_spans(const P* positions, const long long* spans, long long count, long long m,
                                    I* indices, int* invalid) {
    for (long long j = grid_index(); j < m; j += grid_size()) {
        const Chunk own = chunk_of(spans, count, group_of(spans, count, j), j);
        if (positions[j] >= own.length) atomicOr(invalid, 1);
        indices[j] = (I)(own.begin + positions[j]);
    }
}
