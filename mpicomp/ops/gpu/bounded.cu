// Error-bounded codes: integers on a grid in blocks of 128, their differences in bit planes; see oracle/bounded.py.
// A warp takes a block; a lane has an element of each group of 32.
// Instances: encode_blocks measure_blocks sum_blocks decode_blocks<REAL>
#include "common.cuh"

constexpr int group_size = 32, groups = 4, block_size = groups * group_size, orders = 3;
template <typename T> constexpr int widest = sizeof(T) == 4 ? 32 : 55;  // bits of a code
constexpr unsigned escaped = ESCAPED, too_wide = 0x7FFFFFFF;  // the latter is of no stream
constexpr double whole = 6755399441055744;  // 1.5 * 2^52: x + whole has x, rounded, in its low bits

template <typename T> struct Integer;
template <> struct Integer<float> {
    using Word = unsigned int;
    using Signed = int;
};
template <> struct Integer<double> {
    using Word = unsigned long long;
    using Signed = long long;
};
template <typename T> using Word = typename Integer<T>::Word;

template <typename W> __device__ inline W zigzag(W x) { return (x << 1) ^ (0 - (x >> (8 * sizeof(W) - 1))); }
template <typename W> __device__ inline W unzigzag(W x) { return (x >> 1) ^ (0 - (x & 1)); }

__device__ inline int order_of(unsigned header) { return 1 + (header & 3); }
__device__ inline unsigned begun_in(unsigned header) { return (header >> 4 & 7) << 1 | 1; }  // a bit per group
__device__ inline int width_of(unsigned header, int number) { return header >> (7 + 6 * number) & 63; }

template <typename T> __device__ inline int first_bytes(unsigned header) {
    const int size = header >> 2 & 3;
    return size ? sizeof(T) >> (3 - size) : 0;
}

__device__ inline unsigned header_at(const unsigned char* codes, long long b) {
    codes += 4 * b;
    return codes[0] | codes[1] << 8 | codes[2] << 16 | (unsigned)codes[3] << 24;
}

__device__ inline void put_header(unsigned header, unsigned char* codes, long long b) {
    if (threadIdx.x % warp_size < 4) codes[4 * b + threadIdx.x % warp_size] = header >> (8 * (threadIdx.x % warp_size));
}

// A lane's elements. Loops over them are unrolled: an index known at run time alone would keep them in local memory.
template <typename W> struct Lane {
    W of[groups];
};

__device__ inline long long first_block() { return grid_index() / warp_size; }
__device__ inline long long block_step() { return grid_size() / warp_size; }
__device__ inline int lane_index() { return threadIdx.x % warp_size; }

template <typename W> __device__ inline W any_lane(W value) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    const unsigned low = __reduce_or_sync(all_lanes, (unsigned)value);
    if constexpr (sizeof(W) == 4) return low;
    else return (W)__reduce_or_sync(all_lanes, (unsigned)(value >> 32)) << 32 | low;
#else
    for (int lanes = 1; lanes < warp_size; lanes *= 2) value |= __shfl_xor_sync(all_lanes, value, lanes);
    return value;
#endif
}

// The values of a block; those behind the last one are as it is.
template <typename T> __device__ inline Lane<T> values_of(const T* x, long long begin, long long n) {
    Lane<T> values;
#pragma unroll
    for (int g = 0; g < groups; ++g) values.of[g] = x[min(begin + g * group_size + lane_index(), n - 1)];
    return values;
}

// ---- bytes of a block

template <typename T> __device__ inline void write_plain(const Lane<T>& values, long long begin, long long n,
                                                         unsigned char* out) {
#pragma unroll
    for (int g = 0; g < groups; ++g) {
        const int i = lane_index() + g * group_size;
        const Word<T> bits = (Word<T>)Real<T>::bits(values.of[g]);
        if (begin + i < n)
            for (int byte = 0; byte < (int)sizeof(T); ++byte) out[i * sizeof(T) + byte] = bits >> (8 * byte);
    }
}

template <typename T> __device__ inline Lane<T> read_plain(const unsigned char* in, long long begin, long long n) {
    Lane<T> values;
#pragma unroll
    for (int g = 0; g < groups; ++g) {
        const int i = lane_index() + g * group_size;
        Word<T> bits = 0;
        if (begin + i < n)
            for (int byte = 0; byte < (int)sizeof(T); ++byte) bits |= (Word<T>)in[i * sizeof(T) + byte] << (8 * byte);
        values.of[g] = Real<T>::value(bits);
    }
    return values;
}

__device__ inline int bits_of_word(unsigned long long word) { return 64 - __clzll((long long)word); }

template <typename W> __device__ inline int bits_in_group(W code) { return bits_of_word(any_lane<W>(zigzag(code))); }

// To an order higher; the first difference is 0.
template <typename W> __device__ inline void raise(Lane<W>& x) {
    W last = __shfl_sync(all_lanes, x.of[0], 0);
#pragma unroll
    for (int g = 0; g < groups; ++g) {
        const W below = __shfl_up_sync(all_lanes, x.of[g], 1), end = __shfl_sync(all_lanes, x.of[g], group_size - 1);
        x.of[g] -= lane_index() ? below : last;
        last = end;
    }
}

// Differences of an order; as many elements as the order are 0.
template <typename W> __device__ inline Lane<W> differences_of(Lane<W> x, int order) {
    for (int k = 0; k < order; ++k) raise(x);
    if (lane_index() < order) x.of[0] = 0;
    return x;
}

// A block's integers as differences of an order, in which the groups of `begun` begin anew; without `out`, its header.
template <typename T>
__device__ inline unsigned write_integers(const Lane<Word<T>>& q, int order, unsigned begun, unsigned char* out) {
    using W = Word<T>;
    Lane<W> codes = differences_of(q, order);
    // A lane k below the order has the first numbers of order k.
    Lane<W> firsts;
    W all = 0;
    unsigned header = order - 1 | (begun >> 1) << 4;
#pragma unroll
    for (int g = 0; g < groups; ++g) {
        const W at_0 = __shfl_sync(all_lanes, q.of[g], 0), at_1 = __shfl_sync(all_lanes, q.of[g], 1);
        const W at_2 = __shfl_sync(all_lanes, q.of[g], 2);
        const int lane = lane_index();
        firsts.of[g] = zigzag(lane == 0 ? at_0 : lane == 1 ? at_1 - at_0 : at_2 - 2 * at_1 + at_0);
        if (begun >> g & 1 && lane < order) {
            codes.of[g] = 0;
            all |= firsts.of[g];
        }
        const int bits = bits_in_group(codes.of[g]);
        header |= (unsigned)bits << (7 + 6 * g);
        if (bits > widest<T>) return too_wide;
    }
    const int most = bits_of_word(any_lane<W>(all)), quarter = 2 * sizeof(T);
    header |= (unsigned)((most > 0) + (most > quarter) + (most > 2 * quarter)) << 2;
    if (!out) return header;
    const int bytes = first_bytes<T>(header);
#pragma unroll
    for (int g = 0; g < groups; ++g) {
        if (!(begun >> g & 1)) continue;
        if (lane_index() < order)
            for (int byte = 0; byte < bytes; ++byte) out[lane_index() * bytes + byte] = firsts.of[g] >> (8 * byte);
        out += order * bytes;
    }
#pragma unroll
    for (int g = 0; g < groups; ++g)
        for (int first = 0; first < width_of(header, g); first += warp_size) {  // a plane a lane
            const int planes = min(width_of(header, g) - first, warp_size);
            unsigned own = 0;
            for (int p = 0; p < planes; ++p) {
                const unsigned plane = __ballot_sync(all_lanes, (unsigned)(codes.of[g] >> (first + p)) & 1);
                if (lane_index() == p) own = plane;
            }
            if (lane_index() < planes)
                for (int byte = 0; byte < 4; ++byte) out[4 * lane_index() + byte] = own >> (8 * byte);
            out += 4 * planes;
        }
    return header;
}

// The header of a block of integers, in the order that makes it short.
template <typename T> __device__ inline unsigned shortest(const Lane<Word<T>>& q) {
    constexpr int cost = sizeof(T) / 2;
    Lane<Word<T>> x = q;
    int least = 0, best = 0;
    unsigned begun = 1;
    for (int order = 1; order <= orders; ++order) {
        raise(x);
        int total = order * cost;
        unsigned anew = 1;
#pragma unroll
        for (int g = 0; g < groups; ++g) {
            const int narrow = bits_in_group(lane_index() < order ? 0 : x.of[g]), all = bits_in_group(x.of[g]);
            total += 4 * narrow;
            if (4 * (all - narrow) > order * cost) anew |= 1u << g;
        }
        if (best && total >= least) continue;
        least = total;
        best = order;
        begun = anew;
    }
    return write_integers<T>(q, best, begun, nullptr);
}

template <typename T> __device__ inline Word<T> read_first(int bytes, const unsigned char* in) {
    Word<T> first = 0;
    for (int byte = 0; byte < bytes; ++byte) first |= (Word<T>)in[byte] << (8 * byte);
    return unzigzag(first);
}

template <typename T> __device__ inline Lane<Word<T>> read_integers(unsigned header, const unsigned char* in) {
    const int lane = lane_index(), order = order_of(header), bytes = first_bytes<T>(header);
    const unsigned begun = begun_in(header);
    Lane<Word<T>> x = {};
    const unsigned char* planes = in + __popc(begun) * order * bytes;
#pragma unroll
    for (int g = 0; g < groups; ++g) {
        const int width = width_of(header, g);
        for (int first = 0; first < width; first += warp_size) {  // a plane a lane
            const int count = min(width - first, warp_size);
            const unsigned own = lane < count ? header_at(planes, lane) : 0;
            for (int bit = first; bit < first + count; ++bit) {
                const Word<T> one = __shfl_sync(all_lanes, own, bit - first) >> lane & 1;
                x.of[g] |= (bit < width - 1 ? one : 0 - one) << bit;
            }
            planes += 4 * count;
        }
    }
    for (int k = order; k-- > 0;) {
        const unsigned char* first = in + k * bytes;
        Word<T> start = 0, last = 0;
#pragma unroll
        for (int g = 0; g < groups; ++g) {
            const bool anew = begun >> g & 1;
            if (anew) {
                last = start = read_first<T>(bytes, first);
                first += order * bytes;
            }
            x.of[g] = last + running_sum(x.of[g]);
            last = __shfl_sync(all_lanes, x.of[g], group_size - 1);
            if (anew && lane < k) x.of[g] -= start;
        }
    }
    return x;
}

// A block's values in float64.
template <typename T> __device__ inline Lane<double> read_values(unsigned header, const unsigned char* in,
                                                                 long long begin, long long n, double step) {
    Lane<double> values;
    if (header == escaped) {
        const Lane<T> plain = read_plain<T>(in, begin, n);
#pragma unroll
        for (int g = 0; g < groups; ++g) values.of[g] = plain.of[g];
        return values;
    }
    const Lane<Word<T>> q = read_integers<T>(header, in);
#pragma unroll
    for (int g = 0; g < groups; ++g) values.of[g] = (double)(typename Integer<T>::Signed)q.of[g] * step;
    return values;
}

// ---- kernels; without `starts` only headers are written, else the bytes of blocks, from their starts on

// False if the value is too large, not finite, or too far from its grid point.
template <typename T> __device__ inline bool quantise(T value, double bound, double step, double inverse,
                                                      double largest, Word<T>* q) {
    const double wide = value, scaled = wide * inverse, up = scaled + whole, off = wide - (up - whole) * step;
    *q = (Word<T>)((unsigned long long)__double_as_longlong(up) - (unsigned long long)__double_as_longlong(whole));
    return scaled <= largest && scaled >= -largest && off <= bound && off >= -bound;
}

template <typename T>
__global__ void encode_blocks(const T* x, long long n, double bound, double step, double inverse, double largest,
                              unsigned char* headers, const long long* starts, unsigned char* codes) {
    for (long long b = first_block(); b * block_size < n; b += block_step()) {
        const Lane<T> values = values_of(x, b * block_size, n);
        Lane<Word<T>> q;
        bool close = true;
#pragma unroll
        for (int g = 0; g < groups; ++g) close &= quantise(values.of[g], bound, step, inverse, largest, &q.of[g]);
        if (!starts) {
            put_header(any_lane<unsigned>(!close) ? escaped : shortest<T>(q), headers, b);
            continue;
        }
        const unsigned header = header_at(headers, b);
        if (header == escaped) write_plain(values, b * block_size, n, codes + starts[b]);
        else write_integers<T>(q, order_of(header), begun_in(header), codes + starts[b]);
    }
}

// Bytes of a block; -1 for a header that no stream has.
template <typename T> __device__ inline int bytes_of(unsigned header, int elements) {
    if (header == escaped) return elements * sizeof(T);
    bool known = (header & 3) < orders && header >> 31 == 0;
    int bits = 0;
#pragma unroll
    for (int g = 0; g < groups; ++g) known &= width_of(header, g) <= widest<T>, bits += width_of(header, g);
    return known ? order_of(header) * __popc(begun_in(header)) * first_bytes<T>(header) + 4 * bits : -1;
}

// sizes[0] = the bytes of all headers, sizes[1 + b] those of block b: their running sums are the blocks' starts.
// found: their sum, how many blocks are escaped, and how many headers no stream has; zero at first.
template <typename T>
__global__ void measure_blocks(const unsigned char* headers, long long blocks, long long n, long long* sizes,
                               unsigned long long* found) {
    unsigned long long own[3] = {};
    if (grid_index() == 0) own[0] = sizes[0] = 4 * blocks;
    for (long long b = grid_index(); b < blocks; b += grid_size()) {
        const unsigned header = header_at(headers, b);
        const int bytes = bytes_of<T>(header, (int)min(n - b * block_size, (long long)block_size));
        sizes[1 + b] = bytes;
        own[0] += bytes, own[1] += header == escaped, own[2] += bytes < 0;
    }
#pragma unroll
    for (int k = 0; k < 3; ++k)
        if (const unsigned long long sum = block_sum(own[k]); sum) atomicAdd(&found[k], sum);  // of thread 0
}

// Stream s is at streams[s], its block b at starts_of[s * blocks + b] there.
template <typename T>
__global__ void sum_blocks(const unsigned long long* streams, const long long* starts_of, long long count, long long n,
                           double step, unsigned char* headers, const long long* starts, unsigned char* codes) {
    const long long blocks = (n + block_size - 1) / block_size;
    for (long long b = first_block(); b < blocks; b += block_step()) {
        const auto stream = [=](long long s) { return (const unsigned char*)streams[s]; };
        bool plain = false, varying = false;
        int order = orders;
        unsigned begun = 1;
        for (long long s = 0; s < count; ++s) {
            const unsigned header = header_at(stream(s), b);
            plain |= header == escaped;
            if ((header & ~12u) == 0) continue;  // constant
            order = min(order, order_of(header));
            begun |= begun_in(header);
            varying = true;
        }
        if (plain && !starts) {
            put_header(escaped, headers, b);
        } else if (plain) {
            Lane<double> total = {};
            for (long long s = 0; s < count; ++s) {
                const unsigned char* in = stream(s) + starts_of[s * blocks + b];
                const Lane<double> more = read_values<T>(header_at(stream(s), b), in, b * block_size, n, step);
#pragma unroll
                for (int g = 0; g < groups; ++g) total.of[g] = s ? total.of[g] + more.of[g] : more.of[g];
            }
            Lane<T> rounded;
#pragma unroll
            for (int g = 0; g < groups; ++g) rounded.of[g] = (T)total.of[g];
            write_plain<T>(rounded, b * block_size, n, codes + starts[b]);
        } else {
            Lane<Word<T>> total = {};
            for (long long s = 0; s < count; ++s) {
                const unsigned char* in = stream(s) + starts_of[s * blocks + b];
                const Lane<Word<T>> more = read_integers<T>(header_at(stream(s), b), in);
#pragma unroll
                for (int g = 0; g < groups; ++g) total.of[g] += more.of[g];
            }
            unsigned char* const out = starts ? codes + starts[b] : nullptr;
            const unsigned header = write_integers<T>(total, varying ? order : 1, begun, out);
            if (!starts) put_header(header, headers, b);
        }
    }
}

template <typename T>
__global__ void decode_blocks(const unsigned char* codes, const long long* starts, long long n, double step,
                              double divisor, T* out) {
    for (long long b = first_block(); b * block_size < n; b += block_step()) {
        const Lane<double> values = read_values<T>(header_at(codes, b), codes + starts[b], b * block_size, n, step);
#pragma unroll
        for (int g = 0; g < groups; ++g) {
            const long long at = b * block_size + g * group_size + lane_index();
            if (at < n) out[at] = (T)(values.of[g] / divisor);
        }
    }
}
