#include "bind.h"

void bind_moments(py::module_&) {}
