// The count sketch and its estimates; random projections of rows, and the elements of rows.
// Instances: count_sketch project_rows<REAL>
// Instances: sketch_estimate<REAL, ROWS>
// Instances: row_lengths<INDEX>
// Instances: write_rows<INDEX, INDEX>
#include "common.cuh"
#include "groups.cuh"

constexpr int most_rows = MOST_ROWS;

__device__ inline unsigned long long mix(unsigned long long x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// What row `row` of the sketch makes of element i.
__device__ inline unsigned long long hash(unsigned long long i, unsigned long long seed, int row) {
    return mix(i + (seed + row + 1) * 0x9E3779B97F4A7C15ull);
}

// table[row][h mod columns] += sign(h) u[i] for every row; the table begins at zero, columns are a power of two.
template <typename T>
__global__ void count_sketch(const T* memory, const T* grad, long long n, int rows, long long columns,
                             unsigned long long seed, T* table) {
    visit(memory, grad, n, [=](long long i, T u) {
        for (int row = 0; row < rows; ++row) {
            const unsigned long long h = hash(i, seed, row);
            atomicAdd(&table[row * columns + (long long)(h & (columns - 1))], h >> 63 ? -u : u);
        }
    });
}

// Is a before b? NaN comes last.
template <typename T> __device__ inline bool ascends(T a, T b) { return b != b || a <= b; }

// The largest go up, as far as needed to know the middle; with constant `rows` the votes stay in registers.
template <typename T> __device__ inline T median(T* votes, int rows) {
#pragma unroll
    for (int settled = 0; settled <= rows / 2; ++settled)
#pragma unroll
        for (int j = 0; j + 1 < rows - settled; ++j) {
            const T a = votes[j], b = votes[j + 1];
            votes[j] = ascends(a, b) ? a : b;
            votes[j + 1] = ascends(a, b) ? b : a;
        }
    if (rows % 2) return votes[rows / 2];
    return (votes[rows / 2 - 1] + votes[rows / 2]) * T(0.5);
}

// out[i] = the median of sign(h) table[row][h mod columns]; `fixed` rows, or `rows` if it is 0.
template <typename T, int fixed>
__global__ void sketch_estimate(const T* table, int rows, long long columns, unsigned long long seed, T* out,
                                long long n) {
    const int count = fixed ? fixed : rows;
    T votes[fixed ? fixed : most_rows];
    for (long long i = grid_index(); i < n; i += grid_size()) {
#pragma unroll
        for (int row = 0; row < count; ++row) {
            const unsigned long long h = hash(i, seed, row);
            const T cell = table[row * columns + (long long)(h & (columns - 1))];
            votes[row] = h >> 63 ? -cell : cell;
        }
        out[i] = median(votes, count) + T(0);  // -0 becomes +0
    }
}

// Rows are pieces of `count` spans. out[j * width + c] = sum over p of sign(p, c) times element p of row j: a warp a row,
// `together` columns at a time.
template <typename T>
__global__ void project_rows(const T* memory, const T* grad, const long long* spans, long long count, long long row,
                             int width, unsigned long long seed, T* out) {
    constexpr int together = 8, lanes = warp_size / together;  // that end up with the same column
    const int lane = threadIdx.x % warp_size;
    for (long long j = grid_index() / warp_size; j < spans[count]; j += grid_size() / warp_size) {
        const auto [span, begin, end] = piece_in(spans, count, row, j, group_of_warp(spans, count, j));
        for (int first = 0; first < width; first += together) {
            T sums[together] = {};
            for (long long p = lane; p < end - begin; p += warp_size) {
                const unsigned long long signs = hash(p, seed, 0) >> first;
                const T u = compensated(memory, grad, begin + p);
#pragma unroll
                for (int c = 0; c < together; ++c) sums[c] += signs >> c & 1 ? -u : u;
            }
            // Two lanes that are `offset` apart exchange half of their columns: each adds up the sums of the half that it keeps.
#pragma unroll
            for (int half = together / 2, offset = warp_size / 2; half; half /= 2, offset /= 2) {
                const bool upper = lane & offset;
#pragma unroll
                for (int c = 0; c < half; ++c) {
                    const T kept = upper ? sums[half + c] : sums[c], handed = upper ? sums[c] : sums[half + c];
                    sums[c] = kept + __shfl_xor_sync(all_lanes, handed, offset);
                }
            }
            for (int offset = lanes / 2; offset; offset /= 2) sums[0] += __shfl_xor_sync(all_lanes, sums[0], offset);
            const int column = first + lane / lanes;
            if (lane % lanes == 0 && column < width) out[j * width + column] = sums[0];
        }
    }
}

// lengths[j] = how many elements row rows[j] has, for k rows.
template <typename R>
__global__ void row_lengths(const R* rows, long long k, const long long* spans, long long count, long long row,
                            long long* lengths) {
    for (long long j = grid_index(); j < k; j += grid_size()) {
        const auto [span, begin, end] = piece_of(spans, count, row, rows[j]);
        lengths[j] = end - begin;
    }
}

// Where the elements of k rows stand, one row after the other: a warp a row. until: running sums of the lengths, each row's
// own included.
template <typename R, typename I>
__global__ void write_rows(const R* rows, long long k, const long long* spans, long long count, long long row,
                           const long long* until, I* indices) {
    const int lane = threadIdx.x % warp_size;
    for (long long j = grid_index() / warp_size; j < k; j += grid_size() / warp_size) {
        const auto [span, begin, end] = piece_of(spans, count, row, rows[j]);
        I* own = indices + until[j] - (end - begin);
        for (long long p = lane; p < end - begin; p += warp_size) own[p] = (I)(begin + p);
    }
}
