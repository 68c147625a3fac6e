#include "bind.h"

void bind_random(py::module_&) {}
