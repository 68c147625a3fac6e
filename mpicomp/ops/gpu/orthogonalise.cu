// Orthonormal columns: Q of p = Q R by Householder reflections in float64, for many matrices of few columns in one launch.
// A block takes a matrix, a thread every threads-th of its rows; all columns that are left get a reflection in one pass.
// Instances: orthogonalise<REAL, RANK>
#include "common.cuh"

constexpr double tiny = 1e-200;  // a sum of squares below has lost digits to underflow

constexpr int line = threads + 1;  // one longer, against conflicts

struct Sum {
    static __device__ double of(double a, double b) { return a + b; }
};
struct Largest {
    static __device__ double of(double a, double b) { return a > b ? a : b; }
};

// values[c] = the sum (or largest) over the block, the same bits in all threads, which must all call it. In three rounds
// through shared memory of width * line: few exchanges, however many values.
template <typename Op, int width> __device__ inline void over_block(double (&values)[width], double* of_thread) {
    constexpr int some = 16;  // a thread adds up so many
    __syncthreads();  // earlier results have been read
#pragma unroll
    for (int c = 0; c < width; ++c) of_thread[c * line + threadIdx.x] = values[c];
    for (int left = threads; left > 1; left /= some) {
        __syncthreads();
        const int c = threadIdx.x / (left / some), part = threadIdx.x % (left / some);
        double* own = of_thread + c * line;
        if (c < width)  // reads and writes places that are no other thread's in this round
            for (int j = 1; j < some; ++j) own[part] = Op::of(own[part], own[j * (left / some) + part]);
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < width; ++c) values[c] = of_thread[c * line];
}

// A matrix as the threads of a block see it: column c of row i is at[i * rank + c].
struct Matrix {
    long long rows;
    int rank;
    double *at, *shared;  // shared: what the block needs to add up
    // f(i, row i) of every row of this thread's from `begin` on, which is at most the rank and so below `threads`.
    template <typename F> __device__ void each_row(long long begin, F f) const {
        for (long long i = threadIdx.x < begin ? threadIdx.x + threads : threadIdx.x; i < rows; i += threads)
            f(i, at + i * rank);
    }
};

// totals[c] = sum over rows i > k of a[i][k] b[i][c], for c >= k; top[c] = b[k][c] for all threads.
template <int width>
__device__ inline void products_below(const Matrix& a, const Matrix& b, int k, double (&totals)[width], double* top) {
#pragma unroll
    for (int c = 0; c < width; ++c) totals[c] = 0;
    __syncthreads();  // top has been read
    if (threadIdx.x == k)
        for (int c = k; c < a.rank; ++c) top[c] = b.at[k * a.rank + c];
    a.each_row(k + 1, [&](long long i, const double* row) {
        const double* other = b.at + i * b.rank;
#pragma unroll
        for (int c = 0; c < width; ++c)
            if (c >= k && c < a.rank) totals[c] += row[k] * other[c];
    });
    over_block<Sum>(totals, a.shared);
}

// Column k of a from row k on, brought to a largest entry of 1; false if it is zero.
__device__ inline bool scale_column(const Matrix& a, int k) {
    double largest[1] = {0};
    a.each_row(k, [&](long long, const double* row) { largest[0] = Largest::of(fabs(row[k]), largest[0]); });
    over_block<Largest>(largest, a.shared);
    if (!(largest[0] > 0)) return false;
    a.each_row(k, [&](long long, double* row) { row[k] /= largest[0]; });
    return true;
}

// values[k], which stay in registers.
template <int width> __device__ inline double entry(const double (&values)[width], int k) {
    double found = 0;
#pragma unroll
    for (int c = 0; c < width; ++c)
        if (c == k) found = values[c];
    return found;
}

// I - tau v v^T brings column k to the diagonal; v (v[k] = 1) takes its place. sign: of the diagonal of R that is left.
template <int width> __device__ inline void reflect(const Matrix& a, int k, double* top, double* tau, double* sign) {
    double totals[width];
    products_below(a, a, k, totals, top);
    if (!(top[k] * top[k] + entry(totals, k) >= tiny) && scale_column(a, k)) products_below(a, a, k, totals, top);
    const double first = top[k], below = entry(totals, k);
    const double beta = below == 0 ? first : -copysign(sqrt(first * first + below), first);
    const double factor = below == 0 ? 0 : 1 / (first - beta), weight = below == 0 ? 0 : (beta - first) / beta;
    a.each_row(k + 1, [&](long long, double* row) {
        const double v = row[k] * factor;
        row[k] = v;
#pragma unroll
        for (int c = 0; c < width; ++c)
            if (c > k && c < a.rank) row[c] -= weight * (top[c] + totals[c] * factor) * v;
    });
    if (threadIdx.x == 0) tau[k] = weight, sign[k] = beta < 0 ? -1 : 1;
}

// q: the first columns of the product of all reflections.
template <int width> __device__ inline void apply_back(const Matrix& a, const Matrix& q, int k, double* top, double tau) {
    double totals[width];
    products_below(a, q, k, totals, top);
#pragma unroll
    for (int c = 0; c < width; ++c)
        if (c >= k && c < a.rank) totals[c] = tau * (top[c] + totals[c]);
    q.each_row(k, [&](long long i, double* row) {
        const double v = i == k ? 1 : a.at[i * q.rank + k];
#pragma unroll
        for (int c = 0; c < width; ++c)
            if (c >= k && c < a.rank) row[c] -= totals[c] * v;
    });
}

// p: the matrices one behind another, from bounds[m] on, with ranks[m] columns. work: twice as many elements as p has.
template <typename T, int width>
__global__ void orthogonalise(T* p, const long long* bounds, const long long* ranks, long long count, double* work) {
    __shared__ double top[width], tau[width], sign[width], shared[width * line];
    for (long long m = blockIdx.x; m < count; m += gridDim.x) {
        const int rank = (int)ranks[m];
        const long long size = bounds[m + 1] - bounds[m];
        T* own = p + bounds[m];
        const Matrix a = {size / rank, rank, work + 2 * bounds[m], shared}, q = {a.rows, rank, a.at + size, shared};
        double largest[width] = {};  // a column's scale is no part of its direction, and its square may overflow
        a.each_row(0, [&](long long i, const double*) {
#pragma unroll
            for (int c = 0; c < width; ++c)
                if (c < rank) largest[c] = Largest::of(fabs((double)own[i * rank + c]), largest[c]);
        });
        over_block<Largest>(largest, a.shared);
        a.each_row(0, [&](long long i, double* row) {
#pragma unroll
            for (int c = 0; c < width; ++c)
                if (c < rank) row[c] = largest[c] > 0 ? own[i * rank + c] / largest[c] : own[i * rank + c];
        });
        for (int k = 0; k < rank; ++k) reflect<width>(a, k, top, tau, sign);
        __syncthreads();  // all signs are there
        q.each_row(0, [&](long long i, double* row) {
            for (int c = 0; c < rank; ++c) row[c] = i == c ? sign[c] : 0;
        });
        for (int k = rank; k-- > 0;) apply_back<width>(a, q, k, top, tau[k]);
        q.each_row(0, [&](long long i, const double* row) {
            for (int c = 0; c < rank; ++c) own[i * rank + c] = (T)row[c];
        });
        __syncthreads();  // signs have been read
    }
}
