// Element-wise dst = dst OP src over n elements, and scale. 16 bytes a thread and round.
// Instances: combine<Add|Multiply|Minimum|Maximum, NUMBER>
// Instances: scale<REAL>
#include "common.cuh"

// Integers wrap around: computed unsigned, where overflow is defined; short ones as unsigned int, since they would
// be promoted to int, whose product can overflow.
template <typename T> struct Wrap { using type = unsigned; };
template <> struct Wrap<long long> { using type = unsigned long long; };
template <> struct Wrap<unsigned long long> { using type = unsigned long long; };
template <> struct Wrap<float> { using type = float; };
template <> struct Wrap<double> { using type = double; };

struct Add {
    template <typename T> static __device__ T apply(T a, T b) {
        using W = typename Wrap<T>::type;
        return (T)((W)a + (W)b);
    }
};

struct Multiply {
    template <typename T> static __device__ T apply(T a, T b) {
        using W = typename Wrap<T>::type;
        return (T)((W)a * (W)b);
    }
};

// NaN on either side gives NaN, as numpy.minimum and numpy.maximum.
struct Minimum {
    template <typename T> static __device__ T apply(T a, T b) { return (a < b || a != a) ? a : b; }
};

struct Maximum {
    template <typename T> static __device__ T apply(T a, T b) { return (a > b || a != a) ? a : b; }
};

template <typename Op, typename T> __global__ void combine(T* dst, const T* src, long long n) {
    const auto op = [](T a, T b) { return Op::apply(a, b); };
    transform(grid_index(), grid_size(), n, op, dst, dst, src);
}

template <typename T> __global__ void scale(T* x, long long n, T factor) {
    transform(grid_index(), grid_size(), n, [factor](T value) { return value * factor; }, x, x);
}
