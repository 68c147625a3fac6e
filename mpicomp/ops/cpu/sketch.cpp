#include "bind.h"

void bind_sketch(py::module_&) {}
