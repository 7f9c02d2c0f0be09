#include "parts/hosts/bind/bind.h"

#include "bind/bind.h"

namespace heteroplace::bind {

void BindHosts(nanobind::module_& module) {
  BindTransports(module);
  BindRanks(module);
}

}  // namespace heteroplace::bind
