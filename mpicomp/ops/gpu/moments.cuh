// Sums over a piece of u, by one block. The loader puts this text in the place of the #include.
constexpr int moments_piece = MOMENTS_PIECE;  // elements of a span that a block adds up at a time

struct Sums {
    double number, sum, magnitudes, squares;
};

// Of the n elements of u from m and g on with |u| >= floor: how many (exact below 2^53), the sums of u, of |u| and of u
// squared. In float64, and in an order that depends on nothing but their number; right in thread 0. m may be null.
template <typename T> __device__ inline Sums sums_of(const T* m, const T* g, int n, Bits<T> floor) {
    constexpr int size = Pack<T>::size;
    const int whole = aligned(m, g) ? n / size : 0;
    double number = 0, sum = 0, magnitudes = 0, squares = 0;
    for (int v = threadIdx.x; v * size < n; v += threads) {
        Pack<T> u;
        if (v < whole) u = compensated_pack(m, g, v);
#pragma unroll
        for (int j = 0; j < size; ++j) {
            const int i = v * size + j;
            if (v >= whole && i < n) u.at[j] = compensated(m, g, i);
            if (i >= n || magnitude(u.at[j]) < floor) continue;
            const double wide = u.at[j];
            number += 1;
            sum += wide;
            magnitudes += wide < 0 ? -wide : wide;
            squares += wide * wide;
        }
    }
    number = block_sum(number), sum = block_sum(sum);
    magnitudes = block_sum(magnitudes), squares = block_sum(squares);
    return {number, sum, magnitudes, squares};
}
