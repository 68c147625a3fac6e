// Searches for thresholds that about a target of elements reach, in each of many spans. The last block to be done with
// a span works out its next threshold, so that the host need not wait; a span whose search is over is not read again.
// Purpose and method: ops/search.py. The operations are those there, in the same order, but for sums.
// Instances: first_threshold fit_stage<REAL, false|true>
// Instances: correct_thresholds accept_cuts<REAL>
#include "common.cuh"
#include "groups.cuh"
#include "moments.cuh"

// State of the search in each span, one array behind another, zero at first.
struct Search {
    long long* cuts;              // the list so far is all magnitudes of at least so much
    double* tried;                // the threshold that is tried now
    long long* left;              // elements that reach the cut; 0: the search is over
    unsigned long long* tickets;  // pieces that are done in this pass
    double* lams;                 // the threshold that the cut is
};

__device__ inline Search search_at(long long* known, long long count) {
    return {known, (double*)(known + count), known + 2 * count, (unsigned long long*)(known + 3 * count),
            (double*)(known + 4 * count)};
}

// The magnitude that a threshold stands for, rounded as the elements are; infinity if it is not finite.
template <typename T> __device__ inline Bits<T> key_of(double lam) {
    return is_nonfinite(lam) ? Real<T>::infinity : magnitude((T)lam);
}

// ---- the formulas

// |mean| + quantile * deviation. Shi et al., Understanding top-k sparsification in distributed deep learning, 2019,
// algorithm 1.
__device__ inline double normal_threshold(double n, double total, double squares, double quantile) {
    const double mean = total / n;
    const double variance = squares / n - mean * mean;
    return variance > 0 ? fabs(mean) + quantile * sqrt(variance) : fabs(mean);
}

// Where the exponential through n magnitudes, all of at least lam, leaves 1/4, or the target. Abdelmoniem et al.,
// SIDCo, MLSys 2021, section 2.4 and algorithm 1 (the double exponential model).
__device__ inline double exponential_threshold(double n, double magnitudes, double lam, double target) {
    const double ratio = min(1.0, max(RATIO, target / n));
    return lam + log(1 / ratio) * (magnitudes / n - lam);
}

// ---- between passes

// The sum of what the blocks left for each of a span's pieces, right in thread 0.
__device__ inline double sum_of(const double* sums, long long first, long long last) {
    double mine = 0;
    for (long long p = first + threadIdx.x; p < last; p += threads) mine += sums[p];
    return block_sum(mine);
}

// The list is to be all that reach lam.
template <typename T> __device__ inline void accept(Search& search, long long s, double lam, Bits<T> key) {
    search.cuts[s] = key, search.lams[s] = lam;
}

// ---- the first threshold, from the moments

// wanted: of each of `count` spans how many are to reach its threshold, then (`normal`) the quantile of the normal
// distribution. sums: three of each piece, one behind another. memory may be null.
template <typename T, bool normal>
__global__ void first_threshold(const T* memory, const T* grad, const long long* spans, long long count,
                                const double* wanted, double* sums, long long* known) {
    const long long pieces = spans[count];
    Search search = search_at(known, count);
    for (long long p = blockIdx.x; p < pieces; p += gridDim.x) {
        const auto [s, begin, end] = piece_of(spans, count, moments_piece, p);
        const double n = (double)(spans[2 * count + 1 + s] - spans[count + 1 + s]);
        if (wanted[s] == n) {  // all are
            if (p == spans[s] && threadIdx.x == 0) accept<T>(search, s, 0, 0);
            continue;
        }
        const Sums own = sums_of(memory ? memory + begin : memory, grad + begin, (int)(end - begin), (Bits<T>)0);
        if (threadIdx.x == 0)
            sums[p] = own.sum, sums[pieces + p] = own.magnitudes, sums[2 * pieces + p] = own.squares;
        if (!is_last(search.tickets + s, spans[s + 1] - spans[s])) continue;
        const double total = sum_of(sums, spans[s], spans[s + 1]);
        const double magnitudes = sum_of(sums + pieces, spans[s], spans[s + 1]);
        const double squares = sum_of(sums + 2 * pieces, spans[s], spans[s + 1]);
        if (threadIdx.x) continue;
        const double lam = normal ? normal_threshold(n, total, squares, wanted[count + s])
                                  : exponential_threshold(n, magnitudes, 0, wanted[s]);
        search.tried[s] = lam;
        if (normal) accept<T>(search, s, lam, key_of<T>(lam));
        else accept<T>(search, s, Real<double>::value(Real<double>::infinity + 1), Real<T>::infinity);
        search.left[s] = normal && is_nonfinite(lam) ? 0 : (long long)n;
    }
}

// ---- Gaussian-k: corrections

constexpr int corrections = CORRECTIONS, tries = (corrections + 1) * (corrections + 2) / 2;
constexpr double few = FEW, many = MANY;  // in targets

// Of all thresholds that the search may come to: that after so many halvings, then so many growths by one half.
__device__ inline int try_of(int halved, int grown) { return halved * (2 * corrections + 3 - halved) / 2 + grown; }

__device__ inline double corrected(double lam, int halved, int grown) {
    for (; halved; --halved) lam *= DOWN;
    for (; grown; --grown) lam *= UP;
    return lam;
}

// Halve a threshold that too few reach, let grow one that too many do, and go back where too many become too few.
template <typename T>
__device__ inline void correct(Search& search, long long s, double target, const unsigned long long* reached) {
    int halved = 0, grown = 0;
    for (int c = 0; c < corrections; ++c) {
        const double here = (double)reached[try_of(halved, grown)];
        if (few * target <= here && here <= many * target) break;
        const int down = here < target, up = !down;  // never down after up, which fits or leaves too many or too few
        const double next = (double)reached[try_of(halved + down, grown + up)];
        if (next < few * target && few * target < here) break;
        halved += down, grown += up;
    }
    const double lam = corrected(search.tried[s], halved, grown);
    accept<T>(search, s, lam, key_of<T>(lam));
    search.left[s] = 0;
}

// One pass counts how many reach each threshold that corrections may lead to: `reached`, `tries` a span, zero at first.
template <typename T>
__global__ void correct_thresholds(const T* memory, const T* grad, const long long* spans, long long count,
                                   const double* wanted, unsigned long long* reached, long long* known) {
    __shared__ Bits<T> keys[tries];
    __shared__ int of_block[tries];
    Search search = search_at(known, count);
    for (long long p = blockIdx.x; p < spans[count]; p += gridDim.x) {
        const auto [s, begin, end] = piece_of(spans, count, moments_piece, p);
        if (search.left[s] == 0) continue;
        for (int halved = 0; halved <= corrections; ++halved) {
            const int grown = threadIdx.x;
            if (grown > corrections - halved) continue;
            keys[try_of(halved, grown)] = key_of<T>(corrected(search.tried[s], halved, grown));
            of_block[try_of(halved, grown)] = 0;
        }
        __syncthreads();
        int mine[tries] = {};
        Bits<T> own[tries];
#pragma unroll
        for (int j = 0; j < tries; ++j) own[j] = keys[j];
        const T *g = grad + begin, *m = memory ? memory + begin : memory;
        visit_by(threadIdx.x, threads, m, g, end - begin, [&](long long, T value) {
            const Bits<T> key = magnitude(value);
#pragma unroll
            for (int j = 0; j < tries; ++j) mine[j] += key >= own[j];
        });
#pragma unroll
        for (int j = 0; j < tries; ++j) {
            int sum = mine[j];
            for (int offset = warp_size / 2; offset; offset /= 2) sum += __shfl_down_sync(all_lanes, sum, offset);
            if (threadIdx.x % warp_size == 0) atomicAdd(&of_block[j], sum);
        }
        __syncthreads();
        unsigned long long* all_reached = reached + s * tries;
        if (threadIdx.x < tries) atomicAdd(&all_reached[threadIdx.x], (unsigned long long)of_block[threadIdx.x]);
        if (is_last(search.tickets + s, spans[s + 1] - spans[s]) && threadIdx.x == 0)
            correct<T>(search, s, wanted[s], all_reached);
    }
}

// ---- SIDCo: stages

constexpr double low = LOW, high = HIGH;  // in targets
constexpr int warps = threads / warp_size, stretch = moments_piece / warps;  // elements of a piece that a warp looks at

// The magnitude that elements must reach in this stage: also that of the stage before, which rounding may leave above.
template <typename T> __device__ inline Bits<T> floor_of(const Search& search, long long s) {
    const Bits<T> key = key_of<T>(search.tried[s]);
    return is_nonfinite(search.lams[s]) ? key : max(key, (Bits<T>)search.cuts[s]);
}

// What follows from the number of those that reach the threshold tried, and the sum of their magnitudes.
template <typename T>
__device__ inline void next_stage(Search& search, long long s, double target, double passed, double magnitudes) {
    const double lam = search.tried[s], n = (double)search.left[s];
    const bool finite = !is_nonfinite(lam), too_many = finite && high * target < passed && passed < n;
    const bool enough = finite ? low * target <= passed && passed <= high * target && passed < n : passed > 0;
    if (too_many || enough) accept<T>(search, s, lam, floor_of<T>(search, s));
    if (too_many) search.tried[s] = exponential_threshold(passed, magnitudes, lam, target);
    search.left[s] = too_many ? (long long)passed : 0;
}

// A stage. The first goes through u, and each warp keeps what passes in its stretch of it, if that is no more than
// half: in kept, half as long as u, from half of where the stretch begins on; passed[p * warps + w] = how many. Later
// stages go through what was kept. sums: two of each piece, one behind another.
template <typename T, bool first>
__global__ void fit_stage(const T* memory, const T* grad, const long long* spans, long long count, const double* wanted,
                          T* kept, int* passed, double* sums, long long* known) {
    constexpr int size = Pack<T>::size;
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const long long pieces = spans[count];
    Search search = search_at(known, count);
    for (long long p = blockIdx.x; p < pieces; p += gridDim.x) {
        const auto [s, begin, end] = piece_of(spans, count, moments_piece, p);
        if (search.left[s] == 0) continue;
        const Bits<T> floor = floor_of<T>(search, s);
        const long long start = min(begin + warp * stretch, end);
        const int n = (int)min((long long)stretch, end - start), room = n / 2;
        const T *g = grad + start, *m = memory ? memory + start : memory;
        T* own = kept + start / 2;
        double magnitudes = 0;
        int number = 0;  // in the first stage, of the warp
        if constexpr (first) {
            const bool packed = aligned(m, g);
            for (int at = 0; at < n; at += warp_size * size) {
                const int i = at + lane * size;
                Pack<T> u;
                if (packed && i + size <= n) u = compensated_pack(m, g, i / size);
#pragma unroll
                for (int j = 0; j < size; ++j) {
                    if (!(packed && i + size <= n) && i + j < n) u.at[j] = compensated(m, g, i + j);
                    const bool passes = i + j < n && magnitude(u.at[j]) >= floor;
                    const unsigned passing = __ballot_sync(all_lanes, passes);
                    const int place = number + __popc(passing & ((1u << lane) - 1));
                    if (passes) magnitudes += fabs((double)u.at[j]);
                    if (passes && place < room) own[place] = u.at[j];
                    number += __popc(passing);
                }
            }
            if (lane == 0) passed[p * warps + warp] = number;
            if (lane) number = 0;
        } else {
            const int before = passed[p * warps + warp];
            const auto look_at = [&](T value) {
                if (magnitude(value) < floor) return;
                magnitudes += fabs((double)value);
                ++number;
            };
            if (before <= room)
                for (int i = lane; i < before; i += warp_size) look_at(own[i]);
            else
                for (int i = lane; i < n; i += warp_size) look_at(compensated(m, g, i));
        }
        const double of_block = block_sum((double)number);
        magnitudes = block_sum(magnitudes);
        if (threadIdx.x == 0) sums[p] = of_block, sums[pieces + p] = magnitudes;
        if (!is_last(search.tickets + s, spans[s + 1] - spans[s])) continue;
        const double reached = sum_of(sums, spans[s], spans[s + 1]);
        const double total = sum_of(sums + pieces, spans[s], spans[s + 1]);
        if (threadIdx.x == 0) next_stage<T>(search, s, wanted[s], reached, total);
    }
}

// ---- DGC: the cuts of samples

// cuts: two of each of `count` spans, as radix select leaves them; the first is the magnitude that is to be reached.
template <typename T> __global__ void accept_cuts(const long long* cuts, long long count, long long* known) {
    Search search = search_at(known, count);
    for (long long s = grid_index(); s < count; s += grid_size()) {
        const Bits<T> key = (Bits<T>)cuts[2 * s];
        if (0 < key && key < Real<T>::infinity) accept<T>(search, s, Real<T>::value(key), key);
        else accept<T>(search, s, Real<double>::value(Real<double>::infinity + 1), Real<T>::infinity + 2);
    }
}
