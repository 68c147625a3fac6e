// Block codes: a scale and 8 or 4 bits per element in blocks of 256; see oracle/block_codes.py.
#pragma once

#include "coded.h"

// What decode_blocks reads: n values.
template <class T>
Source<T> values_of_blocks(std::size_t n, const py::array& codes, const std::string& format);

void bind_block_codes(py::module_& m);
