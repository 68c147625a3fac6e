// Groups of neighbouring elements that share a scale: group g is [bounds[g], bounds[g + 1]) and may be empty. The
// loader puts this text in the place of the #include.

// The group that holds i: the last of `count` whose lower bound is not above it. The first bound must be.
__device__ inline long long group_of(const long long* bounds, long long count, long long i) {
    long long low = 0, high = count - 1;
    while (low < high) {
        const long long middle = low + (high - low + 1) / 2;
        if (bounds[middle] <= i) low = middle;
        else high = middle - 1;
    }
    return low;
}

// The same for a whole warp, which asks for one i. A guess that is at most 15 groups off saves all reads but one.
__device__ inline long long group_of_warp(const long long* bounds, long long count, long long i, long long guess = -1) {
    const auto passes = [=](long long g) { return g < count && bounds[g] <= i; };
    if (guess >= 0) {
        const long long near = max(guess - warp_size / 2, 0ll);
        const unsigned passing = __ballot_sync(all_lanes, passes(near + threadIdx.x % warp_size));
        if (passing & 1 && passing != all_lanes) return near + __popc(passing) - 1;
    }
    return count_passing(count, passes) - 1;
}

// Piece p of `count` spans of a vector, which are cut into pieces of `length` elements: these restart at each span, and its
// last may be short. spans: of each the number of its first piece (`count` + 1 of them), then where each begins, then
// where each ends. `piece_in` gets the span, s.
struct Stretch {
    long long span, begin, end;
};

__device__ inline Stretch piece_in(const long long* spans, long long count, long long length, long long p, long long s) {
    const long long *starts = spans + count + 1, begin = starts[s] + (p - spans[s]) * length;
    return {s, begin, min(begin + length, starts[count + s])};
}

__device__ inline Stretch piece_of(const long long* spans, long long count, long long length, long long p) {
    return piece_in(spans, count, length, p, group_of(spans, count, p));
}

// The group that holds i, from a group that is not behind it: a step or none where groups are long.
__device__ inline long long next_group_of(const long long* bounds, long long g, long long i) {
    while (bounds[g + 1] <= i) ++g;
    return g;
}
