// Streams of error-bounded codes: headers, then blocks; see oracle/bounded.py.
#include "bounded.h"

#include <pybind11/stl.h>

#include <vector>

#include "arrays.h"
#include "bind.h"
#include "pool.h"

namespace {

using namespace bounded;

constexpr std::size_t blocks_in_part = 128;  // 64 KiB of float32

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
    if (nbytes < count * sizeof(Header)) return false;
    std::size_t total = count * sizeof(Header);
    bool known = true;
    for (std::size_t begin = 0; begin < count; begin += grain) {
        *starts++ = total;
        for (std::size_t b = begin; b < std::min(count, begin + grain); ++b) {
            const Header header = header_at(codes, b);
            total += body_bytes<T>(header);
            known &= is_header<T>(header);
        }
    }
    if (count && header_at(codes, count - 1) == escaped) total -= (count * block - n) * sizeof(T);
    return known && total == nbytes;
}

// Writes a stream by parts: write(part, first block, elements, their blocks' place) returns what it wrote. Each part
// has room for its longest blocks; behind one another they are moved in order.
template <class T, class F>
Written write_in_parts(std::size_t n, std::size_t grain, std::uint8_t* codes, F&& write) {
    std::uint8_t* const bodies = codes + blocks_of(n) * sizeof(Header);
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
    all.bytes += blocks_of(n) * sizeof(Header);
    return all;
}

template <class T>
struct Encode {
    // A block of values; returns the end of its bytes.
    template <int width>
    static KERNEL std::uint8_t* one(const T* values, std::size_t length, const Grid& grid, std::uint8_t* headers,
                                    std::size_t number, std::uint8_t* out) {
        alignas(64) Word<T> q[block];
        if (!(grid.is_close() ? quantise<false>(values, grid, q) : quantise<true>(values, grid, q))) {
            put_header(escaped, headers, number);
            std::memcpy(out, values, length * sizeof(T));
            return out + length * sizeof(T);
        }
        return write_shortest<width, T>(q, headers, number, out);
    }

    template <int width>
    static KERNEL void run(const T* x, std::size_t n, const Grid* grid, std::uint8_t* headers, std::uint8_t* bodies,
                           Written* written) {
        std::uint8_t *out = bodies, body[longest_block<T> + beyond];
        alignas(64) T last[block];
        for (std::size_t begin = 0; begin < n; begin += block) {
            const std::size_t length = std::min(block, n - begin), number = begin / block;
            const T* values = x + begin;
            if (length < block) {
                std::memcpy(last, values, length * sizeof(T));
                std::fill(last + length, last + block, last[length - 1]);
                values = last;
            }
            const std::size_t nbytes = one<width>(values, length, *grid, headers, number, body) - body;
            std::memcpy(out, body, nbytes);  // planes are written with bytes behind them
            out += nbytes;
            written->escaped += header_at(headers, number) == escaped;
        }
        written->bytes = out - bodies;
    }
};

template <int width, class T>
KERNEL void add_values(const Header* headers, const Body* from, std::size_t count, std::size_t n,
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

// Writes the sum of a block's integers; returns its end, or nullptr if its codes are too wide. It has the lowest order
// of the streams' that are not constant, and begins anew where one of them does.
template <int width, class T>
KERNEL std::uint8_t* add_integers(const Header* headers, const Body* from, std::size_t count,
                                  std::uint8_t* written, std::size_t number, std::uint8_t* out) {
    int order = orders;
    unsigned begun = 1;
    bool constant = true, alike = true;
    for (std::size_t s = 0; s < count; ++s) {
        if (is_constant(headers[s])) continue;
        alike &= constant || (order == order_of(headers[s]) && begun == begun_in(headers[s]));
        order = std::min(order, order_of(headers[s]));
        begun |= begun_in(headers[s]);
        constant = false;
    }
    if (constant) order = 1;
    alignas(64) Word<T> total[block];
    clear<width>(total);
    Firsts<T> firsts;
    if (alike) {
        Firsts<T> constants;
        for (std::size_t s = 0; s < count; ++s) {
            add_firsts(headers[s], from[s], is_constant(headers[s]) ? constants : firsts);
            add_codes<T>(headers[s], from[s], total);
        }
        for (int g = 0; g < groups; ++g) firsts.of[g][0] += constants.of[0][0];
        return write_fitting<width, T>(order, begun, firsts, total, written, number, out);
    }
    for (std::size_t s = 0; s < count; ++s) {
        alignas(64) Word<T> more[block];
        read_integers<width, T>(headers[s], from[s], more);
        for (std::size_t i = 0; i < block; ++i) total[i] += more[i];
    }
    Differences<T> differences;
    differences.template take<width>(total);
    firsts.take(total);
    return write_fitting<width, T>(order, begun, firsts, begin_anew(differences, order, begun), written, number, out);
}

// A stream and the place of the first block of each part.
struct Stream {
    const std::uint8_t *codes, *end;
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
        std::vector<const std::uint8_t*> given(count);
        std::vector<Body> from(count);
        std::vector<Header> headers(count);
        std::uint8_t body[longest_block<T> + beyond];
        for (std::size_t s = 0; s < count; ++s) {
            given[s] = (*streams)[s].codes + first * sizeof(Header);
            from[s] = {(*streams)[s].codes + (*streams)[s].starts[part], (*streams)[s].end};
        }
        for (std::size_t b = 0; b < blocks_of(n); ++b) {
            bool plain = false;
            const std::size_t length = std::min(block, n - b * block);
            for (std::size_t s = 0; s < count; ++s) {
                headers[s] = header_at(given[s], b);
                plain |= headers[s] == escaped;
            }
            if (plain) {
                put_header(escaped, codes, b);
                add_values<width, T>(headers.data(), from.data(), count, length, step, out);
                out += length * sizeof(T);
                ++written->escaped;
            } else {
                const std::uint8_t* const end =
                    add_integers<width, T>(headers.data(), from.data(), count, codes, b, body);
                if (!end) {
                    written->fits = false;
                    return;
                }
                std::memcpy(out, body, end - body);
                out += end - body;
            }
            for (std::size_t s = 0; s < count; ++s) from[s].at += body_bytes<T>(headers[s]);
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
    static KERNEL void scale(Header header, Body body, double step, double divisor, T* out) {
        alignas(64) Word<T> q[block];
        read_integers<width, T>(header, body, q);
        if (divisor == 1)
            for (std::size_t i = 0; i < block; ++i) out[i] = static_cast<T>(grid_integer<T>(q[i]) * step);
        else
            for (std::size_t i = 0; i < block; ++i) out[i] = static_cast<T>(grid_integer<T>(q[i]) * step / divisor);
    }

    template <int width>
    static KERNEL void run(const std::uint8_t* headers, Body body, std::size_t n, double step,
                           double divisor, T* out) {
        alignas(64) T last[block];
        for (std::size_t begin = 0; begin < n; begin += block) {
            const std::size_t length = std::min(block, n - begin);
            const Header header = header_at(headers, begin / block);
            T* to = length == block ? out + begin : last;
            if (header == escaped) {
                divide(body.at, length, divisor, to);
            } else if (is_constant(header)) {
                Firsts<T> firsts;
                add_firsts(header, body, firsts);
                std::fill(to, to + block, static_cast<T>(grid_integer<T>(firsts.of[0][0]) * step / divisor));
            } else {
                scale<width>(header, body, step, divisor, to);
            }
            if (length < block) std::memcpy(out + begin, last, length * sizeof(T));
            body.at += body_bytes<T>(header);
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
                std::uint8_t* const headers = to.data + first * sizeof(Header);
                dispatch_by_width<Encode<T>>(from.data + first * block, n, &grid, headers, bodies, &part);
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
                std::vector<std::size_t> starts(part_count(blocks_of(size), grain));
                from.push_back({view.data, view.data + view.n, std::move(starts)});
                valid &= dispatch<is_stream<T>>(view.data, view.n, size, grain, from.back().starts.data());
            }
            const auto to = output<std::uint8_t>(codes, "codes");
            py::gil_scoped_release release;
            if (valid)
                written = write_in_parts<T>(size, grain, to.data, [&](std::size_t number, std::size_t first,
                                                                      std::size_t n, std::uint8_t* bodies) {
                    Written part;
                    std::uint8_t* const headers = to.data + first * sizeof(Header);
                    dispatch_by_width<Sum<T>>(&from, number, first, n, step, headers, bodies, &part);
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
                const Body body{from.data + starts[part], from.data + from.n};
                dispatch_by_width<Decode<T>>(from.data + begin * sizeof(Header), body,
                                             std::min(to.n, end * block) - begin * block, step, divisor,
                                             to.data + begin * block);
            });
        });
        return valid;
    }, py::arg("codes"), py::arg("step"), py::arg("divisor"), py::arg("out"),
       "out = the stream's values / divisor; returns whether codes are exactly a stream.");
}
