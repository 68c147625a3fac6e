// One number a group. A long group is cut into pieces, a block each, so that few long groups keep a device as busy as
// many short ones; a short one has no pieces: a team of neighbouring threads takes all of it. Group g has the pieces
// [starts[g], starts[g + 1]), numbered through, of `piece` elements each; its last is longer by what is left.
// Instances: sum_pieces<REAL, Square|Magnitude|Signs>
// Instances: sum_groups<REAL, Norm|CappedNorm|Limit|MeanMagnitude|Means>
// Instances: group_maxima<REAL>
#include "common.cuh"
#include "groups.cuh"

constexpr int piece = GROUP_PIECE;  // elements

struct Square {
    static constexpr int rows = 1;
    static __device__ void add(double value, bool, double* sums) { sums[0] += value * value; }
};

struct Magnitude {
    static constexpr int rows = 1;
    static __device__ void add(double value, bool negative, double* sums) { sums[0] += negative ? -value : value; }
};

struct Signs {  // the sum of those with the sign bit set, of the others, and how many have it set
    static constexpr int rows = 3;
    static __device__ void add(double value, bool negative, double* sums) {
        sums[0] += negative ? value : 0;  // constant places, so that the sums stay in registers
        sums[1] += negative ? 0 : value;
        sums[2] += negative;
    }
};

// What becomes of a group's sums: written to out[g], of some also to other[g].

struct Norm : Square {
    template <typename T> static __device__ void finish(const double* sums, double, double, long long g, T* out, T*) {
        out[g] = (T)sqrt(sums[0]);
    }
};

struct CappedNorm : Square {  // at most the largest number
    template <typename T> static __device__ void finish(const double* sums, double, double, long long g, T* out, T*) {
        const T norm = (T)sqrt(sums[0]);
        out[g] = norm == Real<T>::value(Real<T>::infinity) ? Real<T>::value(Real<T>::infinity - 1) : norm;
    }
};

struct Limit : Square {  // out[g] if it is not above so many root mean squares; NaN on either side gives NaN
    template <typename T>
    static __device__ void finish(const double* sums, double size, double factor, long long g, T* out, T*) {
        const T limit = (T)(factor * (double)(T)sqrt(sums[0]) / sqrt(size)), was = out[g];
        out[g] = was < limit || was != was ? was : limit;
    }
};

struct MeanMagnitude : Magnitude {
    template <typename T>
    static __device__ void finish(const double* sums, double size, double, long long g, T* out, T*) {
        out[g] = (T)(sums[0] / size);
    }
};

struct Means : Signs {
    template <typename T>
    static __device__ void finish(const double* sums, double size, double, long long g, T* out, T* other) {
        out[g] = (T)(sums[0] / max(sums[2], 1.0));
        other[g] = (T)(sums[1] / max(size - sums[2], 1.0));
    }
};

// f(piece, group, begin, end) for every piece of a long group: by whole blocks.
template <typename F>
__device__ inline void each_piece(const long long* bounds, const long long* starts, long long count, F f) {
    for (long long p = blockIdx.x; p < starts[count]; p += gridDim.x) {
        const long long g = group_of(starts, count, p), begin = bounds[g] + (p - starts[g]) * piece;
        f(p, g, begin, p + 1 < starts[g + 1] ? begin + piece : bounds[g + 1]);
    }
}

// A team has `team` threads: a power of two up to a warp, or a block, of which the first warp reads. A thread's group, the
// first team's being `first`, and what it reads of it: elements begin, begin + step, ... before end; none of a long one.
struct Share {
    long long group, begin, end;
    int step;
    bool leads, is_long;  // of its team the thread that writes; whether the group has pieces

    __device__ Share(const long long* bounds, const long long* starts, long long count, long long first, int team) {
        const int lane = threadIdx.x % team;
        group = first + threadIdx.x / team;
        step = min(team, warp_size);
        const bool there = group < count;
        leads = there && lane == 0;
        is_long = there && starts[group] < starts[group + 1];
        const bool reads = there && !is_long && lane < step;
        begin = reads ? bounds[group] + lane : 0;
        end = reads ? bounds[group + 1] : 0;
    }
};

// sums[row * pieces + p] = the sums of piece p.
template <typename T, typename Term>
__global__ void sum_pieces(const T* x, const long long* bounds, const long long* starts, long long count,
                           long long pieces, double* sums) {
    each_piece(bounds, starts, count, [=](long long p, long long, long long begin, long long end) {
        double partial[Term::rows] = {};
        for (long long i = begin + threadIdx.x; i < end; i += threads) Term::add(x[i], Real<T>::bits(x[i]) < 0, partial);
#pragma unroll
        for (int row = 0; row < Term::rows; ++row) {
            const double sum = block_sum(partial[row]);
            if (threadIdx.x == 0) sums[row * pieces + p] = sum;
        }
    });
}

// The sum of what the pieces of group g have, by the block, always in the same order; right in thread 0.
__device__ inline double sum_of_pieces(const double* sums, const long long* starts, long long g) {
    double partial = 0;
    for (long long p = starts[g] + threadIdx.x; p < starts[g + 1]; p += threads) partial += sums[p];
    return block_sum(partial);
}

// What `Kind` makes of the sums of group g, which are always added in the same order: of a short one by its team, of a long
// one, by the block, from the sums of its pieces.
template <typename T, typename Kind>
__global__ void sum_groups(const T* x, const long long* bounds, const long long* starts, long long count, int team,
                           long long pieces, const double* sums, double factor, T* out, T* other) {
    __shared__ int waiting[threads], number;  // the block's long groups, counted from its first; in no order
    const int teams = threads / team;
    const auto finish = [=](const double* totals, long long g) {
        Kind::finish(totals, (double)max(bounds[g + 1] - bounds[g], 1ll), factor, g, out, other);
    };
    for (long long first = (long long)blockIdx.x * teams; first < count; first += (long long)gridDim.x * teams) {
        if (threadIdx.x == 0) number = 0;
        __syncthreads();
        const Share mine(bounds, starts, count, first, team);
        double partial[Kind::rows] = {};
        const auto add = [&](T value) { Kind::add(value, Real<T>::bits(value) < 0, partial); };
        long long i = mine.begin;
        for (const int step = mine.step; i + 3 * step < mine.end; i += 4 * step) {  // four reads do not wait for each other
            const T values[4] = {x[i], x[i + step], x[i + 2 * step], x[i + 3 * step]};
#pragma unroll
            for (int j = 0; j < 4; ++j) add(values[j]);
        }
#pragma unroll 1
        for (; i < mine.end; i += mine.step) add(x[i]);
#pragma unroll
        for (int row = 0; row < Kind::rows; ++row)
            for (int offset = mine.step / 2; offset; offset /= 2)
                partial[row] += __shfl_down_sync(all_lanes, partial[row], offset, mine.step);
        if (mine.leads && !mine.is_long) finish(partial, mine.group);
        if (mine.leads && mine.is_long) waiting[atomicAdd(&number, 1)] = threadIdx.x / team;
        __syncthreads();
        for (int w = 0; w < number; ++w) {
            const long long g = first + waiting[w];
            double totals[Kind::rows];
#pragma unroll
            for (int row = 0; row < Kind::rows; ++row) totals[row] = sum_of_pieces(sums + row * pieces, starts, g);
            if (threadIdx.x == 0) finish(totals, g);
        }
        __syncthreads();  // `number` has been read
    }
}

// keys[g] = the largest magnitude of group g, as bits; that of a long one begins as 0.
template <typename T>
__global__ void group_maxima(const T* x, const long long* bounds, const long long* starts, long long count, int team,
                             Bits<T>* keys) {
    each_piece(bounds, starts, count, [=](long long, long long g, long long begin, long long end) {
        Bits<T> key = 0;
        for (long long i = begin + threadIdx.x; i < end; i += threads) key = max(key, magnitude(x[i]));
        for (int offset = warp_size / 2; offset; offset /= 2) key = max(key, __shfl_down_sync(all_lanes, key, offset));
        if (threadIdx.x % warp_size == 0) atomicMax(&keys[g], key);
    });
    const int teams = threads / team;
    for (long long first = (long long)blockIdx.x * teams; first < count; first += (long long)gridDim.x * teams) {
        const Share mine(bounds, starts, count, first, team);
        Bits<T> key = 0;
        for (long long i = mine.begin; i < mine.end; i += mine.step) key = max(key, magnitude(x[i]));
        for (int offset = mine.step / 2; offset; offset /= 2)
            key = max(key, __shfl_down_sync(all_lanes, key, offset, mine.step));
        if (mine.leads && !mine.is_long) keys[mine.group] = key;
    }
}
