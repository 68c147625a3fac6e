// Few bits per value. A thread takes a run of four neighbours per round (eight of one bit): whole bytes of every width, one
// block of random words where their elements begin at a multiple of four, and one access of memory where it allows that.
// Instances: pack_signs pack_levels pack_natural unpack_signs unpack_levels unpack_natural<REAL>
// Instances: quantise dequantise<REAL, CODE>
#include "common.cuh"
#include "groups.cuh"
#include "philox.cuh"
#include "runs.cuh"

constexpr int unit = UNIT;

constexpr int code_piece = CODE_PIECE;  // elements for a block at a time, whose groups are narrowed down once
constexpr int stretch = code_piece / (threads / warp_size);  // neighbours of a piece that one warp takes

// Goes through the groups of a piece that begins at `begin` and whose last group is `last`, from g on, and only forward.
struct Walk {
    const long long* bounds;
    long long begin, last, g;
    int until = 0;  // where in the piece group g ends

    // Whether the group of element `offset` of the piece is another than before.
    __device__ bool leaves(int offset) const { return offset >= until; }

    __device__ void go_to(int offset) {
        for (int near = 0; near < 4; ++near, ++g)
            if (ends_behind(offset)) return;
        g += group_of(bounds + g, last - g + 1, begin + offset);
        ends_behind(offset);
    }

    // The same, to a neighbour's: a group or none further.
    __device__ void step_to(int offset) {
        while (!ends_behind(offset)) ++g;
    }

    __device__ bool ends_behind(int offset) {
        until = (int)min(bounds[g + 1] - begin, (long long)code_piece);
        return offset < until;
    }
};

// f(i, offset, count, walk) for every run of n elements: `count` of them from element i on, which is the piece's at `offset`.
// enter(g) whenever a run begins in another group than the thread's last ended in; the walk has come there.
template <int length, typename E, typename F>
__device__ inline void each_run(const long long* bounds, long long groups, long long n, E enter, F f) {
    __shared__ long long ends[2];
    const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
    for (long long begin = (long long)blockIdx.x * code_piece; begin < n; begin += (long long)gridDim.x * code_piece) {
        const int size = (int)min(n - begin, (long long)code_piece);
        if (warp < 2) {
            const long long at = warp ? begin + size - 1 : begin;
            const long long group = group_of_warp(bounds, groups, at, (long long)((float)at / n * groups));
            if (lane == 0) ends[warp] = group;
        }
        __syncthreads();
        Walk walk = {bounds, begin, ends[1], ends[0]};
        __syncthreads();  // both have been read
        const auto take = [&](int offset, int count) {
            if (walk.leaves(offset)) walk.go_to(offset), enter(walk.g);
            f(begin + offset, offset, count, walk);
        };
        int offset = warp * stretch + length * lane;
        if (size == code_piece)  // then `count` is a constant
            for (int left = stretch / (length * warp_size); left; --left, offset += length * warp_size) take(offset, length);
        else
            for (const int to = min((warp + 1) * stretch, size); offset < to; offset += length * warp_size)
                take(offset, min(length, size - offset));
    }
}

// ---- one bit an entry: bytes, of eight entries each

template <typename T> __global__ void pack_signs(const T* x, long long n, unsigned char* out) {
    for (long long b = grid_index(); 8 * b < n; b += grid_size()) {
        const int count = (int)min(n - 8 * b, 8ll);
        const Run<T, 8> run = load_run<8>(x + 8 * b, count);
        unsigned bits = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) bits |= (unsigned)(Real<T>::bits(run.at[j]) >= 0) << j;
        out[b] = (unsigned char)(bits & ((1u << count) - 1));
    }
}

// `negative` may be null, which means -positive.
template <typename T>
__global__ void unpack_signs(const unsigned char* packed, const long long* bounds, long long groups, const T* negative,
                             const T* positive, long long n, T* out) {
    T below = 0, above = 0;
    const auto enter = [&](long long g) { above = positive[g], below = negative ? negative[g] : -above; };
    each_run<8>(bounds, groups, n, enter, [&](long long i, int offset, int count, Walk& walk) {
        const unsigned bits = packed[i / 8];
        const bool crosses = walk.leaves(offset + count - 1);
        Run<T, 8> run;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (j && crosses && j < count && walk.leaves(offset + j)) walk.step_to(offset + j), enter(walk.g);
            run.at[j] = bits >> j & 1 ? above : below;
        }
        store_run(out + i, count, run);
    });
}

// ---- levels of a group's scale, `width` bits each

// Where the codes of the run that begins with element i lie.
__device__ inline long long place_of(long long i, int width) { return (unsigned long long)i / unit * (width * unit / 8); }

// The first `count` codes of a run, then zero bits; in one access if it is whole and aligned to its bytes.
template <int length> __device__ inline void store_codes(unsigned char* to, int width, int count, unsigned long long bits) {
    const int bytes = (width * count + 7) / 8;
    if (count == length && ((unsigned)(unsigned long long)to & (bytes - 1)) == 0) {
        if (bytes == 4) *(unsigned*)to = (unsigned)bits;
        else if (bytes == 2) *(unsigned short*)to = (unsigned short)bits;
        else if (bytes == 8) *(unsigned long long*)to = bits;
        else *to = (unsigned char)bits;
        return;
    }
    if (count < length) bits &= (1ull << (width * count)) - 1;
    for (int byte = 0; byte < bytes; ++byte) to[byte] = (unsigned char)(bits >> (8 * byte));
}

__device__ inline unsigned long long load_codes(const unsigned char* from, int width, int count) {
    const int bytes = (width * count + 7) / 8;
    if (count == unit && ((unsigned)(unsigned long long)from & (bytes - 1)) == 0) {
        if (bytes == 2) return *(const unsigned short*)from;
        if (bytes == 4) return *(const unsigned*)from;
        return bytes == 1 ? *from : *(const unsigned long long*)from;
    }
    unsigned long long bits = 0;
    for (int byte = 0; byte < bytes; ++byte) bits |= (unsigned long long)from[byte] << (8 * byte);
    return bits;
}

// NaN, which fails every comparison, counts as 0. A word's uniform number is a multiple of 2^-24 below 1: its product is
// exact, so that multiplying and adding at once gives the bits of one after the other.
template <typename T> __device__ inline int level_of(T x, T inverse, unsigned word, int levels) {
    const T scaled = fabs(x) * inverse, sum = fma(T(word >> 8), T(0x1p-24), scaled);
    return (int)copysign(min(sum > 0 ? sum : T(0), T(levels)), x);
}

// Eight a thread and round, so that what a run costs by itself (its group, its place) is paid half as often.
template <typename T>
__global__ void pack_levels(const T* x, long long n, const long long* bounds, long long groups, const T* scales,
                            int levels, int width, unsigned long long first, unsigned long long seed, unsigned step,
                            unsigned worker, unsigned char* out) {
    constexpr int length = 2 * unit;
    const unsigned next = 1u << width, middle = levels * (next + 1);  // of two codes
    Stream stream(seed, step, worker);
    T inverse = 0;
    const auto enter = [&](long long g) { inverse = scales[g] > 0 ? T(levels) / scales[g] : T(0); };
    each_run<length>(bounds, groups, n, enter, [&](long long i, int offset, int count, Walk& walk) {
        const Run<T, length> run = load_run<length>(x + i, count);
        unsigned words[length], pairs[length / 2];
        stream.four(first + i, words);
        stream.four(first + i + unit, words + unit);
        int level[length];
        if (!walk.leaves(offset + count - 1)) {
#pragma unroll
            for (int j = 0; j < length; ++j) level[j] = level_of(run.at[j], inverse, words[j], levels);
        } else {
#pragma unroll
            for (int j = 0; j < length; ++j) {
                if (j && j < count && walk.leaves(offset + j)) walk.step_to(offset + j), enter(walk.g);
                level[j] = level_of(run.at[j], inverse, words[j], levels);
            }
        }
#pragma unroll
        for (int j = 0; j < length; j += 2) pairs[j / 2] = level[j] + level[j + 1] * next + middle;
        unsigned char* to = out + place_of(i, width);
        const unsigned long long low = pairs[0] | (unsigned long long)pairs[1] << (2 * width),
                                 high = pairs[2] | (unsigned long long)pairs[3] << (2 * width);
        if (width < 16) {
            store_codes<length>(to, width, count, low | high << (4 * width));
        } else {
            store_codes<unit>(to, width, min(count, unit), low);
            if (count > unit) store_codes<unit>(to + 8, width, count - unit, high);
        }
    });
}

template <typename T>
__global__ void unpack_levels(const unsigned char* packed, const long long* bounds, long long groups, const T* scales,
                              int levels, int width, long long n, T* out) {
    const unsigned mask = (1u << width) - 1;
    T factor = 0;
    const auto enter = [&](long long g) { factor = scales[g] / T(levels); };
    each_run<unit>(bounds, groups, n, enter, [&](long long i, int offset, int count, Walk& walk) {
        unsigned long long bits = load_codes(packed + place_of(i, width), width, count);
        const bool crosses = walk.leaves(offset + count - 1);
        Run<T, unit> run;
#pragma unroll
        for (int j = 0; j < unit; ++j, bits >>= width) {
            if (j && crosses && j < count && walk.leaves(offset + j)) walk.step_to(offset + j), enter(walk.g);
            run.at[j] = T((int)((unsigned)bits & mask) - levels) * factor;
        }
        store_run(out + i, count, run);
    });
}

// ---- multiples of one unit, as integers

// codes[i] = floor(x[i] * inverse + uniform), or to nearest even; *invalid is set if one does not fit, or is NaN;
// it may be null if no value can be like that.
template <typename T, typename C>
__global__ void quantise(const T* x, long long n, T inverse, int stochastic, unsigned long long first,
                         unsigned long long seed, unsigned step, unsigned worker, C* codes, int* invalid) {
    constexpr T limit = T(1ll << (8 * sizeof(C) - 1));  // exact, unlike the largest int
    Stream stream(seed, step, worker);
    for (long long begin = unit * grid_index(); begin < n; begin += unit * grid_size()) {
        const int count = (int)min(n - begin, (long long)unit);
        const Run<T, unit> run = load_run<unit>(x + begin, count);
        unsigned words[unit] = {};
        if (stochastic) stream.four(first + begin, words);
        Run<C, unit> made;
#pragma unroll
        for (int j = 0; j < unit; ++j) {
            const T scaled = run.at[j] * inverse, uniform = uniform_of(words[j]);
            const T sum = scaled + uniform, rounded = stochastic ? floor(sum) : rint(scaled);
            const bool fits = fabs(rounded) < limit;
            if (invalid && !fits && j < count) atomicOr(invalid, 1);
            made.at[j] = (C)(int)(fits ? rounded : T(0));
        }
        store_run(codes + begin, count, made);
    }
}

template <typename T, typename C> __global__ void dequantise(const C* codes, long long n, T factor, T* out) {
    for (long long begin = unit * grid_index(); begin < n; begin += unit * grid_size()) {
        const int count = (int)min(n - begin, (long long)unit);
        const Run<C, unit> run = load_run<unit>(codes + begin, count);
        Run<T, unit> made;
#pragma unroll
        for (int j = 0; j < unit; ++j) made.at[j] = T(run.at[j]) * factor;
        store_run(out + begin, count, made);
    }
}

// ---- powers of two, a byte each

// 2^exponent as bits, a normal number.
template <typename T> __device__ inline Bits<T> power(int exponent) {
    return (Bits<T>)(exponent + Format<T>::bias) << Format<T>::fraction_bits;
}

constexpr int not_finite = NOT_FINITE;  // as the head of a message

// The least power of two that is not below `largest`, as far as 2^(top - 126) .. 2^top are normal numbers.
template <typename T> __device__ inline int top_of(T largest) {
    using F = Format<T>;
    const Bits<T> bits = Real<T>::bits(largest), fraction = bits & (((Bits<T>)1 << F::fraction_bits) - 1);
    const int exponent = bits ? (int)(bits >> F::fraction_bits) - F::bias + (fraction != 0) : 0;
    return min(F::bias, max(127 - F::bias, exponent));
}

// If `largest` is given, the largest magnitude of x: the power follows from it and goes to *head, and larger ones are cut
// off there; if it is not finite, *head is `not_finite` and codes are zero. Else *invalid, which may be null, is set if a
// magnitude is above 2^top or NaN. With the exponent bits of 1 a fraction is 1 + the share of the way from one power of two
// to the next.
template <typename T>
__global__ void pack_natural(const T* x, long long n, int top, const T* largest, int* head, unsigned long long first,
                             unsigned long long seed, unsigned step, unsigned worker, unsigned char* out, int* invalid) {
    const bool finite = !largest || !is_nonfinite(*largest);
    if (largest) {
        top = finite ? top_of(*largest) : 0;
        if (grid_index() == 0) *head = finite ? top : not_finite;
    }
    using B = Bits<T>;
    constexpr int shift = Format<T>::fraction_bits;
    const B lowest = power<T>(top - 126), highest = power<T>(top), one = power<T>(0);
    const T grow = Real<T>::value(power<T>(126 - top));
    Stream stream(seed, step, worker);
    for (long long begin = unit * grid_index(); begin < n; begin += unit * grid_size()) {
        const int count = (int)min(n - begin, (long long)unit);
        const Run<T, unit> run = load_run<unit>(x + begin, count);
        unsigned words[unit];
        stream.four(first + begin, words);
        Run<unsigned char, unit> made;
#pragma unroll
        for (int j = 0; j < unit; ++j) {
            const B bits = Real<T>::bits(run.at[j]), whole = bits & Real<T>::magnitude;
            const B size = largest ? min(whole, highest) : whole;
            const bool tiny = size < lowest;
            const T share = tiny ? Real<T>::value(size) * grow
                                 : Real<T>::value((size & (((B)1 << shift) - 1)) | one) - T(1);
            const B below = tiny ? 0 : (size >> shift) - (lowest >> shift) + 1;
            const bool up = T(uniform_of(words[j])) < share;
            if (invalid && size > highest) atomicOr(invalid, 1);
            made.at[j] = finite ? (unsigned char)((below + up) | (bits < 0 ? 128 : 0)) : 0;
        }
        store_run(out + begin, count, made);
    }
}

// The power is *head, if that is given.
template <typename T>
__global__ void unpack_natural(const unsigned char* packed, int top, const int* head, long long n, T* out) {
    using B = Bits<T>;
    const bool finite = !head || *head != not_finite;
    constexpr B nan = Real<T>::infinity | (B)1 << (Format<T>::fraction_bits - 1);
    if (head) top = finite ? *head : 0;
    for (long long begin = unit * grid_index(); begin < n; begin += unit * grid_size()) {
        const int count = (int)min(n - begin, (long long)unit);
        const Run<unsigned char, unit> run = load_run<unit>(packed + begin, count);
        Run<T, unit> made;
#pragma unroll
        for (int j = 0; j < unit; ++j) {
            const B code = run.at[j] & 127, step = (B)1 << Format<T>::fraction_bits;
            const B size = power<T>(top - 126) + (code - 1) * step;
            const T value = Real<T>::value(code ? size : 0);
            made.at[j] = finite ? (run.at[j] & 128 ? -value : value) : Real<T>::value(nan);
        }
        store_run(out + begin, count, made);
    }
}
