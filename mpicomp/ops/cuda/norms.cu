// One number a group. Groups are cut into pieces, one block each, so that few long groups keep a device as busy as many
// short ones: group g has the pieces [starts[g], starts[g + 1]), numbered through. The launchers finish the sums.
#include "common.cuh"
#include "groups.cuh"

constexpr int piece = 16384;  // elements

// *invalid is set where bounds do not ascend from 0 to n.
__global__ void check_bounds(const long long* bounds, long long count, long long n, int* invalid) {
    for (long long g = grid_index(); g <= count; g += grid_size())
        if (g < count ? bounds[g + 1] < bounds[g] : bounds[0] != 0 || bounds[count] != n) *invalid = 1;
}

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

// What a block works on: its group, and the elements of its piece. False for blocks beyond the last piece.
struct Piece {
    long long group, begin, end;

    __device__ bool find(const long long* bounds, const long long* starts, long long count) {
        if (count == 0 || blockIdx.x >= starts[count]) return false;
        group = group_of(starts, count, blockIdx.x);
        begin = bounds[group] + (blockIdx.x - starts[group]) * piece;
        end = min(begin + piece, bounds[group + 1]);
        return true;
    }
};

// sums[row * gridDim.x + b] = the sums of piece b.
template <typename T, typename Term>
__global__ void sum_pieces(const T* x, const long long* bounds, const long long* starts, long long count,
                           double* sums) {
    Piece mine;
    if (!mine.find(bounds, starts, count)) return;
    double partial[Term::rows] = {};
    for (long long i = mine.begin + threadIdx.x; i < mine.end; i += threads)
        Term::add(x[i], Real<T>::bits(x[i]) < 0, partial);
#pragma unroll
    for (int row = 0; row < Term::rows; ++row) {
        const double sum = block_sum(partial[row]);
        if (threadIdx.x == 0) sums[(long long)row * gridDim.x + blockIdx.x] = sum;
    }
}

// totals[row * count + g] = the sum of group g's pieces, always in the same order. One block a group and row.
__global__ void add_pieces(const double* sums, long long pieces, const long long* starts, long long count,
                           double* totals) {
    const long long row = blockIdx.x / count, g = blockIdx.x % count;
    double partial = 0;
    for (long long p = starts[g] + threadIdx.x; p < starts[g + 1]; p += threads) partial += sums[row * pieces + p];
    const double total = block_sum(partial);
    if (threadIdx.x == 0) totals[row * count + g] = total;
}

// keys[g] = the largest magnitude of group g, as bits; begins as 0.
template <typename T>
__global__ void group_maxima(const T* x, const long long* bounds, const long long* starts, long long count,
                             Bits<T>* keys) {
    Piece mine;
    if (!mine.find(bounds, starts, count)) return;
    Bits<T> key = 0;
    for (long long i = mine.begin + threadIdx.x; i < mine.end; i += threads) key = max(key, magnitude(x[i]));
    for (int offset = warp_size / 2; offset; offset /= 2) key = max(key, __shfl_down_sync(all_lanes, key, offset));
    if (threadIdx.x % warp_size == 0) atomicMax(&keys[mine.group], key);
}
