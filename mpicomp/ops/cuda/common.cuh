// Shared by all kernels; the loader puts this text in the place of the #include. No host headers: NVRTC compiles
// it. A launch has `threads` threads a block, and a thread takes every grid_size()-th element from grid_index() on,
// so that any grid covers any n.
constexpr int threads = 256;
constexpr int warp_size = 32;
constexpr unsigned all_lanes = 0xffffffff;

__device__ inline long long grid_index() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline long long grid_size() { return (long long)gridDim.x * blockDim.x; }

template <typename T> struct Real;
template <> struct Real<float> {
    using Bits = int;
    static constexpr Bits magnitude = 0x7fffffff, infinity = 0x7f800000;
    static __device__ Bits bits(float value) { return __float_as_int(value); }
};
template <> struct Real<double> {
    using Bits = long long;
    static constexpr Bits magnitude = 0x7fffffffffffffff, infinity = 0x7ff0000000000000;
    static __device__ Bits bits(double value) { return __double_as_longlong(value); }
};
template <typename T> using Bits = typename Real<T>::Bits;

// |value| as an integer: never negative, ordered as |value|, all NaN alike just above infinity (which NaN a sum
// gives depends on the processor and on the order of its operands).
template <typename T> __device__ inline Bits<T> magnitude(T value) {
    return min(Real<T>::bits(value) & Real<T>::magnitude, Real<T>::infinity + 1);
}

template <typename T> __device__ inline bool is_nonfinite(T value) {
    return (Real<T>::bits(value) & Real<T>::infinity) == Real<T>::infinity;
}

// u[i] = memory[i] + grad[i], never stored; memory may be null, which means zero.
template <typename T> __device__ inline T compensated(const T* memory, const T* grad, long long i) {
    return memory ? memory[i] + grad[i] : grad[i];
}

// Sum over the block, the same order every time; the result is right in thread 0. All threads must call it.
template <typename T> __device__ inline T block_sum(T value) {
    __shared__ T of_warp[threads / warp_size];
    for (int offset = warp_size / 2; offset; offset /= 2) value += __shfl_down_sync(all_lanes, value, offset);
    __syncthreads();  // an earlier call's sums have been read
    if (threadIdx.x % warp_size == 0) of_warp[threadIdx.x / warp_size] = value;
    __syncthreads();
    T sum = 0;
    if (threadIdx.x == 0)
        for (int warp = 0; warp < threads / warp_size; ++warp) sum += of_warp[warp];
    return sum;
}
