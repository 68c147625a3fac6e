// What the element-wise reductions do to two operands, a type at a time.
#pragma once

#include <type_traits>

#include "isa.h"

// Integers wrap around as in NumPy: computed unsigned, where overflow is defined.
template <class T>
struct Wrap { using type = std::make_unsigned_t<T>; };
template <>
struct Wrap<float> { using type = float; };
template <>
struct Wrap<double> { using type = double; };

struct Add {
    template <class T>
    static KERNEL T apply(T a, T b) {
        using W = typename Wrap<T>::type;
        return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
    }
};

struct Multiply {
    template <class T>
    static KERNEL T apply(T a, T b) {
        // One more step for uint16: its operands would be promoted to int, whose product can overflow.
        using W = std::conditional_t<(sizeof(T) < 4), unsigned, typename Wrap<T>::type>;
        return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
    }
};

// As numpy.minimum and numpy.maximum: NaN on either side gives NaN.
struct Minimum {
    template <class T>
    static KERNEL T apply(T a, T b) { return (a < b || a != a) ? a : b; }
};

struct Maximum {
    template <class T>
    static KERNEL T apply(T a, T b) { return (a > b || a != a) ? a : b; }
};

// MPI's logical and bitwise operations, on integers.
struct LogicalAnd {
    template <class T>
    static KERNEL T apply(T a, T b) { return static_cast<T>((a != 0) & (b != 0)); }
};

struct LogicalOr {
    template <class T>
    static KERNEL T apply(T a, T b) { return static_cast<T>((a != 0) | (b != 0)); }
};

struct LogicalXor {
    template <class T>
    static KERNEL T apply(T a, T b) { return static_cast<T>((a != 0) ^ (b != 0)); }
};

struct BitAnd {
    template <class T>
    static KERNEL T apply(T a, T b) { return static_cast<T>(a & b); }
};

struct BitOr {
    template <class T>
    static KERNEL T apply(T a, T b) { return static_cast<T>(a | b); }
};

struct BitXor {
    template <class T>
    static KERNEL T apply(T a, T b) { return static_cast<T>(a ^ b); }
};
