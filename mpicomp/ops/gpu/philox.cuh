// Philox4x32-10 (reference/random.py). The loader puts this text in the place of the #include.

// The random numbers of a key. It keeps the last block of four words, so that neighbours cost one block.
struct Stream {
    unsigned long long seed;
    unsigned step, worker;
    unsigned long long block = ~0ull;  // none: elements lie below 2^64, blocks below 2^62
    unsigned c0, c1, c2, c3;

    __device__ Stream(unsigned long long seed, unsigned step, unsigned worker)
        : seed(seed), step(step), worker(worker), c0(0), c1(0), c2(0), c3(0) {}

    __device__ void draw(unsigned long long counter) {
        block = counter;
        c0 = (unsigned)counter, c1 = (unsigned)(counter >> 32), c2 = step, c3 = worker;
        unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
        for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9, k1 += 0xbb67ae85) {
            const unsigned a = 0xd2511f53, b = 0xcd9e8d57, x = c0, z = c2;
            c0 = __umulhi(b, z) ^ c1 ^ k0, c1 = b * z;
            c2 = __umulhi(a, x) ^ c3 ^ k1, c3 = a * x;
        }
    }

    // Elements e to e + 3: of one block, or the end of one and the beginning of the next.
    __device__ void four(unsigned long long e, unsigned* words) {
        draw(e / 4);
        words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
        const int skip = (int)(e & 3);
        if (skip == 0) return;
        draw(e / 4 + 1);
        const unsigned both[6] = {words[1], words[2], words[3], c0, c1, c2};
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = skip == 1 ? both[j] : skip == 2 ? both[j + 1] : both[j + 2];
    }

    // Element e. No array is indexed, so that everything stays in registers.
    __device__ unsigned word(unsigned long long e) {
        if (e / 4 != block) draw(e / 4);
        return e & 2 ? (e & 1 ? c3 : c2) : (e & 1 ? c1 : c0);
    }
};

// [0, 1) in multiples of 2^-24.
__device__ inline float uniform_of(unsigned word) { return (float)(word >> 8) * 0x1p-24f; }
