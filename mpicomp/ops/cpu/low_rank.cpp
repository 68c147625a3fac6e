#include "bind.h"

void bind_low_rank(py::module_&) {}
