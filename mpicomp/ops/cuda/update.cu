// The memory's next state. Contraction to fused multiply-add is off (cuda_runtime.py), as on the CPU.
#include "common.cuh"

template <typename T> __device__ T unsent(const T* memory, const T* grad, long long i, T sent, T beta) {
    const T m = memory[i], rest = (m + grad[i]) - sent;
    return (T(1) - beta) * m + beta * rest;
}

// next[i] = (1 - beta) * memory + beta * ((memory + grad) - sent[j]) for i = indices[j], k of them, distinct.
template <typename T, typename I>
__global__ void correct(T* next, const T* memory, const T* grad, const I* indices, const T* sent, long long k, T beta) {
    for (long long j = grid_index(); j < k; j += grid_size()) {
        const long long i = indices[j];
        next[i] = unsent(memory, grad, i, sent[j], beta);
    }
}

// The same values in the order of the indices: kept[j]. Computed before filter() runs, which may overwrite memory.
template <typename T, typename I>
__global__ void keep_unsent(const T* memory, const T* grad, const I* indices, const T* sent, long long k, T beta,
                            T* kept) {
    for (long long j = grid_index(); j < k; j += grid_size())
        kept[j] = unsent(memory, grad, indices[j], sent[j], beta);
}

// next = memory + beta * grad over n elements; *nonfinite += how many of grad are NaN or infinite.
template <typename T>
__global__ void filter(T* next, const T* memory, const T* grad, long long n, T beta, unsigned long long* nonfinite) {
    int mine = 0;
    for (long long i = grid_index(); i < n; i += grid_size()) {
        const T g = grad[i];
        next[i] = memory[i] + beta * g;
        mine += is_nonfinite(g);
    }
    mine = block_sum(mine);
    if (threadIdx.x == 0 && mine) atomicAdd(nonfinite, (unsigned long long)mine);
}
