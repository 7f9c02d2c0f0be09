#include "parts/throughput/bind/bind.h"

#include "bind/bind.h"

namespace heteroplace::bind {

void BindThroughput(nanobind::module_& module) {
  BindCuts(module);
  BindBatched(module);
  BindSteadyState(module);
}

}  // namespace heteroplace::bind
