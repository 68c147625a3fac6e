#include "bind.h"

void bind_lists(py::module_&) {}
