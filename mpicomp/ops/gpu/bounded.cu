// Error-bounded codes: integers on a grid in blocks of 64, their differences in bit planes; see oracle/bounded.py.
// A warp takes a block; lane l has its elements l and l + 32.
// Instances: encode_blocks sum_blocks decode_blocks<REAL>
#include "common.cuh"

constexpr int block_size = 64, escaped = ESCAPED;
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

template <typename T> __device__ inline int first_bytes(int header) {
    return header >> 6 ? sizeof(T) >> (3 - (header >> 6)) : 0;
}

__device__ constexpr int fields[] = {0, 33, 50, 63};  // first low bits of a header for each order of differences
constexpr int shortest = 3;  // bits of second differences, from which third ones are not tried

__device__ inline int order_of(int header) {
    return 1 + ((header & 63) >= fields[1]) + ((header & 63) >= fields[2]);
}

// Bits of a code for the low bits of a header, counted from its order's first; those of float64 above 27 are steps.
template <typename T> __device__ inline int bits_of_field(int order, int field) {
    return sizeof(T) == 8 && order == 1 && field > 27 ? 27 + (field - 27) * 26 / 5 : field;
}

template <typename T> __device__ inline int field_of_bits(int order, int bits) {
    return sizeof(T) == 8 && order == 1 && bits > 27 ? 27 + ((bits - 27) * 5 + 25) / 26 : bits;
}

template <typename T> __device__ inline int width_of(int header) {
    return bits_of_field<T>(order_of(header), (header & 63) - fields[order_of(header) - 1]);
}

// Largest width of an order of differences.
template <typename T> __device__ inline int widest(int order) {
    return bits_of_field<T>(order, fields[order] - fields[order - 1] - 1);
}

// Bytes of a block before its planes.
template <typename T> __device__ inline int body_offset(int header) {
    return first_bytes<T>(header) * order_of(header);
}

template <typename T> __device__ inline int body_bytes(int header) {
    return body_offset<T>(header) + width_of<T>(header) * (block_size / 8);
}

// A lane's two of something.
template <typename W> struct Two {
    W low, high;
};

__device__ inline long long first_block() { return grid_index() / warp_size; }
__device__ inline long long block_step() { return grid_size() / warp_size; }
__device__ inline int lane_index() { return threadIdx.x % warp_size; }

template <typename W> __device__ inline W any_lane(W value, int from = 1) {
    for (int lanes = from; lanes < warp_size; lanes *= 2) value |= __shfl_xor_sync(all_lanes, value, lanes);
    return value;
}

template <typename W> __device__ inline W sum_up(W value) {
    for (int by = 1; by < warp_size; by *= 2) {
        const W below = __shfl_up_sync(all_lanes, value, by);
        if (lane_index() >= by) value += below;
    }
    return value;
}

// The values of elements l and l + 32 of a block; those behind the last one are as it is.
template <typename T> __device__ inline Two<T> values_of(const T* x, long long begin, long long n) {
    const long long at = begin + lane_index();
    return {x[min(at, n - 1)], x[min(at + warp_size, n - 1)]};
}

// ---- bytes of a block

template <typename T> __device__ inline void write_plain(Two<T> values, long long begin, long long n,
                                                         unsigned char* out) {
    for (int half = 0; half < 2; ++half) {
        const int i = lane_index() + half * warp_size;
        const Word<T> bits = (Word<T>)Real<T>::bits(half ? values.high : values.low);
        if (begin + i < n)
            for (int byte = 0; byte < (int)sizeof(T); ++byte) out[i * sizeof(T) + byte] = bits >> (8 * byte);
    }
}

template <typename T> __device__ inline Two<T> read_plain(const unsigned char* in, long long begin, long long n) {
    Word<T> bits[2] = {};
    for (int half = 0; half < 2; ++half) {
        const int i = lane_index() + half * warp_size;
        if (begin + i < n)
            for (int byte = 0; byte < (int)sizeof(T); ++byte)
                bits[half] |= (Word<T>)in[i * sizeof(T) + byte] << (8 * byte);
    }
    return {Real<T>::value(bits[0]), Real<T>::value(bits[1])};
}

constexpr int orders = 3;

// Differences of an order, with the first integers of all orders up to it. Loops over these are unrolled, and single
// ones are picked by comparison: an index known at run time alone would keep the array in local memory.
template <typename T> struct Differences {
    Word<T> firsts[orders];
    Two<Word<T>> of;
    int order;
};

// A block's header, which is 63, that no stream has, if differences are too wide; its first integers and its codes.
template <typename T> struct Coded {
    int header;
    Word<T> firsts[orders];
    Two<Word<T>> codes;
};

// Each element of a block minus the one before it, the first one minus `first`.
template <typename W> __device__ inline Two<W> differences_of(W first, Two<W> x) {
    const W middle = __shfl_sync(all_lanes, x.low, warp_size - 1);
    const W below = __shfl_up_sync(all_lanes, x.low, 1), above = __shfl_up_sync(all_lanes, x.high, 1);
    return {x.low - (lane_index() ? below : first), x.high - (lane_index() ? above : middle)};
}

template <typename W> __device__ inline int bits_in_block(Two<W> codes) {
    const unsigned long long all = any_lane<W>(codes.low | codes.high);
    int bits = 0;
    while (bits < 64 && all >> bits) ++bits;
    return bits;
}

// The high bits of a header.
template <typename T> __device__ inline int size_of(Word<T> first) {
    constexpr int quarter = 2 * sizeof(T);
    const unsigned long long bits = first;
    return ((bits > 0) + (bits >> quarter > 0) + (bits >> 2 * quarter > 0)) << 6;
}

// The sums of elements up to each, from `first` on.
template <typename W> __device__ inline Two<W> sums_of(W first, Two<W> x) {
    const W low = first + sum_up(x.low);
    return {low, __shfl_sync(all_lanes, low, warp_size - 1) + sum_up(x.high)};
}

// To an order higher: as many elements as the order are 0, and become what the first of the others is before.
template <typename T> __device__ inline void raise(Differences<T>& x) {
    const Word<T> first = __shfl_sync(all_lanes, x.of.low, x.order);
    if (lane_index() < x.order) x.of.low = first;
    x.of = differences_of(first, x.of);
#pragma unroll
    for (int k = 0; k < orders; ++k)
        if (k == x.order) x.firsts[k] = first;
    ++x.order;
}

// To the one below.
template <typename T> __device__ inline void lower(Differences<T>& x) {
    --x.order;
    const Word<T> first = x.order == 0 ? x.firsts[0] : x.order == 1 ? x.firsts[1] : x.firsts[2];
    x.of = sums_of(first, x.of);
    if (lane_index() < x.order) x.of.low -= first;
}

template <typename T> __device__ inline Coded<T> coded(const Differences<T>& x, int* bits) {
    Coded<T> block = {0, {}, {zigzag(x.of.low), zigzag(x.of.high)}};
    *bits = bits_in_block(block.codes);
    Word<T> all = 0;
#pragma unroll
    for (int k = 0; k < orders; ++k)
        if (k < x.order) all |= block.firsts[k] = zigzag(x.firsts[k]);
    block.header = size_of<T>(all) | (fields[x.order - 1] + field_of_bits<T>(x.order, *bits));
    return block;
}

// A block of integers as differences of the order that makes it short.
template <typename T> __device__ inline Coded<T> coded_shortest(Two<Word<T>> q) {
    Differences<T> x = {{}, q, 0};
    raise(x);
    int bits;
    Coded<T> best = coded(x, &bits);
    for (int order = 2; order <= orders && bits > (order == 2 ? 0 : shortest); ++order) {
        raise(x);
        const Coded<T> other = coded(x, &bits);
        if (bits > widest<T>(order) || body_bytes<T>(other.header) >= body_bytes<T>(best.header)) break;
        best = other;
    }
    return best;
}

// A block as differences of its order, or of the next lower one that they fit.
template <typename T> __device__ inline Coded<T> coded_fitting(Differences<T> x) {
    int bits;
    Coded<T> block = coded(x, &bits);
    while (bits > widest<T>(x.order)) {
        if (x.order == 1) return {63};
        lower(x);
        block = coded(x, &bits);
    }
    return block;
}

template <typename T> __device__ inline void write_integers(Coded<T> block, unsigned char* out) {
    const int lane = lane_index(), width = width_of<T>(block.header), bytes = first_bytes<T>(block.header);
#pragma unroll
    for (int k = 0; k < orders; ++k)
        if (k < order_of(block.header) && lane < bytes) out[k * bytes + lane] = block.firsts[k] >> (8 * lane);
    out += body_offset<T>(block.header);
    int shift = 0;
    for (; shift + 8 <= width; shift += 8, out += block_size) {
        out[lane] = block.codes.low >> shift;
        out[lane + warp_size] = block.codes.high >> shift;
    }
    for (int bits = 4; bits; bits /= 2) {
        if (!(width & bits)) continue;
        const unsigned mask = (1u << bits) - 1, part = lane / (8 * bits);
        const unsigned low = (unsigned)(block.codes.low >> shift), high = (unsigned)(block.codes.high >> shift);
        const unsigned plane = any_lane(((low & mask) | (high & mask) << 4) << (bits * part), 8 * bits);
        if (lane < 8 * bits) out[lane] = plane;
        out += 8 * bits;
        shift += bits;
    }
}

template <typename T> __device__ inline Word<T> read_first(int header, const unsigned char* in) {
    Word<T> first = 0;
    for (int byte = 0; byte < first_bytes<T>(header); ++byte) first |= (Word<T>)in[byte] << (8 * byte);
    return unzigzag(first);
}

template <typename T> __device__ inline Differences<T> read_differences(int header, const unsigned char* in) {
    const int lane = lane_index(), width = width_of<T>(header);
    Differences<T> x = {{}, {}, order_of(header)};
#pragma unroll
    for (int k = 0; k < orders; ++k)
        if (k < x.order) x.firsts[k] = read_first<T>(header, in + k * first_bytes<T>(header));
    Two<Word<T>> codes = {};
    in += body_offset<T>(header);
    int shift = 0;
    for (; shift + 8 <= width; shift += 8, in += block_size) {
        codes.low |= (Word<T>)in[lane] << shift;
        codes.high |= (Word<T>)in[lane + warp_size] << shift;
    }
    for (int bits = 4; bits; bits /= 2) {
        if (!(width & bits)) continue;
        const unsigned mask = (1u << bits) - 1, plane = in[lane % (8 * bits)] >> (bits * (lane / (8 * bits)));
        codes.low |= (Word<T>)(plane & mask) << shift;
        codes.high |= (Word<T>)(plane >> 4 & mask) << shift;
        in += 8 * bits;
        shift += bits;
    }
    x.of = {unzigzag(codes.low), unzigzag(codes.high)};
    return x;
}

// A block's values in float64.
template <typename T> __device__ inline Two<double> read_values(int header, const unsigned char* in, long long begin,
                                                                long long n, double step) {
    if (header == escaped) {
        const Two<T> values = read_plain<T>(in, begin, n);
        return {values.low, values.high};
    }
    Differences<T> x = read_differences<T>(header, in);
    while (x.order) lower(x);
    using Signed = typename Integer<T>::Signed;
    return {(double)(Signed)x.of.low * step, (double)(Signed)x.of.high * step};
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
        const Two<T> values = values_of(x, b * block_size, n);
        Two<Word<T>> q;
        const bool low = quantise(values.low, bound, step, inverse, largest, &q.low);
        const bool high = quantise(values.high, bound, step, inverse, largest, &q.high);
        if (any_lane<unsigned>(!(low && high))) {
            if (starts) write_plain(values, b * block_size, n, codes + starts[b]);
            else if (lane_index() == 0) headers[b] = escaped;
            continue;
        }
        const Coded<T> block = coded_shortest<T>(q);
        if (starts) write_integers(block, codes + starts[b]);
        else if (lane_index() == 0) headers[b] = block.header;
    }
}

// Stream s is at streams[s], its block b at starts_of[s * blocks + b] there.
template <typename T>
__global__ void sum_blocks(const unsigned long long* streams, const long long* starts_of, long long count, long long n,
                           double step, unsigned char* headers, const long long* starts, unsigned char* codes) {
    const long long blocks = (n + block_size - 1) / block_size;
    for (long long b = first_block(); b < blocks; b += block_step()) {
        const auto stream = [=](long long s) { return (const unsigned char*)streams[s]; };
        bool plain = false;
        int order = orders, varying = 0;
        for (long long s = 0; s < count; ++s) {
            const int header = stream(s)[b];
            plain |= header == escaped;
            if (header & 63) order = min(order, order_of(header)), ++varying;
        }
        if (plain && !starts) {
            if (lane_index() == 0) headers[b] = escaped;
        } else if (plain) {
            Two<double> total = {};
            for (long long s = 0; s < count; ++s) {
                const unsigned char* in = stream(s) + starts_of[s * blocks + b];
                const Two<double> more = read_values<T>(stream(s)[b], in, b * block_size, n, step);
                total = s ? Two<double>{total.low + more.low, total.high + more.high} : more;
            }
            write_plain<T>({(T)total.low, (T)total.high}, b * block_size, n, codes + starts[b]);
        } else {
            Differences<T> total = {{}, {}, varying ? order : 1};
            for (long long s = 0; s < count; ++s) {
                const unsigned char* in = stream(s) + starts_of[s * blocks + b];
                Differences<T> more = read_differences<T>(stream(s)[b], in);
                while (more.order > total.order) lower(more);
#pragma unroll
                for (int k = 0; k < orders; ++k)
                    if (k < more.order) total.firsts[k] += more.firsts[k];
                total.of = {total.of.low + more.of.low, total.of.high + more.of.high};
            }
            const Coded<T> block = coded_fitting(total);
            if (starts) write_integers(block, codes + starts[b]);
            else if (lane_index() == 0) headers[b] = block.header;
        }
    }
}

template <typename T>
__global__ void decode_blocks(const unsigned char* codes, const long long* starts, long long n, double step,
                              double divisor, T* out) {
    for (long long b = first_block(); b * block_size < n; b += block_step()) {
        const long long at = b * block_size + lane_index();
        const Two<double> values = read_values<T>(codes[b], codes + starts[b], b * block_size, n, step);
        if (at < n) out[at] = (T)(values.low / divisor);
        if (at + warp_size < n) out[at + warp_size] = (T)(values.high / divisor);
    }
}
