// The memory's update. Contraction to fused multiply-add is off (cuda_runtime.py), as on the CPU.
#include "common.cuh"

// kept[j] = (1 - beta) * memory + beta * ((memory + grad) - sent[j]) at indices[j], k of them, distinct.
// Computed before filter() overwrites the memory.
template <typename T, typename I>
__global__ void keep_unsent(const T* memory, const T* grad, const I* indices, const T* sent, long long k, T beta,
                            T* kept) {
    for (long long j = grid_index(); j < k; j += grid_size()) {
        const long long i = indices[j];
        const T m = memory[i], unsent = (m + grad[i]) - sent[j];
        kept[j] = (T(1) - beta) * m + beta * unsent;
    }
}

// memory += beta * grad over n elements.
template <typename T>
__global__ void filter(T* memory, const T* grad, long long n, T beta) {
    for (long long i = grid_index(); i < n; i += grid_size()) memory[i] = memory[i] + beta * grad[i];
}

// memory = (1 - beta) * memory + beta * ((memory + grad) - sent) over n elements.
template <typename T>
__global__ void dense_update(T* memory, const T* grad, const T* sent, long long n, T beta) {
    for (long long i = grid_index(); i < n; i += grid_size()) {
        const T m = memory[i], unsent = (m + grad[i]) - sent[i];
        memory[i] = (T(1) - beta) * m + beta * unsent;
    }
}

// out = a * x + b * y over n elements; out may be x or y.
template <typename T> __global__ void axpby(T* out, T a, const T* x, T b, const T* y, long long n) {
    for (long long i = grid_index(); i < n; i += grid_size()) out[i] = a * x[i] + b * y[i];
}
