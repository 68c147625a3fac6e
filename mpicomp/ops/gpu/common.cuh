// Shared by all kernels; the loader puts this text in the place of the #include. No host headers: NVRTC compiles
// it. A launch has `threads` threads per block, and a thread takes every grid_size()-th element (or pack of 16 bytes) from
// grid_index() on, so that any grid covers any n; all indices are 64 bits wide.
constexpr int threads = THREADS;
constexpr int warp_size = WARP;
constexpr unsigned all_lanes = 0xffffffff;

__device__ inline long long grid_index() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline long long grid_size() { return (long long)gridDim.x * blockDim.x; }

template <typename T> struct Real;
template <> struct Real<float> {
    using Bits = int;
    static constexpr Bits magnitude = 0x7fffffff, infinity = 0x7f800000;
    static __device__ Bits bits(float value) { return __float_as_int(value); }
    static __device__ float value(Bits bits) { return __int_as_float(bits); }
};
template <> struct Real<double> {
    using Bits = long long;
    static constexpr Bits magnitude = 0x7fffffffffffffff, infinity = 0x7ff0000000000000;
    static __device__ Bits bits(double value) { return __double_as_longlong(value); }
    static __device__ double value(Bits bits) { return __longlong_as_double(bits); }
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

// As many elements as one access of 16 bytes moves.
template <typename T> struct alignas(16) Pack {
    static constexpr int size = 16 / sizeof(T);
    T at[size];
};

// Whether all arrays begin where accesses of 16 bytes may; a null pointer does.
template <typename... A> __device__ inline bool aligned(const A*... arrays) {
    return ((unsigned long long)arrays | ...) % 16 == 0;
}

template <typename T> __device__ inline Pack<T> load(const T* x, long long v) { return ((const Pack<T>*)x)[v]; }
template <typename T> __device__ inline void store(T* x, long long v, Pack<T> pack) { ((Pack<T>*)x)[v] = pack; }

// Pack v of u; both arrays are aligned.
template <typename T> __device__ inline Pack<T> compensated_pack(const T* memory, const T* grad, long long v) {
    Pack<T> u = load(grad, v);
    if (!memory) return u;
    const Pack<T> m = load(memory, v);
#pragma unroll
    for (int j = 0; j < Pack<T>::size; ++j) u.at[j] = m.at[j] + u.at[j];
    return u;
}

template <typename T, typename F, typename... P> __device__ inline Pack<T> apply(F f, P... packs) {
    Pack<T> result;
#pragma unroll
    for (int j = 0; j < Pack<T>::size; ++j) result.at[j] = f(packs.at[j]...);
    return result;
}

// out[i] = f(in[i]...) for n elements, by threads `first`, first + step, ...: 16 bytes at a time where all arrays allow it.
// out may be one of in. `ahead` packs are read before the first is written: for blocks that are few or wait for each other.
template <int ahead = 1, typename T, typename F, typename... In>
__device__ inline void transform(long long first, long long step, long long n, F f, T* out, const In*... in) {
    long long done = 0;
    if (aligned(out, in...)) {
        const long long packs = n / Pack<T>::size;
        long long v = first;
        if constexpr (ahead > 1) {
#pragma unroll 1
            for (; v + (ahead - 1) * step < packs; v += ahead * step) {
                Pack<T> made[ahead];
#pragma unroll
                for (int a = 0; a < ahead; ++a) made[a] = apply<T>(f, load(in, v + a * step)...);
#pragma unroll
                for (int a = 0; a < ahead; ++a) store(out, v + a * step, made[a]);
            }
#pragma unroll 1
            for (; v < packs; v += step) store(out, v, apply<T>(f, load(in, v)...));
        } else {
            for (; v < packs; v += step) store(out, v, apply<T>(f, load(in, v)...));
        }
        done = packs * Pack<T>::size;
    }
    for (long long i = done + first; i < n; i += step) out[i] = f(in[i]...);
}

// f(i, u[i]) for n elements, by threads `first`, first + step, ...: 16 bytes at a time where the arrays allow it. In no order.
template <typename T, typename F>
__device__ inline void visit_by(long long first, long long step, const T* memory, const T* grad, long long n, F f) {
    long long done = 0;
    if (aligned(memory, grad)) {
        const long long packs = n / Pack<T>::size;
        for (long long v = first; v < packs; v += step) {
            const Pack<T> u = compensated_pack(memory, grad, v);
#pragma unroll
            for (int j = 0; j < Pack<T>::size; ++j) f(v * Pack<T>::size + j, u.at[j]);
        }
        done = packs * Pack<T>::size;
    }
    for (long long i = done + first; i < n; i += step) f(i, compensated(memory, grad, i));
}

// The same, spread over the grid.
template <typename T, typename F>
__device__ inline void visit(const T* memory, const T* grad, long long n, F f) {
    visit_by(grid_index(), grid_size(), memory, grad, n, f);
}

// Sum over the lanes of a warp up to this one.
template <typename T> __device__ inline T running_sum(T value) {
    for (int offset = 1; offset < warp_size; offset *= 2) {
        const T below = __shfl_up_sync(all_lanes, value, offset);
        if ((int)threadIdx.x % warp_size >= offset) value += below;
    }
    return value;
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

// Whether this block is the last of `blocks` to say so, whose results are then all there. The ticket, zero at first, becomes
// zero again. All threads must call it.
__device__ inline bool is_last(unsigned long long* ticket, long long blocks) {
    __shared__ bool last;
    __threadfence();  // what this thread has written is seen before the block says that it is done
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(ticket, 1ull) == blocks - 1;
    __syncthreads();
    __threadfence();
    if (last && threadIdx.x == 0) *ticket = 0;
    return last;
}

// How many of `count` places pass, where all that do come before all others. A warp asks 32 of them at a time, so that few
// reads have to wait for one another; all its lanes must call it, and get the same.
template <typename F> __device__ inline long long count_passing(long long count, F passes) {
    long long low = 0;
    for (long long left = count; left > 0;) {  // `low` pass, and none from low + left on
        const long long step = (left + warp_size - 1) >> 5, last = (threadIdx.x % warp_size + 1) * step - 1;
        const unsigned passing = __ballot_sync(all_lanes, last < left && passes(low + last));
        const long long over = __popc(passing) * step;
        low += over;
        left = min(left - over, step - 1);
    }
    return low;
}
