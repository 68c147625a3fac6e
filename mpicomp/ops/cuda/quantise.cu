// Few bits a value. A thread takes four neighbours a round: whole bytes of every width, and one block of random words
// where their elements begin at a multiple of four.
#include "common.cuh"
#include "groups.cuh"
#include "philox.cuh"

constexpr int unit = 4;

template <typename T> struct Format;
template <> struct Format<float> {
    static constexpr int fraction_bits = 23, bias = 127;
    static __device__ float real(int bits) { return __int_as_float(bits); }
};
template <> struct Format<double> {
    static constexpr int fraction_bits = 52, bias = 1023;
    static __device__ double real(long long bits) { return __longlong_as_double(bits); }
};

// ---- one bit an entry: bytes, of eight entries each

template <typename T> __global__ void pack_signs(const T* x, long long n, unsigned char* out) {
    for (long long b = grid_index(); 8 * b < n; b += grid_size()) {
        unsigned bits = 0;
        for (int bit = 0; bit < 8 && 8 * b + bit < n; ++bit) bits |= (Real<T>::bits(x[8 * b + bit]) >= 0) << bit;
        out[b] = (unsigned char)bits;
    }
}

template <typename T>
__global__ void unpack_signs(const unsigned char* packed, const long long* bounds, long long groups, const T* negative,
                             const T* positive, long long n, T* out) {
    for (long long b = grid_index(); 8 * b < n; b += grid_size()) {
        long long g = group_of(bounds, groups, 8 * b);
        for (long long i = 8 * b; i < min(8 * b + 8, n); ++i) {
            g = next_group_of(bounds, g, i);
            out[i] = packed[b] >> (i - 8 * b) & 1 ? positive[g] : negative[g];
        }
    }
}

// ---- levels of a group's scale, `width` bits each

// NaN, which fails every comparison, counts as 0.
template <typename T> __device__ long long level_code(T x, T inverse, T uniform, int levels) {
    const T size = fabs(x), scaled = size * inverse, sum = scaled + uniform;
    const T above = sum > 0 ? sum : T(0);
    const int level = (int)(above < levels ? above : T(levels));
    return levels + (Real<T>::bits(x) < 0 ? -level : level);
}

template <typename T>
__global__ void pack_levels(const T* x, long long n, const long long* bounds, long long groups, const T* scales,
                            int levels, int width, unsigned long long first, unsigned long long seed, unsigned step,
                            unsigned worker, unsigned char* out) {
    Stream stream(seed, step, worker);
    for (long long u = grid_index(); unit * u < n; u += grid_size()) {
        const long long begin = unit * u, end = min(begin + unit, n);
        long long g = group_of(bounds, groups, begin);
        unsigned long long bits = 0;
        for (long long i = begin; i < end; ++i) {
            g = next_group_of(bounds, g, i);
            const T inverse = scales[g] > 0 ? T(levels) / scales[g] : T(0);
            const T uniform = uniform_of(stream.word(first + i));
            bits |= (unsigned long long)level_code(x[i], inverse, uniform, levels) << (width * (i - begin));
        }
        for (int byte = 0; 8 * byte < width * (end - begin); ++byte)
            out[u * (unit * width / 8) + byte] = (unsigned char)(bits >> (8 * byte));
    }
}

template <typename T>
__global__ void unpack_levels(const unsigned char* packed, const long long* bounds, long long groups, const T* scales,
                              int levels, int width, long long n, T* out) {
    const unsigned mask = (1u << width) - 1;
    for (long long u = grid_index(); unit * u < n; u += grid_size()) {
        const long long begin = unit * u, end = min(begin + unit, n);
        long long g = group_of(bounds, groups, begin);
        unsigned long long bits = 0;
        for (int byte = 0; 8 * byte < width * (end - begin); ++byte)
            bits |= (unsigned long long)packed[u * (unit * width / 8) + byte] << (8 * byte);
        for (long long i = begin; i < end; ++i, bits >>= width) {
            g = next_group_of(bounds, g, i);
            const int code = (int)((unsigned)bits & mask) - levels;
            out[i] = T(code) * (scales[g] / T(levels));
        }
    }
}

// ---- multiples of one unit, as integers

// codes[i] = floor(x[i] * inverse + uniform), or to nearest even; *invalid is set where one does not fit, or is NaN.
template <typename T, typename C>
__global__ void quantise(const T* x, long long n, T inverse, int stochastic, unsigned long long first,
                         unsigned long long seed, unsigned step, unsigned worker, C* codes, int* invalid) {
    constexpr T limit = T(1ll << (8 * sizeof(C) - 1));  // exact, unlike the largest int
    Stream stream(seed, step, worker);
    for (long long u = grid_index(); unit * u < n; u += grid_size())
        for (long long i = unit * u; i < min(unit * u + unit, n); ++i) {
            const T scaled = x[i] * inverse, uniform = stochastic ? uniform_of(stream.word(first + i)) : 0;
            const T sum = scaled + uniform, rounded = stochastic ? floor(sum) : rint(scaled);
            const bool fits = fabs(rounded) < limit;
            if (!fits) *invalid = 1;
            codes[i] = (C)(int)(fits ? rounded : T(0));
        }
}

template <typename T, typename C> __global__ void dequantise(const C* codes, long long n, T unit, T* out) {
    for (long long i = grid_index(); i < n; i += grid_size()) out[i] = T(codes[i]) * unit;
}

// ---- powers of two, a byte each

// 2^exponent as bits, a normal number.
template <typename T> __device__ inline Bits<T> power(int exponent) {
    return (Bits<T>)(exponent + Format<T>::bias) << Format<T>::fraction_bits;
}

// *invalid is set where a magnitude is above 2^top or NaN. With the exponent bits of 1 a fraction is 1 + the share of
// the way from one power of two to the next.
template <typename T>
__global__ void pack_natural(const T* x, long long n, int top, unsigned long long first, unsigned long long seed,
                             unsigned step, unsigned worker, unsigned char* out, int* invalid) {
    using B = Bits<T>;
    constexpr int shift = Format<T>::fraction_bits;
    const B lowest = power<T>(top - 126), highest = power<T>(top), one = power<T>(0);
    const T grow = Format<T>::real(power<T>(126 - top));
    Stream stream(seed, step, worker);
    for (long long u = grid_index(); unit * u < n; u += grid_size())
        for (long long i = unit * u; i < min(unit * u + unit, n); ++i) {
            const B bits = Real<T>::bits(x[i]), size = bits & Real<T>::magnitude;
            const bool tiny = size < lowest;
            const T share = tiny ? Format<T>::real(size) * grow
                                 : Format<T>::real((size & (((B)1 << shift) - 1)) | one) - T(1);
            const B below = tiny ? 0 : (size >> shift) - (lowest >> shift) + 1;
            const bool up = T(uniform_of(stream.word(first + i))) < share;
            if (size > highest) *invalid = 1;
            out[i] = (unsigned char)((below + up) | (bits < 0 ? 128 : 0));
        }
}

template <typename T> __global__ void unpack_natural(const unsigned char* packed, int top, long long n, T* out) {
    using B = Bits<T>;
    for (long long i = grid_index(); i < n; i += grid_size()) {
        const B code = packed[i] & 127, step = (B)1 << Format<T>::fraction_bits;
        const B size = power<T>(top - 126) + (code - 1) * step;
        const T value = Format<T>::real(code ? size : 0);
        out[i] = packed[i] & 128 ? -value : value;
    }
}
