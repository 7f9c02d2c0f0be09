#include "bind/bind.h"

namespace heteroplace {

void BindSchedule(nanobind::module_&) {}

}  // namespace heteroplace
