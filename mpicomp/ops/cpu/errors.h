// The errors raised on purpose; module.cpp turns them into the classes of mpicomp.errors of the same name.
#pragma once

#include <stdexcept>

struct InvalidArgument : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct BufferRefused : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct RankLeft : std::runtime_error {
    using std::runtime_error::runtime_error;
};
