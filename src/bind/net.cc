// `_core.Transport`: messages between the hosts of a plan; the programs of all hosts, checked.
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "bind/bind.h"
#include "bind/values.h"
#include "exec/net/transport.h"
#include "exec/program/bundle.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

auto CheckPrograms(const std::string& text) {
  std::vector<std::string> hosts;
  for (const exec::Program& program : Unlocked([&] { return exec::ParsePrograms(text); })) {
    hosts.push_back(program.host);
  }
  return ToTuple(hosts);
}

}  // namespace

void BindNet(nb::module_& module) {
  nb::class_<exec::Transport>(module, "Transport",
                              "The messages of one rank; see src/exec/net/transport.h.")
      .def_prop_ro("rank", &exec::Transport::rank, "Which of the ranks it is.")
      .def_prop_ro("num_ranks", &exec::Transport::num_ranks, "How many there are.")
      .def_prop_ro("name", &exec::Transport::name, "What moves the bytes.")
      .def(
          "abort", [](exec::Transport& self, const std::string& reason) { self.Abort(reason); },
          nb::arg("reason"), nb::call_guard<WithoutGil>(),
          "End all messages on all ranks; of any thread.");
  module.def("check_programs", &CheckPrograms, nb::arg("text"), R"(
Check the programs of all hosts, each alone and all together, or of one host alone.

Returns
-------
tuple of str
    Names of the hosts, by rank; "" for one without a name.

Raises
------
ArtifactError
    A line is wrong, a message has not its two ends, or the programs would deadlock.
)");
}

}  // namespace heteroplace::bind
