// The memory's update. Contraction to fused multiply-add is off (cuda_runtime.py), as on the CPU.
// Instances: masked_update<REAL, INDEX>
// Instances: dense_update axpby divide_by_root<REAL>
#include "common.cuh"
#include "indices.cuh"

constexpr int update_piece = PIECE;  // elements of the memory that a block updates at a time

// What stays in the memory of a value that was sent.
template <typename T> __device__ inline T kept_of(T memory, T grad, T sent, T beta) {
    return (T(1) - beta) * memory + beta * ((memory + grad) - sent);
}

// memory += beta * grad over n elements, but kept_of(...) at indices[j], k of them, ascending. One pass: a block takes a
// piece of the memory, works out what is kept there, overwrites the piece, and puts back what was kept.
template <typename T, typename I>
__global__ void masked_update(T* memory, const T* grad, long long n, const I* indices, const T* sent, long long k,
                              T beta) {
    __shared__ T kept[update_piece];
    __shared__ long long cuts[2];
    for (long long begin = (long long)blockIdx.x * update_piece; begin < n;
         begin += (long long)gridDim.x * update_piece) {
        const long long end = min(begin + update_piece, n);
        if (threadIdx.x < 2 * warp_size) {  // how many indices lie before the piece, and before its end: a warp each
            const long long which = threadIdx.x / warp_size, bound = which ? end : begin;
            const long long before = count_passing(k, [=](long long j) { return indices[j] < bound; });
            if (threadIdx.x % warp_size == 0) cuts[which] = before;
        }
        __syncthreads();
        const long long first = cuts[0], last = cuts[1];
        for (long long j = first + threadIdx.x; j < last; j += threads) {
            const long long i = indices[j];
            kept[j - first] = kept_of(memory[i], grad[i], sent[j], beta);
        }
        __syncthreads();  // all that is kept comes from the memory as it was
        const auto filter = [beta](T m, T g) { return m + beta * g; };
        transform<4>(threadIdx.x, threads, end - begin, filter, memory + begin, memory + begin, grad + begin);
        __syncthreads();  // no thread overwrites the values that are put back
        for (long long j = first + threadIdx.x; j < last; j += threads) memory[indices[j]] = kept[j - first];
    }
}

// memory = (1 - beta) * memory + beta * ((memory + grad) - sent) over n elements.
template <typename T>
__global__ void dense_update(T* memory, const T* grad, const T* sent, long long n, T beta) {
    const auto keep = [beta](T m, T g, T s) { return kept_of(m, g, s, beta); };
    transform(grid_index(), grid_size(), n, keep, memory, memory, grad, sent);
}

// out = a * x + b * y over n elements; out may be x or y.
template <typename T> __global__ void axpby(T* out, T a, const T* x, T b, const T* y, long long n) {
    const auto sum = [a, b](T left, T right) { return a * left + b * right; };
    transform(grid_index(), grid_size(), n, sum, out, x, y);
}

// x /= sqrt(y) + eps over n elements.
template <typename T> __global__ void divide_by_root(T* x, const T* y, long long n, T eps) {
    const auto quotient = [eps](T left, T right) { return left / (sqrt(right) + eps); };
    transform(grid_index(), grid_size(), n, quotient, x, x, y);
}
