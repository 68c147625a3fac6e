// Fields of real numbers, and runs of neighbours in one access of memory. The loader puts this text in the place of the
// #include.
template <typename T> struct Format;
template <> struct Format<float> {
    static constexpr int fraction_bits = 23, bias = 127;
};
template <> struct Format<double> {
    static constexpr int fraction_bits = 52, bias = 1023;
};

// ---- runs of neighbours, which begin at a multiple of their length

template <typename T, int length> struct alignas(length * sizeof(T) < 16 ? length * sizeof(T) : 16) Run { T at[length]; };

// The first `count` of x, then zeros: in one access, or one for every 16 bytes, where x allows it.
template <int length, typename T> __device__ inline Run<T, length> load_run(const T* x, int count) {
    using R = Run<T, length>;
    if (count == length && (unsigned long long)x % alignof(R) == 0) return *(const R*)x;
    R run;
#pragma unroll
    for (int j = 0; j < length; ++j) run.at[j] = j < count ? x[j] : T(0);
    return run;
}

template <int length, typename T> __device__ inline void store_run(T* x, int count, Run<T, length> run) {
    using R = Run<T, length>;
    if (count == length && (unsigned long long)x % alignof(R) == 0) {
        if constexpr (sizeof(R) % 16 == 0)  // of a plain assignment the compiler may make stores of one element each
            for (int w = 0; w < (int)sizeof(R) / 16; ++w) __stwb((uint4*)x + w, ((const uint4*)&run)[w]);
        else
            *(R*)x = run;
        return;
    }
    volatile T* one = x;  // else it makes them of both ways
#pragma unroll
    for (int j = 0; j < length; ++j)
        if (j < count) one[j] = run.at[j];
}
