// One binding function an op family; module.cpp calls them all.
#pragma once

#include <pybind11/pybind11.h>

namespace py = pybind11;

void bind_reduce(pybind11::module_& m);
void bind_half(pybind11::module_& m);
void bind_chunk_max(pybind11::module_& m);
void bind_threshold(pybind11::module_& m);
void bind_top_k(pybind11::module_& m);
void bind_gather(pybind11::module_& m);
void bind_update(pybind11::module_& m);
void bind_measure(pybind11::module_& m);
void bind_union(pybind11::module_& m);
void bind_lists(py::module_& m);
void bind_low_rank(py::module_& m);
void bind_quantise(py::module_& m);
void bind_random(py::module_& m);
void bind_moments(py::module_& m);
void bind_sketch(py::module_& m);
