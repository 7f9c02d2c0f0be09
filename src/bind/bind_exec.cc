#include "bind/bind.h"

namespace heteroplace {

void BindExec(nanobind::module_&) {}

}  // namespace heteroplace
