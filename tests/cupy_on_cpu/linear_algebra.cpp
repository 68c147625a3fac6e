// What CuPy takes from cuBLAS and cuSOLVER for products and QR of float16, float32 and float64 matrices, by columns.
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "device.h"

namespace {

enum { fine = 0, invalid = 7, unsupported = 15 };  // of cublasStatus_t
enum Type { f32 = 0, f64 = 1, f16 = 2 };           // of cudaDataType

struct Handle {
    void* stream = nullptr;
    int on_device = 0, math = 0;  // pointer mode, math mode
};

double get(const void* from, Type type, std::ptrdiff_t at) {
    if (type == f64) return static_cast<const double*>(from)[at];
    return type == f32 ? static_cast<const float*>(from)[at] : static_cast<float>(static_cast<const _Float16*>(from)[at]);
}

void set(void* to, Type type, std::ptrdiff_t at, double value) {
    if (type == f64) static_cast<double*>(to)[at] = value;
    else if (type == f32) static_cast<float*>(to)[at] = static_cast<float>(value);
    else static_cast<_Float16*>(to)[at] = static_cast<_Float16>(value);
}

struct Matrix {
    const void* data;
    Type type;
    int stride;
    bool turned;
    double operator()(int row, int column, std::ptrdiff_t from) const {
        return get(data, type, from + (turned ? row * std::ptrdiff_t(stride) + column : column * std::ptrdiff_t(stride) + row));
    }
};

struct Factor {  // alpha or beta: the host's is read at once, the device's when its turn comes
    const void* where;
    Type type;
    bool on_device;
    double value;
    Factor(const Handle* h, const void* at, Type t) : where(at), type(t), on_device(h->on_device) {
        value = on_device ? 0 : get(at, t, 0);
    }
    double read() const { return on_device ? get(where, type, 0) : value; }
};

bool known(int type) { return type >= f32 && type <= f16; }

// C = alpha A B + beta C, so many times
int multiply(Handle* h, int turn_a, int turn_b, int m, int n, int k, Factor alpha, const void* a, int type_a, int lda,
             long long step_a, const void* b, int type_b, int ldb, long long step_b, Factor beta, void* c, int type_c, int ldc,
             long long step_c, int count) {
    if (!known(type_a) || !known(type_b) || !known(type_c)) return unsupported;
    const int rows_a = turn_a ? k : m, rows_b = turn_b ? n : k;
    if (m < 0 || n < 0 || k < 0 || lda < std::max(1, rows_a) || ldb < std::max(1, rows_b) || ldc < std::max(1, m)) return invalid;
    const Matrix left{a, Type(type_a), lda, turn_a != 0}, right{b, Type(type_b), ldb, turn_b != 0};
    return device::enqueue(h->stream, [=] {
        const double by = alpha.read(), keep = beta.read();
        for (int i = 0; i < count; ++i)
            for (int column = 0; column < n; ++column)
                for (int row = 0; row < m; ++row) {
                    double sum = 0;
                    for (int j = 0; j < k; ++j) sum += left(row, j, i * step_a) * right(j, column, i * step_b);
                    const std::ptrdiff_t at = i * step_c + column * std::ptrdiff_t(ldc) + row;
                    set(c, Type(type_c), at, by * sum + (keep == 0 ? 0 : keep * get(c, Type(type_c), at)));
                }
    }) ? fine : invalid;
}

int matrix_vector(Handle* h, Type type, int turned, int m, int n, Factor alpha, const void* a, int lda, const void* x, int incx,
                  Factor beta, void* y, int incy) {
    const Matrix matrix{a, type, lda, turned != 0};
    const int rows = turned ? n : m, columns = turned ? m : n;
    return device::enqueue(h->stream, [=] {
        const double by = alpha.read(), keep = beta.read();
        for (int row = 0; row < rows; ++row) {
            double sum = 0;
            for (int j = 0; j < columns; ++j) sum += matrix(row, j, 0) * get(x, type, j * std::ptrdiff_t(incx));
            const std::ptrdiff_t at = row * std::ptrdiff_t(incy);
            set(y, type, at, by * sum + (keep == 0 ? 0 : keep * get(y, type, at)));
        }
    }) ? fine : invalid;
}

int inner(Handle* h, Type type, int n, const void* x, int incx, const void* y, int incy, void* result) {
    if (!h->on_device) return unsupported;
    return device::enqueue(h->stream, [=] {
        double sum = 0;
        for (int i = 0; i < n; ++i) sum += get(x, type, i * std::ptrdiff_t(incx)) * get(y, type, i * std::ptrdiff_t(incy));
        set(result, type, 0, sum);
    }) ? fine : invalid;
}

// H = I - tau v v', with v's first element 1: Householder reflections, as LAPACK keeps them
template <class T>
void reflect(const T* v, T tau, T* column, int rows) {
    double sum = column[0];
    for (int i = 1; i < rows; ++i) sum += double(v[i]) * column[i];
    sum *= tau;
    column[0] -= T(sum);
    for (int i = 1; i < rows; ++i) column[i] -= T(sum * v[i]);
}

template <class T>
void factorise(int m, int n, T* a, int lda, T* tau, int* info) {
    for (int j = 0; j < std::min(m, n); ++j) {
        T* v = a + std::ptrdiff_t(j) * lda + j;
        double rest = 0;
        for (int i = 1; i < m - j; ++i) rest += double(v[i]) * v[i];
        const double first = v[0], length = std::sqrt(first * first + rest), beta = first > 0 ? -length : length;
        tau[j] = rest == 0 ? 0 : T((beta - first) / beta);
        if (rest == 0) continue;
        for (int i = 1; i < m - j; ++i) v[i] = T(v[i] / (first - beta));
        for (int c = j + 1; c < n; ++c) reflect(v, tau[j], a + std::ptrdiff_t(c) * lda + j, m - j);
        v[0] = T(beta);
    }
    *info = 0;
}

template <class T>
void orthogonal(int m, int n, int k, T* a, int lda, const T* tau, int* info) {
    std::vector<T> q(std::size_t(m) * n);
    for (int c = 0; c < n; ++c) q[std::size_t(c) * m + c] = 1;
    for (int j = k; j-- > 0;)
        for (int c = 0; c < n; ++c) reflect(a + std::ptrdiff_t(j) * lda + j, tau[j], &q[std::size_t(c) * m + j], m - j);
    for (int c = 0; c < n; ++c) std::memcpy(a + std::ptrdiff_t(c) * lda, &q[std::size_t(c) * m], m * sizeof(T));
    *info = 0;
}

}  // namespace

extern "C" {

int cublasCreate_v2(Handle** h) { return *h = new Handle, fine; }
int cublasDestroy_v2(Handle* h) { return delete h, fine; }
int cublasSetStream_v2(Handle* h, void* stream) { return h->stream = stream, fine; }
int cublasGetStream_v2(Handle* h, void** stream) { return *stream = h->stream, fine; }
int cublasSetPointerMode_v2(Handle* h, int mode) { return h->on_device = mode, fine; }
int cublasGetPointerMode_v2(Handle* h, int* mode) { return *mode = h->on_device, fine; }
int cublasSetMathMode(Handle* h, int mode) { return h->math = mode, fine; }
int cublasGetMathMode(Handle* h, int* mode) { return *mode = h->math, fine; }
int cublasGetVersion_v2(Handle*, int* version) { return *version = 130000, fine; }

int cublasGemmEx(Handle* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda,
                 const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int compute, int) {
    const Type of = compute == 70 ? f64 : f32;  // CUBLAS_COMPUTE_64F
    return multiply(h, ta, tb, m, n, k, {h, alpha, of}, a, type_a, lda, 0, b, type_b, ldb, 0, {h, beta, of}, c, type_c, ldc, 0, 1);
}

int cublasSgemmEx(Handle* h, int ta, int tb, int m, int n, int k, const float* alpha, const void* a, int type_a, int lda,
                  const void* b, int type_b, int ldb, const float* beta, void* c, int type_c, int ldc) {
    return multiply(h, ta, tb, m, n, k, {h, alpha, f32}, a, type_a, lda, 0, b, type_b, ldb, 0, {h, beta, f32}, c, type_c, ldc, 0, 1);
}

int cublasSgemm_v2(Handle* h, int ta, int tb, int m, int n, int k, const float* alpha, const float* a, int lda, const float* b,
                   int ldb, const float* beta, float* c, int ldc) {
    return multiply(h, ta, tb, m, n, k, {h, alpha, f32}, a, f32, lda, 0, b, f32, ldb, 0, {h, beta, f32}, c, f32, ldc, 0, 1);
}

int cublasDgemm_v2(Handle* h, int ta, int tb, int m, int n, int k, const double* alpha, const double* a, int lda,
                   const double* b, int ldb, const double* beta, double* c, int ldc) {
    return multiply(h, ta, tb, m, n, k, {h, alpha, f64}, a, f64, lda, 0, b, f64, ldb, 0, {h, beta, f64}, c, f64, ldc, 0, 1);
}

int cublasGemmStridedBatchedEx(Handle* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a,
                               int lda, long long step_a, const void* b, int type_b, int ldb, long long step_b,
                               const void* beta, void* c, int type_c, int ldc, long long step_c, int count, int compute, int) {
    const Type of = compute == 70 ? f64 : f32;
    return multiply(h, ta, tb, m, n, k, {h, alpha, of}, a, type_a, lda, step_a, b, type_b, ldb, step_b, {h, beta, of}, c,
                    type_c, ldc, step_c, count);
}

int cublasSgemv_v2(Handle* h, int t, int m, int n, const float* alpha, const float* a, int lda, const float* x, int incx,
                   const float* beta, float* y, int incy) {
    return matrix_vector(h, f32, t, m, n, {h, alpha, f32}, a, lda, x, incx, {h, beta, f32}, y, incy);
}

int cublasDgemv_v2(Handle* h, int t, int m, int n, const double* alpha, const double* a, int lda, const double* x, int incx,
                   const double* beta, double* y, int incy) {
    return matrix_vector(h, f64, t, m, n, {h, alpha, f64}, a, lda, x, incx, {h, beta, f64}, y, incy);
}

int cublasSdot_v2(Handle* h, int n, const float* x, int incx, const float* y, int incy, float* to) {
    return inner(h, f32, n, x, incx, y, incy, to);
}

int cublasDdot_v2(Handle* h, int n, const double* x, int incx, const double* y, int incy, double* to) {
    return inner(h, f64, n, x, incx, y, incy, to);
}

int cusolverDnCreate(Handle** h) { return *h = new Handle, fine; }
int cusolverDnDestroy(Handle* h) { return delete h, fine; }
int cusolverDnSetStream(Handle* h, void* stream) { return h->stream = stream, fine; }
int cusolverDnGetStream(Handle* h, void** stream) { return *stream = h->stream, fine; }

#define QR(letter, T)                                                                                                  \
    int cusolverDn##letter##geqrf_bufferSize(Handle*, int, int, T*, int, int* size) { return *size = 1, fine; }       \
    int cusolverDn##letter##geqrf(Handle* h, int m, int n, T* a, int lda, T* tau, T*, int, int* info) {               \
        return device::enqueue(h->stream, [=] { factorise(m, n, a, lda, tau, info); }) ? fine : invalid;              \
    }                                                                                                                  \
    int cusolverDn##letter##orgqr_bufferSize(Handle*, int, int, int, const T*, int, const T*, int* size) {            \
        return *size = 1, fine;                                                                                        \
    }                                                                                                                  \
    int cusolverDn##letter##orgqr(Handle* h, int m, int n, int k, T* a, int lda, const T* tau, T*, int, int* info) {  \
        return device::enqueue(h->stream, [=] { orthogonal(m, n, k, a, lda, tau, info); }) ? fine : invalid;          \
    }

QR(S, float)
QR(D, double)

}  // extern "C"
