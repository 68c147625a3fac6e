#include "bind.h"

void bind_quantise(py::module_&) {}
