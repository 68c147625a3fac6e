// The memory's update after an exchange. Contraction to fused multiply-add is off (gpu.py), as on the CPU.
#include "common.cuh"

// kept[j] = (1 - beta) * memory + beta * ((memory + grad) - sent[j]) at indices[j], for k indices. Computed before
// filter() runs, which may overwrite memory; scattered after.
template <typename T, typename I>
__global__ void keep_unsent(const T* memory, const T* grad, const I* indices, const T* sent, long long k, T beta,
                            T* kept) {
    for (long long j = grid_index(); j < k; j += grid_size()) {
        const T m = memory[indices[j]], unsent = (m + grad[indices[j]]) - sent[j];
        kept[j] = (T(1) - beta) * m + beta * unsent;
    }
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
