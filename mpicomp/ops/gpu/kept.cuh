// Candidates for the k largest: the elements that a guess (top_k.cu) admits, kept (collect.cu) with their indices. The loader
// puts this text in the place of the #include.

// Where the candidates of span s are kept; without `areas` there is one span.
struct Area {
    long long begin, room;
};

__device__ inline Area area_of(const long long* areas, long long s, long long room) {
    return areas ? Area{areas[s], areas[s + 1] - areas[s]} : Area{0, room};
}

// Whether the k largest are among the candidates, as the guess may have been too high, and all of them are there, as there may
// have been no room. If so, the candidates are read in the place of the vector. found[s]: how many there are; null: no guess.
__device__ inline bool stand_in(const long long* found, long long s, long long k, long long room) {
    return found && k <= found[s] && found[s] <= room;
}
