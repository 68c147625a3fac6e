// Half precision on the wire: float16 and bfloat16 (as 16 bits) to and from float32, to nearest even. n elements.
// Written with integers, as on the CPU, so that no CUDA header is needed and NaN gives the same bits on both.
// Instances: widen add_widened narrow<Float16|BFloat16>
#include "common.cuh"

struct BFloat16 {
    static __device__ float widen(unsigned short half) { return __uint_as_float((unsigned)half << 16); }

    static __device__ unsigned short narrow(float value) {
        const unsigned bits = __float_as_uint(value);
        if ((bits & 0x7fffffff) > 0x7f800000) return (bits >> 16) | 0x40;  // NaN, made quiet
        return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    }
};

struct Float16 {
    // 1 sign, 5 exponent, 10 fraction bits. Moved to float32's fields the value is 2^112 too small, which one
    // exact multiplication puts right, subnormal numbers included; infinity and NaN need the full exponent.
    static __device__ float widen(unsigned short half) {
        const unsigned sign = (unsigned)(half & 0x8000) << 16, fields = (unsigned)(half & 0x7fff) << 13;
        const unsigned quiet = (fields & 0x007fffff) ? 0x00400000 : 0;
        const unsigned bits = fields >= 0x0f800000 ? fields | 0x7f800000 | quiet
                                                   : __float_as_uint(__uint_as_float(fields) * 0x1p112f);
        return __uint_as_float(bits | sign);
    }

    // Adding a power of two 2^13 float32 units above the value rounds its fraction to 10 bits, to nearest even, in
    // hardware; the power is at least that of the smallest normal half, so subnormal results round alike.
    static __device__ unsigned short narrow(float value) {
        const unsigned bits = __float_as_uint(value), sign = (bits >> 16) & 0x8000, absolute = bits & 0x7fffffff;
        if (absolute > 0x7f800000) return sign | 0x7e00 | ((absolute >> 13) & 0x1ff);  // NaN, made quiet
        if (absolute >= 0x477ff000) return sign | 0x7c00;                              // 65520 rounds to infinity
        const unsigned exponent = absolute & 0x7f800000, smallest = 0x38800000;        // 2^-14
        const unsigned least = exponent > smallest ? exponent : smallest, magic = least + (13u << 23);
        const unsigned rounded = __float_as_uint(__uint_as_float(absolute) + __uint_as_float(magic));
        return sign | ((((least >> 23) - 113) << 10) + (rounded - magic));
    }
};

struct alignas(8) Four {
    unsigned short at[4];
};

// put(v, make(v)) for the quarters v of n elements if they are `packed`, two at a time in a thread: both are read before one
// is written, and the lanes of a warp move whole sectors. one(i) for the other elements.
template <typename M, typename P, typename O>
__device__ inline void eight_at_a_time(long long n, bool packed, M make, P put, O one) {
    const long long fours = packed ? n / 4 : 0, step = grid_size();
    long long v = grid_index();
    for (; v + step < fours; v += 2 * step) {
        const auto first = make(v), second = make(v + step);
        put(v, first), put(v + step, second);
    }
    if (v < fours) put(v, make(v));
    for (long long i = 4 * fours + grid_index(); i < n; i += step) one(i);
}

template <typename Half> __global__ void widen(float* dst, const unsigned short* src, long long n) {
    const auto make = [&](long long v) {
        const Four halves = ((const Four*)src)[v];
        Pack<float> wide;
#pragma unroll
        for (int j = 0; j < 4; ++j) wide.at[j] = Half::widen(halves.at[j]);
        return wide;
    };
    eight_at_a_time(n, aligned(dst, src), make, [&](long long v, Pack<float> wide) { store(dst, v, wide); },
                    [&](long long i) { dst[i] = Half::widen(src[i]); });
}

template <typename Half> __global__ void add_widened(float* dst, const unsigned short* src, long long n) {
    const auto make = [&](long long v) {
        const Four halves = ((const Four*)src)[v];
        Pack<float> sum = load(dst, v);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum.at[j] += Half::widen(halves.at[j]);
        return sum;
    };
    eight_at_a_time(n, aligned(dst, src), make, [&](long long v, Pack<float> sum) { store(dst, v, sum); },
                    [&](long long i) { dst[i] += Half::widen(src[i]); });
}

template <typename Half> __global__ void narrow(unsigned short* dst, const float* src, long long n) {
    const auto make = [&](long long v) {
        const Pack<float> wide = load(src, v);
        Four halves;
#pragma unroll
        for (int j = 0; j < 4; ++j) halves.at[j] = Half::narrow(wide.at[j]);
        return halves;
    };
    eight_at_a_time(n, aligned(dst, src), make, [&](long long v, Four halves) { ((Four*)dst)[v] = halves; },
                    [&](long long i) { dst[i] = Half::narrow(src[i]); });
}
