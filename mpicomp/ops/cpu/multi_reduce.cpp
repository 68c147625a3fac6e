// Several vectors reduced in one pass, block by block: partial results stay in the L1 cache.
#include "multi_reduce.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "half.h"
#include "lanes.h"
#include "past_caches.h"
#include "reduce.h"

namespace {

constexpr std::size_t block_bytes = 8192;

// How numbers are stored, and the type of their reduction: `widened` has n of them in it, in `room` if that takes a
// conversion.
template <class T>
struct AsIs {
    using Stored = T;
    using Value = T;

    template <int width>
    static KERNEL const T* widened(const T* stored, std::size_t, T*) {
        return stored;
    }
};

template <class H>
struct Half {
    using Stored = std::uint16_t;
    using Value = float;

    template <int width>
    static KERNEL const float* widened(const std::uint16_t* stored, std::size_t n, float* room) {
        widen_all<H, width>(room, stored, n);
        return room;
    }

    template <int width>
    static KERNEL void narrow(std::uint16_t* stored, const float* values, std::size_t n) {
        narrow_all<H, width>(stored, values, n);
    }
};

// acc = a OP b, acc = acc OP a, acc = acc OP a OP b.
template <class Op, class T>
KERNEL void begin_two(T* acc, const T* a, const T* b, std::size_t n) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) acc[i] = Op::apply(a[i], b[i]);
}

template <class Op, class T>
KERNEL void one_more(T* acc, const T* a, std::size_t n) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) acc[i] = Op::apply(acc[i], a[i]);
}

template <class Op, class T>
KERNEL void two_more(T* acc, const T* a, const T* b, std::size_t n) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) acc[i] = Op::apply(Op::apply(acc[i], a[i]), b[i]);
}

template <class Op, class Type>
struct Multi {
    using Stored = typename Type::Stored;
    using Value = typename Type::Value;
    static constexpr bool converts = !std::is_same_v<Stored, Value>;
    static constexpr std::size_t block = block_bytes / sizeof(Value);

    template <int width>
    static KERNEL void run(const MultiReduce* task) {
        alignas(64) Value acc[block], rooms[2][converts ? block : 1];
        alignas(64) Stored out[converts ? block : 1];
        const std::size_t n_src = task->src.size();  // at least 2
        for (std::size_t begin = 0; begin < task->n; begin += block) {
            const std::size_t n = std::min(block, task->n - begin);
            const auto source = [&](std::size_t j) KERNEL_LAMBDA {
                const auto* stored = reinterpret_cast<const Stored*>(task->src[j]) + begin;
                return Type::template widened<width>(stored, n, rooms[j % 2]);
            };
            begin_two<Op>(acc, source(0), source(1), n);
            std::size_t j = 2;
            for (; j + 2 <= n_src; j += 2) two_more<Op>(acc, source(j), source(j + 1), n);
            if (j < n_src) one_more<Op>(acc, source(j), n);
            if constexpr (std::is_floating_point_v<Value>)
                if (task->factor != 1)
                    for (std::size_t i = 0; i < n; ++i) acc[i] *= static_cast<Value>(task->factor);
            const char* ready = reinterpret_cast<const char*>(acc);
            if constexpr (converts) {
                Type::template narrow<width>(out, acc, n);
                ready = reinterpret_cast<const char*>(out);
            }
            for (const Destination& dst : task->dst)
                copy_bytes(dst.to + begin * sizeof(Stored), ready, n * sizeof(Stored), dst.stream);
        }
    }
};

template <class Op, class Type>
void run(const MultiReduce& task) {
    dispatch_by_width<Multi<Op, Type>>(&task);
}

using Table = std::map<std::pair<std::string, std::string>, MultiKernel>;

template <class Op>
void add_reals(Table& table, const char* op) {
    table[{op, "float32"}] = run<Op, AsIs<float>>;
    table[{op, "float64"}] = run<Op, AsIs<double>>;
    table[{op, "float16"}] = run<Op, Half<Float16>>;
    table[{op, "bfloat16"}] = run<Op, Half<BFloat16>>;
}

template <class Op>
void add_unsigned(Table& table, const char* op) {
    table[{op, "uint8"}] = run<Op, AsIs<std::uint8_t>>;
    table[{op, "uint16"}] = run<Op, AsIs<std::uint16_t>>;
    table[{op, "uint32"}] = run<Op, AsIs<std::uint32_t>>;
    table[{op, "uint64"}] = run<Op, AsIs<std::uint64_t>>;
}

template <class Op>
void add_signed(Table& table, const char* op) {
    table[{op, "int8"}] = run<Op, AsIs<std::int8_t>>;
    table[{op, "int16"}] = run<Op, AsIs<std::int16_t>>;
    table[{op, "int32"}] = run<Op, AsIs<std::int32_t>>;
    table[{op, "int64"}] = run<Op, AsIs<std::int64_t>>;
}

// Operations that do not see the sign: the unsigned kernels do for signed integers too.
template <class Op>
void add_integers(Table& table, const char* op) {
    add_unsigned<Op>(table, op);
    for (const char* bits : {"8", "16", "32", "64"})
        table[{op, std::string("int") + bits}] = table[{op, std::string("uint") + bits}];
}

Table make_table() {
    Table table;
    add_reals<Add>(table, "sum");
    add_reals<Multiply>(table, "prod");
    add_reals<Minimum>(table, "min");
    add_reals<Maximum>(table, "max");
    add_integers<Add>(table, "sum");
    add_integers<Multiply>(table, "prod");
    add_unsigned<Minimum>(table, "min");
    add_signed<Minimum>(table, "min");
    add_unsigned<Maximum>(table, "max");
    add_signed<Maximum>(table, "max");
    add_integers<LogicalAnd>(table, "land");
    add_integers<LogicalOr>(table, "lor");
    add_integers<LogicalXor>(table, "lxor");
    add_integers<BitAnd>(table, "band");
    add_integers<BitOr>(table, "bor");
    add_integers<BitXor>(table, "bxor");
    return table;
}

}  // namespace

MultiKernel multi_kernel(const std::string& op, const std::string& kind) {
    static const Table table = make_table();
    const auto found = table.find({op, kind});
    return found == table.end() ? nullptr : found->second;
}
