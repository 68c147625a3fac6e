// PowerSGD: products with matrices of few columns and their orthogonalisation, for many matrices in one vector at once.
// Matrices are row-major; those of few columns lie one behind another, in `p` (rows x rank) and `q` (columns x rank).
// Instances: project project_back low_rank_product<REAL, RANK>
// Instances: add_parts<REAL>
#include "common.cuh"
#include "groups.cuh"

constexpr int warps = threads / warp_size;
constexpr int panel = PANEL;     // elements of p or q that a block holds in shared memory
constexpr int longest = LONGEST; // columns that a block of `project` adds up
template <typename T> constexpr int stripe = warp_size * Pack<T>::size;  // columns of a block of the other products
template <int width> constexpr int rows_a_warp = width < 16 ? 4 : 2;     // that share what `project` loads of q

// One tile of the many matrices. table: of each of `count` matrices the number of its first tile (`count` + 1 of them),
// then where each begins in the vector, its rows, columns and rank, where its p and q begin, and where its sums go.
struct Tile {
    long long number, start, rows, columns, p, q, sums;
    int rank;
};

__device__ inline Tile tile_at(const long long* table, long long count, long long t) {
    const long long m = group_of(table, count, t);
    const long long* of = table + count + 1 + m;
    return {t - table[m], of[0], of[count], of[2 * count], of[4 * count], of[5 * count], of[6 * count], (int)of[3 * count]};
}

// Elements [at, at + size) of u of which `left` are in the row; zero beyond it. `packed`: rows begin at 16 bytes.
template <typename T>
__device__ inline Pack<T> row_pack(const T* memory, const T* grad, long long at, long long left, bool packed) {
    if (packed && left > 0) return compensated_pack(memory ? memory + at : memory, grad + at, 0);
    Pack<T> u;
#pragma unroll
    for (int e = 0; e < Pack<T>::size; ++e) u.at[e] = e < left ? compensated(memory, grad, at + e) : T(0);
    return u;
}

template <typename T> __device__ inline bool rows_aligned(const T* memory, const T* grad, const Tile& own) {
    return own.columns % Pack<T>::size == 0 && aligned(grad + own.start, memory ? memory + own.start : memory);
}

// values[0] = the sum over the lanes of value j, in the 32 / n lanes from 32 / n * j on. In every round a lane hands `half` of
// the values to one that adds up these, and takes the others: about n exchanges, not 5 n.
template <int half, typename T, int n> __device__ inline void fold(T (&values)[n], int offset) {
    if constexpr (half > 0) {  // not a loop: its places are constants, so that values stay in registers
        const bool upper = threadIdx.x & offset;
#pragma unroll
        for (int j = 0; j < half; ++j) {
            const T given = upper ? values[j] : values[j + half], kept = upper ? values[j + half] : values[j];
            values[j] = kept + __shfl_xor_sync(all_lanes, given, offset);
        }
        fold<half / 2>(values, offset / 2);
    } else
        for (; offset; offset /= 2) values[0] += __shfl_xor_sync(all_lanes, values[0], offset);
}

// sums = U q: `rows_a_warp` rows a warp, in parts of `longest` columns, which follow each other in `sums`.
template <typename T, int width>
__global__ void project(const T* memory, const T* grad, const long long* table, long long count, long long tiles,
                        const T* q, T* sums) {
    constexpr int size = Pack<T>::size, length = panel / width, line = length + size, rows = rows_a_warp<width>;
    __shared__ Pack<T> panel_of[width * line / size];  // a part of q, transposed; lines are longer, against conflicts
    T* held = panel_of[0].at;
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Tile own = tile_at(table, count, t);
        const bool packed = rows_aligned(memory, grad, own);
        const long long parts = max(1ll, (own.columns + longest - 1) / longest), part = own.number % parts;
        const long long first = (own.number / parts * warps + warp) * rows, end = min(own.columns, (part + 1) * longest);
        T total[rows * width] = {};
        for (long long begin = part * longest; begin < end; begin += length) {
            const int n = (int)min((long long)length, end - begin);
            __syncthreads();  // the held values have been used
            for (int i = threadIdx.x; i < length * width; i += threads) {
                const int j = i / width, c = i % width;
                held[c * line + j] = j < n && c < own.rank ? q[own.q + (begin + j) * own.rank + c] : T(0);
            }
            __syncthreads();
            for (int j = lane * size; j < n; j += warp_size * size) {
                Pack<T> u[rows];
#pragma unroll
                for (int i = 0; i < rows; ++i) {
                    const long long left = first + i < own.rows ? end - begin - j : 0;
                    u[i] = row_pack(memory, grad, own.start + (first + i) * own.columns + begin + j, left, packed);
                }
#pragma unroll
                for (int c = 0; c < width; ++c) {
                    const Pack<T> column = load(held + c * line + j, 0);
#pragma unroll
                    for (int i = 0; i < rows; ++i)
#pragma unroll
                        for (int e = 0; e < size; ++e) total[i * width + c] = fma(u[i].at[e], column.at[e], total[i * width + c]);
                }
            }
        }
        static_assert(rows * width <= warp_size, "no more sums than lanes");
        fold<rows * width / 2>(total, warp_size / 2);
        constexpr int sharing = warp_size / (rows * width);  // lanes that have the same sum
        const int i = lane / sharing / width, c = lane / sharing % width;
        if (lane % sharing == 0 && first + i < own.rows && c < own.rank)
            sums[own.sums + (part * own.rows + first + i) * own.rank + c] = total[0];
    }
}

// Rows [first, first + n) of p, filled up by zeros to `width` columns.
template <typename T, int width>
__device__ inline void hold_rows(const T* p, const Tile& own, long long first, int n, T* held) {
    __syncthreads();  // the held values have been used
    for (int i = threadIdx.x; i < n * width; i += threads) {
        const int c = i % width;
        held[i] = c < own.rank ? p[own.p + (first + i / width) * own.rank + c] : T(0);
    }
    __syncthreads();
}

// sums = U^T p: a block takes a stripe of the columns, in parts of panel / width rows, which follow each other in `sums`.
template <typename T, int width>
__global__ void project_back(const T* memory, const T* grad, const long long* table, long long count, long long tiles,
                             const T* p, T* sums) {
    constexpr int size = Pack<T>::size, length = panel / width;
    __shared__ T held[panel];
    static_assert(warps * stripe<T> <= panel, "the warps' sums fit in the place of the panel");
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Tile own = tile_at(table, count, t);
        const bool packed = rows_aligned(memory, grad, own);
        const long long stripes = (own.columns + stripe<T> - 1) / stripe<T>, part = own.number / stripes;
        const long long begin = own.number % stripes * stripe<T>, column = begin + lane * size, first = part * length;
        const int n = (int)min((long long)length, own.rows - first);
        hold_rows<T, width>(p, own, first, n, held);
        T total[width][size] = {};
#pragma unroll 4
        for (int i = warp; i < n; i += warps) {
            const long long at = own.start + (first + i) * own.columns + column;
            const Pack<T> u = row_pack(memory, grad, at, own.columns - column, packed);
#pragma unroll
            for (int c = 0; c < width; ++c)
#pragma unroll
                for (int e = 0; e < size; ++e) total[c][e] = fma(u.at[e], held[i * width + c], total[c][e]);
        }
        T* to = sums + own.sums + part * own.columns * own.rank;
#pragma unroll
        for (int c = 0; c < width; ++c) {
            if (c >= own.rank) break;
            __syncthreads();
#pragma unroll
            for (int e = 0; e < size; ++e) held[warp * stripe<T> + lane * size + e] = total[c][e];
            __syncthreads();
            if (threadIdx.x < stripe<T> && begin + threadIdx.x < own.columns) {
                T sum = 0;
                for (int w = 0; w < warps; ++w) sum += held[w * stripe<T> + threadIdx.x];
                to[(begin + threadIdx.x) * own.rank + c] = sum;
            }
        }
    }
}

// out = p q^T, in the tiles of `project_back`: a lane keeps its columns' rows of q.
template <typename T, int width>
__global__ void low_rank_product(const T* p, const T* q, const long long* table, long long count, long long tiles, T* out) {
    constexpr int size = Pack<T>::size, length = panel / width;
    __shared__ T held[panel];
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Tile own = tile_at(table, count, t);
        const bool packed = rows_aligned<T>(nullptr, out, own);
        const long long stripes = (own.columns + stripe<T> - 1) / stripe<T>, first = own.number / stripes * length;
        const long long column = own.number % stripes * stripe<T> + lane * size, left = own.columns - column;
        const int n = (int)min((long long)length, own.rows - first);
        hold_rows<T, width>(p, own, first, n, held);
        T right[width][size];
#pragma unroll
        for (int c = 0; c < width; ++c)
#pragma unroll
            for (int e = 0; e < size; ++e)
                right[c][e] = c < own.rank && e < left ? q[own.q + (column + e) * own.rank + c] : T(0);
        for (int i = warp; i < n; i += warps) {
            Pack<T> sum = {};
#pragma unroll
            for (int c = 0; c < width; ++c)
#pragma unroll
                for (int e = 0; e < size; ++e) sum.at[e] = fma(held[i * width + c], right[c][e], sum.at[e]);
            T* to = out + own.start + (first + i) * own.columns + column;
            if (packed && left > 0) store(to, 0, sum);
            else
                for (int e = 0; e < size && e < left; ++e) to[e] = sum.at[e];
        }
    }
}

// out = the sums of parts of matrices: table has the bounds of the `count` matrices in `out`, then where each one's parts
// begin, then how many there are.
template <typename T> __global__ void add_parts(const T* parts, const long long* table, long long count, long long n, T* out) {
    const long long *begins = table + count + 1, *numbers = begins + count;
    for (long long i = grid_index(); i < n; i += grid_size()) {
        const long long m = group_of(table, count, i), size = table[m + 1] - table[m];
        T sum = 0;
        for (long long part = 0; part < numbers[m]; ++part) sum += parts[begins[m] + part * size + i - table[m]];
        out[i] = sum;
    }
}
