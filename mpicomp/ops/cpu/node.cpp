// All-reduce among the ranks of one node through memory they share; mpicomp/allreduce/node_shared.py tells the schedule.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <functional>

#include "arrays.h"
#include "bind.h"
#include "multi_reduce.h"
#include "past_caches.h"
#include "window.h"

namespace {

// Where an array is that all ranks of the node can see: a segment and the bytes from its beginning.
using Place = std::pair<std::int64_t, std::uint64_t>;

enum class Verb { allreduce, reduce_scatter, all_gather };

// How a rank writes what the others read: into its caches, or past them. A line that another core has read is taken back
// from there before it is written; if the two share no cache, that takes several times as long as to write to memory. A
// rank tells by its own writes: it writes and times one half of a piece in each way, in one piece of 64.
class Writes {
public:
    bool stream = false;  // past the caches

    explicit Writes(double far) : far(far) {}

    // Writes of one piece, of which `typical` ones are long enough to tell.
    void begin(bool typical) { compares = typical && --pieces_left < 0; }

    // write(first, last, stream) writes these of n elements.
    template <class F>
    void run(std::size_t n, F&& write) {
        if (!compares) return write(std::size_t{0}, n, stream);
        const std::uint64_t begin = now_ns();
        write(std::size_t{0}, n / 2, false);
        const std::uint64_t middle = now_ns();
        write(n / 2, n, true);
        kept_ns += middle - begin;
        streamed_ns += now_ns() - middle;
    }

    void end() {
        if (!compares) return;
        const bool differs = stream != (kept_ns > far * streamed_ns);
        if (differs && in_doubt) stream = !stream;  // the next piece said so, too: nothing else held it up
        in_doubt = differs && !in_doubt;
        pieces_left = in_doubt ? 0 : 63;
        kept_ns = streamed_ns = 0;
    }

private:
    double far;  // times as long takes the first way between cores that share no cache, at least
    int pieces_left = 8;  // until the next comparison; by the first the others have read all slots
    bool compares = false, in_doubt = false;
    std::uint64_t kept_ns = 0, streamed_ns = 0;
};

struct NodeWindow {
    RankLine* lines;
    char* slots;  // depth results, then depth slots of every rank, of `slot_bytes` each
    int rank, size, owners, depth, spins;  // ranks below `owners` reduce a slice each
    std::size_t slot_bytes;
    Writes to_slots{2.5};   // measured: 0.3 to 2.1 between cores that share a cache, 3.5 to 11 elsewhere
    Writes to_arrays{1.6};  // with the sum: 0.4 to 1.4 and 1.9 to 3.6

    NodeWindow(std::uintptr_t base, int rank, int size, int owners, std::size_t control_bytes, std::size_t slot_bytes,
               int depth, int spins)
        : lines(reinterpret_cast<RankLine*>(base)), slots(reinterpret_cast<char*>(base) + control_bytes), rank(rank),
          size(size), owners(owners), depth(depth), spins(spins), slot_bytes(slot_bytes) {
        if (owners < 1 || owners > size)
            throw InvalidArgument("owners must be 1 to " + std::to_string(size) + ", got " + std::to_string(owners));
    }

    RankLine& mine() const { return lines[rank]; }

    // Elements of an owner's slice of n, which is empty for other ranks: whole cache lines, so that no two ranks write to one.
    std::size_t slice(std::size_t n, std::size_t itemsize) const {
        const std::size_t line = std::max<std::size_t>(1, 64 / itemsize), each = (n + owners - 1) / owners;
        return (each + line - 1) / line * line;
    }
};

// One call, cut into pieces; a piece is one block of every rank's slice of the vector.
class Call {
public:
    Call(NodeWindow& window, MultiKernel kernel, std::size_t itemsize, std::size_t n, const char* send,
         char* receive, bool stream, double factor, std::function<void()> idle)
        : w(window), kernel(kernel), itemsize(itemsize), n(n), send(send), receive(receive), stream(stream),
          idle(std::move(idle)), base(w.mine().summed.load()) {
        task.factor = factor;
        const std::size_t line = std::max<std::size_t>(1, 64 / itemsize);
        slice = w.slice(n, itemsize);
        block = std::max(line, w.slot_bytes / itemsize / w.owners / line * line);
        // What all slots in turn can hold goes in one piece: half the rounds of waiting for each other. They are free:
        // everybody has summed when `run` begins, and a rank that is ready has taken what the call before gave it.
        in_one = slice > block && slice * w.owners * itemsize <= w.depth * w.slot_bytes;
        if (in_one) block = slice;
        pieces = (slice + block - 1) / block;
    }

    void run(Verb verb, Place send_place, Place receive_place, const std::vector<std::uintptr_t>& segments) {
        wait(&RankLine::summed, 0);  // a rank may still be looking up where the vectors of the call before are
        auto& line = w.mine();
        std::tie(line.send_segment, line.send_offset) = send_place;
        std::tie(line.receive_segment, line.receive_offset) = receive_place;
        sends_directly = send_place.first >= 0;
        if (sends_directly || verb == Verb::all_gather) line.ready.store(base + pieces, std::memory_order_release);
        for (std::size_t k = 0; k < pieces + 2; ++k) {
            if (k < pieces && verb != Verb::all_gather) contribute(k);
            if (k == 0) find_everyone(segments);
            if (k >= 1 && k <= pieces) verb == Verb::all_gather ? offer(k - 1) : reduce(k - 1, verb);
            if (k >= 2 && verb != Verb::reduce_scatter) take(k - 2);
        }
        if (verb == Verb::reduce_scatter && sends_directly) wait(&RankLine::summed, pieces);
        line.taken.store(base + pieces, std::memory_order_release);
    }

private:
    // Elements of block k of a rank's slice: where they begin in the vector, and how many.
    std::pair<std::size_t, std::size_t> bounds(int owner, std::size_t k) const {
        const std::size_t begin = std::min(n, owner * slice + std::min(slice, k * block));
        const std::size_t end = std::min(n, owner * slice + std::min(slice, (k + 1) * block));
        return {begin, end - begin};
    }

    char* slot(std::size_t index, std::size_t k, int owner) const {
        const std::size_t turn = in_one ? 0 : (base + k) % w.depth;
        return w.slots + (index * w.depth + turn) * w.slot_bytes + owner * block * itemsize;
    }
    char* result(std::size_t k, int owner) const { return slot(0, k, owner); }
    char* contribution(int from, std::size_t k, int owner) const { return slot(1 + from, k, owner); }

    void wait(std::atomic<std::uint64_t> RankLine::*counter, std::size_t count) const {
        const std::uint64_t target = base + count;
        for (int other = 0; other < w.size; ++other) {
            if (other == w.rank) continue;
            const RankLine& line = w.lines[other];
            wait_until([&] { return (line.*counter).load(std::memory_order_acquire) >= target; }, w.spins, [&] {
                if (line.failed.load(std::memory_order_relaxed)) throw RankLeft("local rank " + std::to_string(other) + " left an all-reduce on this node by an error");
                idle();
            });
        }
    }

    // A slot is free again when its last user is through with it, `depth` pieces ago.
    void wait_for_slot(std::atomic<std::uint64_t> RankLine::*counter, std::size_t k) const {
        if (base + k + 1 > static_cast<std::uint64_t>(w.depth)) {
            const std::int64_t pieces_of_this_call = static_cast<std::int64_t>(k) + 1 - w.depth;
            wait(counter, static_cast<std::size_t>(pieces_of_this_call));  // below 0: a piece of the call before
        }
    }

    void contribute(std::size_t k) {
        if (sends_directly) return;
        wait_for_slot(&RankLine::summed, k);
        w.to_slots.begin(typical(k));
        for (int owner = 0; owner < w.owners; ++owner) {
            if (owner == w.rank) continue;  // the own block is read in place
            const auto [begin, count] = bounds(owner, k);
            char* dst = contribution(w.rank, k, owner);
            const char* src = send + begin * itemsize;
            w.to_slots.run(count, [&](std::size_t first, std::size_t last, bool past_caches) {
                copy_bytes(dst + first * itemsize, src + first * itemsize, (last - first) * itemsize, past_caches);
            });
        }
        w.to_slots.end();
        w.mine().ready.store(base + k + 1, std::memory_order_release);
    }

    void find_everyone(const std::vector<std::uintptr_t>& segments) {
        wait(&RankLine::ready, std::min<std::size_t>(1, pieces));
        sources.assign(w.size, nullptr);
        receivers.clear();
        takes = false;
        for (int j = 0; j < w.size; ++j) {
            const RankLine& line = w.lines[j];
            if (line.send_segment >= 0)
                sources[j] = reinterpret_cast<const char*>(segments.at(line.send_segment)) + line.send_offset;
            if (line.receive_segment >= 0)
                receivers.push_back(reinterpret_cast<char*>(segments.at(line.receive_segment)) + line.receive_offset);
            else
                takes = true;
        }
        sources[w.rank] = send;
    }

    void reduce(std::size_t k, Verb verb) {
        wait(&RankLine::ready, k + 1);
        const auto [begin, count] = bounds(w.rank, k);
        if (w.size == 1) {  // of a node with others beside it: the sum is what this rank has
            if (receive != send) copy_bytes(receive + begin * itemsize, send + begin * itemsize, count * itemsize, stream);
            return announce();
        }
        w.to_arrays.begin(verb == Verb::allreduce && !takes && !stream && typical(k));
        task.src.resize(w.size);
        w.to_arrays.run(count, [&, begin = begin](std::size_t first, std::size_t last, bool past_caches) {
            const std::size_t at = (begin + first) * itemsize;
            for (int j = 0; j < w.size; ++j)
                task.src[j] = sources[j] ? sources[j] + at : contribution(j, k, w.rank) + first * itemsize;
            task.dst = destinations(k, verb, first, past_caches);
            task.n = last - first;
            kernel(task);
        });
        w.to_arrays.end();
        announce();
    }

    // All-gather: the block is final already, and only passed on.
    void offer(std::size_t k) {
        const auto [begin, count] = bounds(w.rank, k);
        const char* own = receive + begin * itemsize;
        for (const Destination& dst : destinations(k, Verb::all_gather, 0, w.to_arrays.stream))
            if (dst.to != own) copy_bytes(dst.to, own, count * itemsize, dst.stream);
        announce();
    }

    // Where a finished block of this rank goes, from element `first` on: straight to everyone, or to a slot that those
    // take it from.
    std::vector<Destination> destinations(std::size_t k, Verb verb, std::size_t first, bool past_caches) {
        const std::size_t at = (bounds(w.rank, k).first + first) * itemsize;
        if (verb == Verb::reduce_scatter) return {{receive + at, stream && !takes}};
        if (takes) {
            wait_for_slot(&RankLine::taken, k);
            return {{result(k, w.rank) + first * itemsize, w.to_slots.stream}, {receive + at, stream}};
        }
        std::vector<Destination> everyone;
        for (char* receiver : receivers) everyone.push_back({receiver + at, stream || past_caches});
        return everyone;
    }

    // Whether piece k is long enough to time it.
    bool typical(std::size_t k) const { return n * itemsize >= 131072 && (k == 0 || k + 1 < pieces); }

    void announce() {
        auto& summed = w.mine().summed;
        summed.store(summed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }

    void take(std::size_t k) {
        if (takes || k + 1 == pieces) wait(&RankLine::summed, k + 1);
        if (!takes) return;
        for (int owner = 0; owner < w.owners; ++owner) {
            if (owner == w.rank) continue;
            const auto [begin, count] = bounds(owner, k);
            copy_bytes(receive + begin * itemsize, result(k, owner), count * itemsize, stream);
        }
        w.mine().taken.store(base + k + 1, std::memory_order_release);
    }

    NodeWindow& w;
    MultiKernel kernel;
    std::size_t itemsize, n;
    const char* send;
    char* receive;
    bool stream, in_one = false, sends_directly = false, takes = true;
    std::function<void()> idle;
    std::uint64_t base;
    std::size_t slice, block, pieces;
    std::vector<const char*> sources;  // null: in a slot
    std::vector<char*> receivers;
    MultiReduce task;
};

Verb verb_of(const std::string& name) {
    if (name == "allreduce") return Verb::allreduce;
    if (name == "reduce_scatter") return Verb::reduce_scatter;
    if (name == "all_gather") return Verb::all_gather;
    throw InvalidArgument("verb must be allreduce, reduce_scatter or all_gather, got " + name);
}

void check_vector(const py::array& array, const char* name, std::size_t nbytes) {
    if (!(array.flags() & py::array::c_style)) throw BufferRefused(std::string(name) + " must be contiguous");
    if (static_cast<std::size_t>(array.nbytes()) != nbytes)
        throw InvalidArgument(std::string(name) + " must have " + std::to_string(nbytes) + " bytes, got " +
                              std::to_string(array.nbytes()));
}

void run_call(NodeWindow& window, const std::string& verb_name, const std::string& op, const std::string& kind,
         const py::array& send, py::array receive, Place send_place, Place receive_place,
         const std::vector<std::uintptr_t>& segments, bool stream, double factor, const py::function& idle) {
    const Verb verb = verb_of(verb_name);
    const MultiKernel kernel = multi_kernel(op, kind);
    if (!kernel) throw InvalidArgument("no reduction " + op + " of " + kind);
    check_vector(receive, "receive", receive.nbytes());
    check_vector(send, "send", receive.nbytes());
    if (!receive.writeable()) throw BufferRefused("receive must be writable, got a read-only array");
    auto& line = window.mine();
    if (line.failed.load()) throw RankLeft("an earlier all-reduce on this node ended with an error: make a new Comm");
    if (receive.size() == 0) return;
    const auto let_go = [&idle] {
        py::gil_scoped_acquire gil;
        idle();
    };
    Call call(window, kernel, receive.itemsize(), receive.size(), static_cast<const char*>(send.data()),
              static_cast<char*>(receive.mutable_data()), stream, factor, let_go);
    py::gil_scoped_release release;
    try {
        call.run(verb, send_place, receive_place, segments);
    } catch (...) {
        line.failed.store(1);
        throw;
    }
}

}  // namespace

void bind_node(py::module_& m) {
    m.attr("LINE_BYTES") = sizeof(RankLine);
    py::class_<NodeWindow>(m, "NodeWindow", "One rank's view of the memory that the ranks of its node share.")
        .def(py::init<std::uintptr_t, int, int, int, std::size_t, std::size_t, int, int>(), py::arg("base"),
             py::arg("rank"), py::arg("size"), py::arg("owners"), py::arg("control_bytes"), py::arg("slot_bytes"),
             py::arg("depth"), py::arg("spins"))
        .def_property("past_caches", [](const NodeWindow& w) { return w.to_slots.stream; },
                      [](NodeWindow& w, bool stream) { w.to_slots.stream = w.to_arrays.stream = stream; },
                      "Whether this rank writes past its caches what the others read; it finds out from time to time.")
        .def("slice", [](const NodeWindow& w, std::size_t n, std::size_t itemsize) {
            const std::size_t length = w.slice(n, itemsize);
            return py::slice(static_cast<py::ssize_t>(std::min(n, w.rank * length)),
                             static_cast<py::ssize_t>(std::min(n, (w.rank + 1) * length)), 1);
        }, py::arg("n"), py::arg("itemsize"), "This rank's slice of a vector of n elements.")
        .def("run", &run_call, py::arg("verb"), py::arg("op"), py::arg("kind"), py::arg("send"), py::arg("receive"),
             py::arg("send_place"), py::arg("receive_place"), py::arg("segments"), py::arg("stream"), py::arg("factor"), py::arg("idle"),
             "receive = send reduced over the ranks, times factor (allreduce), its own slice of it (reduce_scatter), or "
             "every rank's slice of receive (all_gather).");
    m.def("has_kernel", [](const std::string& op, const std::string& kind) { return multi_kernel(op, kind) != nullptr; },
          py::arg("op"), py::arg("kind"), "Whether vectors of this kind can be reduced by this operation.");
}
