// Block codes: a scale and 8 or 4 bits per element in blocks of 256; see oracle/block_codes.py.
// A warp takes a block; lane l has elements 4 l to 4 l + 3 of each of its halves.
// Instances: encode_blocks decode_blocks<REAL, Int8|Int4|Fp8>
#include "common.cuh"
#include "philox.cuh"
#include "runs.cuh"

constexpr int block_size = BLOCK_CODES, scale_bytes = 4, run_length = 4;

// The whole number nearest to y, or that below it, for |y| < 2^22: adding `magic` leaves it in the low bits of the sum.
template <typename T> __device__ inline Bits<T> whole_of(T y, bool down) {
    constexpr T magic = (T)3 * (T)(1ll << (Format<T>::fraction_bits - 1));
    const T sum = y + magic;
    const Bits<T> nearest = Real<T>::bits(sum) - Real<T>::bits(magic);
    return nearest - (down && sum - magic > y);
}

// Codes of v = x / scale; `share` is added before rounding down, if it is stochastic.

template <int largest> struct Whole {
    static constexpr int top = largest;

    template <typename T> static __device__ unsigned char code(T v, bool stochastic, float share) {
        const Bits<T> whole = whole_of(stochastic ? v + (T)share : v, stochastic);
        return (unsigned char)max((Bits<T>)-top, min(whole, (Bits<T>)top));
    }
};

struct Int8 : Whole<127> {
    static constexpr bool shares_bytes = false;
    template <typename T> static __device__ T value(unsigned char code) { return (T)(signed char)code; }
};

struct Int4 : Whole<7> {
    static constexpr bool shares_bytes = true;
    template <typename T> static __device__ T value(unsigned char code) { return (T)((int)(code ^ 8) - 8); }
};

struct Fp8 {
    static constexpr int top = 448;
    static constexpr bool shares_bytes = false;

    template <typename T> static __device__ unsigned char code(T v, bool stochastic, float share) {
        constexpr int fraction_bits = Format<T>::fraction_bits, bias = Format<T>::bias;
        constexpr Bits<T> one = (Bits<T>)1 << fraction_bits, least = (bias - 6) * one;
        const Bits<T> size = Real<T>::bits(v) & Real<T>::magnitude, exponent = max(size & Real<T>::infinity, least);
        const T steps = Real<T>::value(size) * Real<T>::value((bias + 3) * one - exponent + bias * one);
        const Bits<T> whole = whole_of(stochastic ? steps + (T)share : steps, stochastic);
        const Bits<T> code = ((exponent - least) >> (fraction_bits - 3)) + whole;
        return (unsigned char)(min(code, (Bits<T>)0x7e) | (Real<T>::bits(v) < 0 ? 0x80 : 0));
    }

    template <typename T> static __device__ T value(unsigned char code) {
        const int size = code & 0x7f, subnormal = size < 8;  // whose leading 1 is taken away again
        const float magnitude = __int_as_float((size << 20) + ((120 + subnormal) << 23)) - subnormal * 0x1p-6f;
        return (T)(code & 0x80 ? -magnitude : magnitude);
    }
};

// The elements of a block, and the half of it that is first.
struct Block {
    long long begin;
    int length, half;

    __device__ Block(long long number, long long n)
        : begin(number * block_size), length((int)min((long long)block_size, n - begin)), half((length + 1) / 2) {}

    // Where a lane's run of a half begins, and its elements.
    __device__ int at(int part) const { return part * half + run_length * (threadIdx.x % warp_size); }
    __device__ int count(int part) const { return min(run_length, (part ? length : half) - at(part)); }

    template <typename F> __device__ long long code_begin() const {
        return begin / block_size * (scale_bytes + block_size / (F::shares_bytes ? 2 : 1));
    }
};

__device__ inline long long block_count(long long n) { return (n + block_size - 1) / block_size; }
__device__ inline long long first_block() { return grid_index() / warp_size; }
__device__ inline long long block_step() { return grid_size() / warp_size; }

// The upper half of a scale in float64.
template <typename T, typename F> __device__ inline unsigned scale_of(Bits<T> largest) {
    constexpr Bits<T> smallest_normal = (Bits<T>)1 << Format<T>::fraction_bits;
    if (largest >= Real<T>::infinity) return 0x7ff80000;
    const double scale = max(Real<T>::value(largest) / (double)F::top, (double)Real<T>::value(smallest_normal));
    return (unsigned)((unsigned long long)__double_as_longlong(scale) >> 32);
}

template <typename T> __device__ inline T value_of_scale(unsigned scale) {
    return (T)__longlong_as_double((long long)((unsigned long long)scale << 32));
}

using Codes = Run<unsigned char, run_length>;

__device__ inline void store_scale(unsigned scale, unsigned char* out) {
    if (threadIdx.x % warp_size) return;
    Codes bytes;
#pragma unroll
    for (int j = 0; j < scale_bytes; ++j) bytes.at[j] = scale >> 8 * j;
    store_run<scale_bytes>(out, scale_bytes, bytes);
}

template <typename T, typename F>
__device__ inline Codes codes_of(Run<T, run_length> x, int count, T inverse, bool stochastic, unsigned long long first,
                                 Stream random) {
    unsigned words[run_length] = {};
    Codes codes;
    if (stochastic && count > 0) random.four(first, words);
#pragma unroll
    for (int j = 0; j < run_length; ++j) codes.at[j] = F::code(x.at[j] * inverse, stochastic, uniform_of(words[j]));
#pragma unroll
    for (int j = 0; j < run_length; ++j)
        if (j >= count) codes.at[j] = 0;
    return codes;
}

template <typename F> __device__ inline void store_codes(Block block, Codes (&codes)[2], unsigned char* out) {
    if constexpr (F::shares_bytes) {
#pragma unroll
        for (int j = 0; j < run_length; ++j) codes[0].at[j] = (codes[0].at[j] & 15) | codes[1].at[j] << 4;
        store_run<run_length>(out + block.at(0), block.count(0), codes[0]);
    } else {
#pragma unroll
        for (int part = 0; part < 2; ++part)
            store_run<run_length>(out + block.at(part), block.count(part), codes[part]);
    }
}

template <typename T, typename F>
__global__ void encode_blocks(const T* x, long long n, int stochastic, unsigned long long first,
                              unsigned long long seed, unsigned step, unsigned worker, unsigned char* codes) {
    const Stream random(seed, step, worker);
    for (long long number = first_block(); number < block_count(n); number += block_step()) {
        const Block block(number, n);
        Run<T, run_length> values[2];
        Bits<T> largest = 0;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            values[part] = load_run<run_length>(x + block.begin + block.at(part), block.count(part));
#pragma unroll
            for (int j = 0; j < run_length; ++j)
                largest = max(largest, Real<T>::bits(values[part].at[j]) & Real<T>::magnitude);
        }
        for (int lanes = 1; lanes < warp_size; lanes *= 2)
            largest = max(largest, __shfl_xor_sync(all_lanes, largest, lanes));
        const unsigned scale = scale_of<T, F>(largest);
        const bool finite = largest < Real<T>::infinity;
        const T inverse = finite ? (T)1 / value_of_scale<T>(scale) : (T)0;
        unsigned char* out = codes + block.code_begin<F>();
        store_scale(scale, out);
        Codes made[2] = {};
        if (finite) {
#pragma unroll
            for (int part = 0; part < 2; ++part)
                made[part] = codes_of<T, F>(values[part], block.count(part), inverse, stochastic,
                                            first + block.begin + block.at(part), random);
        }
        store_codes<F>(block, made, out + scale_bytes);
    }
}

template <typename T, typename F>
__global__ void decode_blocks(const unsigned char* codes, long long n, T* out) {
    for (long long number = first_block(); number < block_count(n); number += block_step()) {
        const Block block(number, n);
        const unsigned char* in = codes + block.code_begin<F>();
        const Codes head = load_run<scale_bytes>(in, scale_bytes);
        unsigned bits = 0;
#pragma unroll
        for (int j = 0; j < scale_bytes; ++j) bits |= (unsigned)head.at[j] << 8 * j;
        const T scale = value_of_scale<T>(bits);
        for (int part = 0; part < 2; ++part) {
            const int from = F::shares_bytes ? 0 : part;
            const Codes run = load_run<run_length>(in + scale_bytes + block.at(from), block.count(from));
            Run<T, run_length> values;
#pragma unroll
            for (int j = 0; j < run_length; ++j) {
                const unsigned char code = run.at[j];
                values.at[j] = F::template value<T>(!F::shares_bytes ? code : part ? code >> 4 : code & 15) * scale;
            }
            store_run<run_length>(out + block.begin + block.at(part), block.count(part), values);
        }
    }
}
