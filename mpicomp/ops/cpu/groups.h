// Groups of neighbouring elements that share a scale: group g is [bounds[g], bounds[g + 1]) and may be empty.
#pragma once

#include <algorithm>

#include "arrays.h"
#include "isa.h"

struct Groups {
    const std::int64_t* bounds;
    std::size_t count;
};

KERNEL bool ascends(const std::int64_t* bounds, std::size_t count) {
    std::int64_t descents = 0;
    for (std::size_t g = 0; g < count; ++g) descents |= bounds[g + 1] < bounds[g];
    return descents == 0;
}

// Bounds that cut all of [0, n), or an error.
inline Groups groups_of(const py::array& bounds, std::size_t n) {
    const auto b = input<std::int64_t>(bounds, "bounds");
    if (b.n == 0 || b.data[0] != 0 || b.data[b.n - 1] != static_cast<std::int64_t>(n) ||
        !dispatch<ascends>(b.data, b.n - 1))
        throw InvalidArgument("bounds must ascend from 0 to " + std::to_string(n));
    return {b.data, b.n - 1};
}

// The group that element i is in.
inline std::size_t group_at(Groups groups, std::size_t i) {
    const auto* after = std::upper_bound(groups.bounds, groups.bounds + groups.count + 1, static_cast<std::int64_t>(i));
    return static_cast<std::size_t>(after - groups.bounds) - 1;
}

// Gives every element of [begin, end) its group's value: values[i - begin] = value_of(group of i). `group` holds the
// place between calls for neighbouring ranges; it begins as group_at(begin).
template <class T, class ValueOf>
KERNEL void expand(Groups groups, std::size_t* group, std::size_t begin, std::size_t end, ValueOf value_of, T* values) {
    for (std::size_t i = begin; i < end;) {
        while (static_cast<std::size_t>(groups.bounds[*group + 1]) <= i) ++*group;
        const std::size_t stop = std::min(end, static_cast<std::size_t>(groups.bounds[*group + 1]));
        const T value = value_of(*group);
        for (; i < stop; ++i) values[i - begin] = value;
    }
}
