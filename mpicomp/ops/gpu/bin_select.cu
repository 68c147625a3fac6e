// Selection by bins (AdaComp): every element that, with its gradient added once more, reaches its bin's maximum. A warp
// takes a bin of `length` elements, the last of which may be short; its second reading comes from a cache.
// Instances: bin_peaks<REAL>
// Instances: write_bins<REAL, INDEX>
#include "common.cuh"
#include "groups.cuh"

// Whether element i is selected: |u + grad| reaches the peak, and u is not zero or `zeros` are taken.
template <typename T>
__device__ inline bool reaches(const T* memory, const T* grad, long long i, Bits<T> peak, int zeros) {
    const T u = compensated(memory, grad, i);
    return magnitude(u + grad[i]) >= peak && (zeros || magnitude(u) > 0);
}

// peaks[b] = the largest |u| of bin b, counts[b] = how many are selected there. Bins are pieces of `count` spans.
template <typename T>
__global__ void bin_peaks(const T* memory, const T* grad, const long long* spans, long long count, long long length,
                          int zeros, Bits<T>* peaks, long long* counts) {
    const int lane = threadIdx.x % warp_size;
    for (long long b = grid_index() / warp_size; b < spans[count]; b += grid_size() / warp_size) {
        const auto [span, begin, end] = piece_of(spans, count, length, b);
        Bits<T> peak = 0;
        long long reaching = 0;
        for (long long i = begin + lane; i < end; i += warp_size)
            peak = max(peak, magnitude(compensated(memory, grad, i)));
        for (int offset = warp_size / 2; offset; offset /= 2)
            peak = max(peak, __shfl_down_sync(all_lanes, peak, offset));
        peak = __shfl_sync(all_lanes, peak, 0);
        for (long long i = begin + lane; i < end; i += warp_size) reaching += reaches(memory, grad, i, peak, zeros);
        for (int offset = warp_size / 2; offset; offset /= 2) reaching += __shfl_down_sync(all_lanes, reaching, offset);
        if (lane == 0) peaks[b] = peak, counts[b] = reaching;
    }
}

// until: running sums of the counts, each bin's own included.
template <typename T, typename I>
__global__ void write_bins(const T* memory, const T* grad, const long long* spans, long long count, long long length,
                           int zeros, const Bits<T>* peaks, const long long* until, I* indices) {
    const int lane = threadIdx.x % warp_size;
    for (long long b = grid_index() / warp_size; b < spans[count]; b += grid_size() / warp_size) {
        const auto [span, begin, end] = piece_of(spans, count, length, b);
        long long place = b ? until[b - 1] : 0;
        for (long long first = begin; first < end && place < until[b]; first += warp_size) {
            const long long i = first + lane;
            const bool selected = i < end && reaches(memory, grad, i, peaks[b], zeros);
            const unsigned raised = __ballot_sync(all_lanes, selected);
            if (selected) indices[place + __popc(raised & ((1u << lane) - 1))] = (I)i;
            place += __popc(raised);
        }
    }
}
