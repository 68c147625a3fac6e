// One binding function an op family; module.cpp calls them all.
#pragma once

#include <pybind11/pybind11.h>

namespace py = pybind11;

void bind_reduce(py::module_& m);
void bind_half(py::module_& m);
void bind_chunk_max(py::module_& m);
void bind_threshold(py::module_& m);
void bind_top_k(py::module_& m);
void bind_gather(py::module_& m);
void bind_update(py::module_& m);
void bind_measure(py::module_& m);
void bind_union(py::module_& m);
void bind_lists(py::module_& m);
void bind_memory(py::module_& m);
void bind_low_rank(py::module_& m);
void bind_quantise(py::module_& m);
void bind_coded(py::module_& m);
void bind_natural(py::module_& m);
void bind_norms(py::module_& m);
void bind_signs(py::module_& m);
void bind_levels(py::module_& m);
void bind_bounded(py::module_& m);
void bind_random(py::module_& m);
void bind_moments(py::module_& m);
void bind_sketch(py::module_& m);
void bind_node(py::module_& m);
void bind_plain(py::module_& m);
void bind_bin_select(py::module_& m);
void bind_array_lists(py::module_& m);
