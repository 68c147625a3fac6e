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

// The same for a whole warp, which asks for one i.
__device__ inline long long group_of_warp(const long long* bounds, long long count, long long i) {
    return count_passing(count, [=](long long g) { return bounds[g] <= i; }) - 1;
}

// Piece p of `count` spans of a vector, which are cut into pieces of `length` elements: these restart at each span, and its
// last may be short. spans: of each the number of its first piece (`count` + 1 of them), then where each begins, then
// where each ends.
struct Stretch {
    long long span, begin, end;
};

__device__ inline Stretch piece_of(const long long* spans, long long count, long long length, long long p) {
    const long long s = group_of(spans, count, p), *starts = spans + count + 1;
    const long long begin = starts[s] + (p - spans[s]) * length;
    return {s, begin, min(begin + length, starts[count + s])};
}

// The group that holds i, from a group that is not behind it: a step or none where groups are long.
__device__ inline long long next_group_of(const long long* bounds, long long g, long long i) {
    while (bounds[g + 1] <= i) ++g;
    return g;
}
