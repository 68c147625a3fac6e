// Streams of error-bounded codes: headers, then blocks; see oracle/bounded.py.
#include "bounded.h"

#include <pybind11/stl.h>

#include <vector>

#include "arrays.h"
#include "bind.h"
#include "pool.h"

namespace {

using namespace bounded;

constexpr std::size_t blocks_in_part = 256;  // 64 KiB of float32

struct Written {
    std::size_t bytes = 0, escaped = 0;  // bytes behind the headers
    bool fits = true;
};

KERNEL std::size_t blocks_of(std::size_t n) { return (n + block - 1) / block; }

// Blocks that a thread takes at a time; all of them for one thread, which then writes its stream without gaps.
std::size_t grain_of(std::size_t n) {
    const std::size_t blocks = blocks_of(n);
    return is_shared(blocks, blocks_in_part) ? blocks_in_part : std::max<std::size_t>(1, blocks);
}

// Whether `nbytes` are exactly those of a stream; `starts` gets the place of the first block of each part.
template <class T>
KERNEL bool is_stream(const std::uint8_t* codes, std::size_t nbytes, std::size_t n, std::size_t grain,
                      std::size_t* starts) {
    const std::size_t count = blocks_of(n);
    if (nbytes < count) return false;
    std::size_t total = count;
    bool known = true;
    for (std::size_t begin = 0; begin < count; begin += grain) {
        *starts++ = total;
        for (std::size_t b = begin; b < std::min(count, begin + grain); ++b) {
            total += sizes<T>.of[codes[b]];
            known &= (codes[b] & 63) < 63 || codes[b] == escaped;
        }
    }
    if (count && codes[count - 1] == escaped) total -= (count * block - n) * sizeof(T);
    return known && total == nbytes;
}

// Writes a stream by parts: write(part, first block, elements, their blocks' place) returns what it wrote. Each part
// has room for its longest blocks; behind one another they are moved in order.
template <class T, class F>
Written write_in_parts(std::size_t n, std::size_t grain, std::uint8_t* codes, F&& write) {
    std::uint8_t* const bodies = codes + blocks_of(n);
    const std::size_t room = grain * longest_block<T>;
    std::vector<Written> parts(part_count(blocks_of(n), grain));
    parallel_parts(blocks_of(n), grain, [&](std::size_t part, std::size_t begin, std::size_t end) {
        parts[part] = write(part, begin, std::min(n, end * block) - begin * block, bodies + part * room);
    });
    Written all;
    for (std::size_t part = 0; part < parts.size(); ++part) {
        if (part) std::memmove(bodies + all.bytes, bodies + part * room, parts[part].bytes);
        all.bytes += parts[part].bytes;
        all.escaped += parts[part].escaped;
        all.fits &= parts[part].fits;
    }
    all.bytes += blocks_of(n);
    return all;
}

template <class T>
struct Encode {
    // A block of values; returns the end of its bytes.
    template <int width>
    static KERNEL std::uint8_t* one(const T* values, std::size_t length, const Grid& grid, std::uint8_t* header,
                                    std::uint8_t* out) {
        Differences<T> q;
        q.order = 0;
        if (!(grid.is_close() ? quantise<false>(values, grid, q.of) : quantise<true>(values, grid, q.of))) {
            *header = escaped;
            std::memcpy(out, values, length * sizeof(T));
            return out + length * sizeof(T);
        }
        return write_shortest<width>(q, header, out);
    }

    template <int width>
    static KERNEL void run(const T* x, std::size_t n, const Grid* grid, std::uint8_t* headers, std::uint8_t* bodies,
                           Written* written) {
        std::uint8_t* out = bodies;
        alignas(64) T last[block];
        for (std::size_t begin = 0; begin < n; begin += block) {
            const std::size_t length = std::min(block, n - begin);
            const T* values = x + begin;
            if (length < block) {
                std::memcpy(last, values, length * sizeof(T));
                std::fill(last + length, last + block, last[length - 1]);
                values = last;
            }
            std::uint8_t* header = headers + begin / block;
            out = one<width>(values, length, *grid, header, out);
            written->escaped += *header == escaped;
        }
        written->bytes = out - bodies;
    }
};

template <int width, class T>
KERNEL void add_values(const std::uint8_t* headers, const std::uint8_t* const* from, std::size_t count, std::size_t n,
                       double step, std::uint8_t* out) {
    alignas(64) double total[block], more[block];
    alignas(64) T rounded[block];
    read_values<width, T>(headers[0], from[0], n, step, total);
    for (std::size_t s = 1; s < count; ++s) {
        read_values<width, T>(headers[s], from[s], n, step, more);
        for (std::size_t i = 0; i < block; ++i) total[i] += more[i];
    }
    for (std::size_t i = 0; i < block; ++i) rounded[i] = static_cast<T>(total[i]);
    std::memcpy(out, rounded, n * sizeof(T));
}

// Writes the sum of a block's integers; returns its end, or nullptr if its differences are too wide. They have the
// lowest order of the streams' that are not constant.
template <int width, class T>
KERNEL std::uint8_t* add_integers(const std::uint8_t* headers, const std::uint8_t* const* from, std::size_t count,
                                  std::uint8_t* header, std::uint8_t* out) {
    Differences<T> total, more;
    total.order = 3;
    bool constant = true;
    for (std::size_t s = 0; s < count; ++s) {
        if (!(headers[s] & 63)) continue;
        constant = false;
        total.order = std::min(total.order, order_of(headers[s]));
    }
    for (Word<T>& first : total.firsts) first = 0;
    if (constant) {
        for (std::size_t s = 0; s < count; ++s) total.firsts[0] += read_first<T>(headers[s], from[s]);
        *header = static_cast<std::uint8_t>(header_of<T>(total.firsts, 1, 0));
        return write_first<T>(zigzag(total.firsts[0]), *header, out);
    }
    clear<width>(total.of);
    for (std::size_t s = 0; s < count; ++s) {
        if (!(headers[s] & 63)) {
            total.firsts[0] += read_first<T>(headers[s], from[s]);
            continue;
        }
        read<width>(headers[s], from[s], more);
        while (more.order > total.order) more.template lower<width>();
        for (int k = 0; k < total.order; ++k) total.firsts[k] += more.firsts[k];
        for (std::size_t i = 0; i < block; ++i) total.of[i] += more.of[i];
    }
    return write_fitting<width>(total, header, out);
}

// A stream and the place of the first block of each part.
struct Stream {
    const std::uint8_t* codes;
    std::vector<std::size_t> starts;
};

template <class T>
struct Sum {
    // Blocks from `first` on, which are those of a part.
    template <int width>
    static KERNEL void run(const std::vector<Stream>* streams, std::size_t part, std::size_t first, std::size_t n,
                           double step, std::uint8_t* codes, std::uint8_t* bodies, Written* written) {
        const std::size_t count = streams->size();
        std::uint8_t* out = bodies;
        std::vector<const std::uint8_t*> from(count), given(count);
        std::vector<std::uint8_t> headers(count);
        for (std::size_t s = 0; s < count; ++s) {
            given[s] = (*streams)[s].codes + first;
            from[s] = (*streams)[s].codes + (*streams)[s].starts[part];
        }
        for (std::size_t b = 0; b < blocks_of(n); ++b) {
            bool plain = false;
            const std::size_t length = std::min(block, n - b * block);
            for (std::size_t s = 0; s < count; ++s) {
                headers[s] = given[s][b];
                plain |= headers[s] == escaped;
            }
            if (plain) {
                codes[b] = escaped;
                add_values<width, T>(headers.data(), from.data(), count, length, step, out);
                out += length * sizeof(T);
                ++written->escaped;
            } else {
                out = add_integers<width, T>(headers.data(), from.data(), count, codes + b, out);
                if (!out) {
                    written->fits = false;
                    return;
                }
            }
            for (std::size_t s = 0; s < count; ++s) from[s] += sizes<T>.of[headers[s]];
        }
        written->bytes = out - bodies;
    }
};

template <class T>
struct Decode {
    static KERNEL void divide(const std::uint8_t* in, std::size_t n, double divisor, T* out) {
        std::memcpy(out, in, n * sizeof(T));
        for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<T>(out[i] / divisor);
    }

    template <int width>
    static KERNEL void scale(std::uint8_t header, const std::uint8_t* in, double step, double divisor, T* out) {
        Differences<T> q;
        read_integers<width>(header, in, q);
        if (divisor == 1)
            for (std::size_t i = 0; i < block; ++i) out[i] = static_cast<T>(grid_integer<T>(q.of[i]) * step);
        else
            for (std::size_t i = 0; i < block; ++i) out[i] = static_cast<T>(grid_integer<T>(q.of[i]) * step / divisor);
    }

    template <int width>
    static KERNEL void run(const std::uint8_t* headers, const std::uint8_t* in, std::size_t n, double step,
                           double divisor, T* out) {
        alignas(64) T last[block];
        for (std::size_t begin = 0; begin < n; begin += block) {
            const std::size_t length = std::min(block, n - begin);
            const std::uint8_t header = headers[begin / block];
            T* to = length == block ? out + begin : last;
            if (header == escaped)
                divide(in, length, divisor, to);
            else if (header & 63)
                scale<width>(header, in, step, divisor, to);
            else
                std::fill(to, to + block, static_cast<T>(grid_integer<T>(read_first<T>(header, in)) * step / divisor));
            if (length < block) std::memcpy(out + begin, last, length * sizeof(T));
            in += sizes<T>.of[header];
        }
    }
};

}  // namespace

void bind_bounded(py::module_& m) {
    m.def("encode_on_grid", [](const py::array& x, double bound, double step, double inverse, std::int64_t largest,
                               py::array codes) {
        Written written;
        visit_real(x, "x", [&](auto zero) {
            using T = decltype(zero);
            const auto from = input<T>(x, "x");
            const auto to = output<std::uint8_t>(codes, "codes");
            const Grid grid{bound, step, inverse, static_cast<double>(largest)};
            py::gil_scoped_release release;
            written = write_in_parts<T>(from.n, grain_of(from.n), to.data,
                                        [&](std::size_t, std::size_t first, std::size_t n, std::uint8_t* bodies) {
                Written part;
                dispatch_by_width<Encode<T>>(from.data + first * block, n, &grid, to.data + first, bodies, &part);
                return part;
            });
        });
        return py::make_tuple(written.bytes, written.escaped);
    }, py::arg("x"), py::arg("bound"), py::arg("step"), py::arg("inverse"), py::arg("largest"), py::arg("codes"),
       "Write the stream of x to codes, which has room; returns its bytes and the number of escaped blocks.");

    m.def("sum_on_grid", [](const std::vector<py::array>& streams, std::int64_t n, bool wide, double step,
                            py::array codes) {
        Written written;
        const auto run = [&](auto zero) {
            using T = decltype(zero);
            const auto size = static_cast<std::size_t>(n), grain = grain_of(size);
            std::vector<Stream> from;
            bool valid = true;
            for (const auto& stream : streams) {
                const auto view = input<std::uint8_t>(stream, "streams");
                from.push_back({view.data, std::vector<std::size_t>(part_count(blocks_of(size), grain))});
                valid &= dispatch<is_stream<T>>(view.data, view.n, size, grain, from.back().starts.data());
            }
            const auto to = output<std::uint8_t>(codes, "codes");
            py::gil_scoped_release release;
            if (valid)
                written = write_in_parts<T>(size, grain, to.data, [&](std::size_t number, std::size_t first,
                                                                      std::size_t n, std::uint8_t* bodies) {
                    Written part;
                    dispatch_by_width<Sum<T>>(&from, number, first, n, step, to.data + first, bodies, &part);
                    return part;
                });
            return valid;
        };
        const bool valid = wide ? run(double{}) : run(float{});
        return py::make_tuple(valid, written.fits, written.bytes, written.escaped);
    }, py::arg("streams"), py::arg("n"), py::arg("wide"), py::arg("step"), py::arg("codes"),
       "Write the sum of streams to codes, which has room; returns whether they are valid and the sum fits, its bytes "
       "and the number of escaped blocks.");

    m.def("decode_on_grid", [](const py::array& codes, double step, double divisor, py::array out) {
        bool valid = false;
        visit_real(out, "out", [&](auto zero) {
            using T = decltype(zero);
            const auto to = output<T>(out, "out");
            const auto from = input<std::uint8_t>(codes, "codes");
            py::gil_scoped_release release;
            const std::size_t blocks = blocks_of(to.n), grain = grain_of(to.n);
            std::vector<std::size_t> starts(part_count(blocks, grain));
            valid = dispatch<is_stream<T>>(from.data, from.n, to.n, grain, starts.data());
            if (!valid) return;
            parallel_parts(blocks, grain, [&](std::size_t part, std::size_t begin, std::size_t end) {
                dispatch_by_width<Decode<T>>(from.data + begin, from.data + starts[part],
                                             std::min(to.n, end * block) - begin * block, step, divisor,
                                             to.data + begin * block);
            });
        });
        return valid;
    }, py::arg("codes"), py::arg("step"), py::arg("divisor"), py::arg("out"),
       "out = the stream's values / divisor; returns whether codes are exactly a stream.");
}
