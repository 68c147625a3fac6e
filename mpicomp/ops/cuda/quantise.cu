// Few bits a value. A thread takes a run of four neighbours a round (eight of one bit): whole bytes of every width, one
// block of random words where their elements begin at a multiple of four, and one access of memory where it allows that.
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

// ---- runs of neighbours, which begin at a multiple of their length

template <typename T, int length> struct alignas(length * sizeof(T) < 16 ? length * sizeof(T) : 16) Run { T at[length]; };

// x[begin] to x[end - 1], then zeros: in one access, or one for every 16 bytes, where x allows it.
template <int length, typename T> __device__ inline Run<T, length> load_run(const T* x, long long begin, long long end) {
    using R = Run<T, length>;
    if (end - begin == length && (unsigned long long)x % alignof(R) == 0) return *(const R*)(x + begin);
    R run;
#pragma unroll
    for (int j = 0; j < length; ++j) run.at[j] = begin + j < end ? x[begin + j] : T(0);
    return run;
}

template <int length, typename T> __device__ inline void store_run(T* x, long long begin, long long end, Run<T, length> run) {
    using R = Run<T, length>;
    if (end - begin == length && (unsigned long long)x % alignof(R) == 0) {
        *(R*)(x + begin) = run;
        return;
    }
#pragma unroll
    for (int j = 0; j < length; ++j)
        if (begin + j < end) x[begin + j] = run.at[j];
}

constexpr int code_piece = 4096;  // elements for a block at a time: their groups are narrowed down once for all its threads

// f(begin, end, group of begin) for every run of n elements.
template <int length, typename F>
__device__ inline void each_run(const long long* bounds, long long groups, long long n, F f) {
    __shared__ long long ends[2];
    for (long long begin = (long long)blockIdx.x * code_piece; begin < n; begin += (long long)gridDim.x * code_piece) {
        const long long end = min(begin + code_piece, n);
        if (threadIdx.x < 2) ends[threadIdx.x] = group_of(bounds, groups, threadIdx.x ? end - 1 : begin);
        __syncthreads();
        const long long low = ends[0], count = ends[1] - low + 1;
        __syncthreads();  // both have been read
        for (long long i = begin + length * threadIdx.x; i < end; i += length * threads)
            f(i, min(i + length, end), low + group_of(bounds + low, count, i));
    }
}

// ---- one bit an entry: bytes, of eight entries each

template <typename T> __global__ void pack_signs(const T* x, long long n, unsigned char* out) {
    for (long long b = grid_index(); 8 * b < n; b += grid_size()) {
        const long long begin = 8 * b, end = min(begin + 8, n);
        const Run<T, 8> run = load_run<8>(x, begin, end);
        unsigned bits = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) bits |= (unsigned)(begin + j < end && Real<T>::bits(run.at[j]) >= 0) << j;
        out[b] = (unsigned char)bits;
    }
}

template <typename T>
__global__ void unpack_signs(const unsigned char* packed, const long long* bounds, long long groups, const T* negative,
                             const T* positive, long long n, T* out) {
    each_run<8>(bounds, groups, n, [&](long long begin, long long end, long long g) {
        const unsigned bits = packed[begin / 8];
        Run<T, 8> run;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (begin + j < end) g = next_group_of(bounds, g, begin + j);
            run.at[j] = bits >> j & 1 ? positive[g] : negative[g];
        }
        store_run(out, begin, end, run);
    });
}

// ---- levels of a group's scale, `width` bits each

// `bytes` bytes of a run's codes: in one access where the run is whole and they lie at a multiple of their number.
__device__ inline void store_codes(unsigned char* to, int bytes, bool whole, unsigned long long bits) {
    if (whole && (unsigned long long)to % bytes == 0) {
        if (bytes == 1) *to = (unsigned char)bits;
        else if (bytes == 2) *(unsigned short*)to = (unsigned short)bits;
        else if (bytes == 4) *(unsigned*)to = (unsigned)bits;
        else *(unsigned long long*)to = bits;
        return;
    }
    for (int byte = 0; byte < bytes; ++byte) to[byte] = (unsigned char)(bits >> (8 * byte));
}

__device__ inline unsigned long long load_codes(const unsigned char* from, int bytes, bool whole) {
    if (whole && (unsigned long long)from % bytes == 0) {
        if (bytes == 1) return *from;
        if (bytes == 2) return *(const unsigned short*)from;
        return bytes == 4 ? *(const unsigned*)from : *(const unsigned long long*)from;
    }
    unsigned long long bits = 0;
    for (int byte = 0; byte < bytes; ++byte) bits |= (unsigned long long)from[byte] << (8 * byte);
    return bits;
}

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
    each_run<unit>(bounds, groups, n, [&](long long begin, long long end, long long g) {
        const Run<T, unit> run = load_run<unit>(x, begin, end);
        unsigned long long bits = 0;
#pragma unroll
        for (int j = 0; j < unit; ++j) {
            if (begin + j >= end) break;
            g = next_group_of(bounds, g, begin + j);
            const T inverse = scales[g] > 0 ? T(levels) / scales[g] : T(0);
            const T uniform = uniform_of(stream.word(first + begin + j));
            bits |= (unsigned long long)level_code(run.at[j], inverse, uniform, levels) << (width * j);
        }
        const int count = (int)(end - begin);
        store_codes(out + begin * width / 8, (width * count + 7) / 8, count == unit, bits);
    });
}

template <typename T>
__global__ void unpack_levels(const unsigned char* packed, const long long* bounds, long long groups, const T* scales,
                              int levels, int width, long long n, T* out) {
    const unsigned mask = (1u << width) - 1;
    each_run<unit>(bounds, groups, n, [&](long long begin, long long end, long long g) {
        const int count = (int)(end - begin);
        unsigned long long bits = load_codes(packed + begin * width / 8, (width * count + 7) / 8, count == unit);
        Run<T, unit> run;
#pragma unroll
        for (int j = 0; j < unit; ++j, bits >>= width) {
            if (begin + j < end) g = next_group_of(bounds, g, begin + j);
            const int code = (int)((unsigned)bits & mask) - levels;
            run.at[j] = T(code) * (scales[g] / T(levels));
        }
        store_run(out, begin, end, run);
    });
}

// ---- multiples of one unit, as integers

// codes[i] = floor(x[i] * inverse + uniform), or to nearest even; *invalid is set where one does not fit, or is NaN.
template <typename T, typename C>
__global__ void quantise(const T* x, long long n, T inverse, int stochastic, unsigned long long first,
                         unsigned long long seed, unsigned step, unsigned worker, C* codes, int* invalid) {
    constexpr T limit = T(1ll << (8 * sizeof(C) - 1));  // exact, unlike the largest int
    Stream stream(seed, step, worker);
    for (long long begin = unit * grid_index(); begin < n; begin += unit * grid_size()) {
        const long long end = min(begin + unit, n);
        const Run<T, unit> run = load_run<unit>(x, begin, end);
        Run<C, unit> made;
#pragma unroll
        for (int j = 0; j < unit; ++j) {
            const T scaled = run.at[j] * inverse, uniform = stochastic ? uniform_of(stream.word(first + begin + j)) : 0;
            const T sum = scaled + uniform, rounded = stochastic ? floor(sum) : rint(scaled);
            const bool fits = fabs(rounded) < limit;
            if (!fits && begin + j < end) atomicOr(invalid, 1);
            made.at[j] = (C)(int)(fits ? rounded : T(0));
        }
        store_run(codes, begin, end, made);
    }
}

template <typename T, typename C> __global__ void dequantise(const C* codes, long long n, T factor, T* out) {
    for (long long begin = unit * grid_index(); begin < n; begin += unit * grid_size()) {
        const long long end = min(begin + unit, n);
        const Run<C, unit> run = load_run<unit>(codes, begin, end);
        Run<T, unit> made;
#pragma unroll
        for (int j = 0; j < unit; ++j) made.at[j] = T(run.at[j]) * factor;
        store_run(out, begin, end, made);
    }
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
    for (long long begin = unit * grid_index(); begin < n; begin += unit * grid_size()) {
        const long long end = min(begin + unit, n);
        const Run<T, unit> run = load_run<unit>(x, begin, end);
        Run<unsigned char, unit> made;
#pragma unroll
        for (int j = 0; j < unit; ++j) {
            const B bits = Real<T>::bits(run.at[j]), size = bits & Real<T>::magnitude;
            const bool tiny = size < lowest;
            const T share = tiny ? Format<T>::real(size) * grow
                                 : Format<T>::real((size & (((B)1 << shift) - 1)) | one) - T(1);
            const B below = tiny ? 0 : (size >> shift) - (lowest >> shift) + 1;
            const bool up = T(uniform_of(stream.word(first + begin + j))) < share;
            if (size > highest) atomicOr(invalid, 1);
            made.at[j] = (unsigned char)((below + up) | (bits < 0 ? 128 : 0));
        }
        store_run(out, begin, end, made);
    }
}

template <typename T> __global__ void unpack_natural(const unsigned char* packed, int top, long long n, T* out) {
    using B = Bits<T>;
    for (long long begin = unit * grid_index(); begin < n; begin += unit * grid_size()) {
        const long long end = min(begin + unit, n);
        const Run<unsigned char, unit> run = load_run<unit>(packed, begin, end);
        Run<T, unit> made;
#pragma unroll
        for (int j = 0; j < unit; ++j) {
            const B code = run.at[j] & 127, step = (B)1 << Format<T>::fraction_bits;
            const B size = power<T>(top - 126) + (code - 1) * step;
            const T value = Format<T>::real(code ? size : 0);
            made.at[j] = run.at[j] & 128 ? -value : value;
        }
        store_run(out, begin, end, made);
    }
}
