// `_core.Transport`: messages between the hosts of a plan; the programs of all hosts, checked.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "bind/gil.h"
#include "exec/net/transport.h"
#include "exec/program/bundle.h"
#include "parts/hosts/transports/local_transport.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

std::vector<std::string> CheckPrograms(const std::string& text) {
  std::vector<std::string> hosts;
  for (const exec::Program& program : Unlocked([&] { return exec::ParsePrograms(text); })) {
    hosts.push_back(program.host);
  }
  return hosts;
}

std::vector<std::shared_ptr<exec::Transport>> LocalTransports(int num_ranks, uint64_t seed,
                                                              int64_t max_delay_ns,
                                                              bool is_buffered) {
  std::vector<std::shared_ptr<exec::Transport>> transports;
  for (auto& transport : exec::MakeLocalTransports(num_ranks, {seed, max_delay_ns, is_buffered})) {
    transports.push_back(std::move(transport));
  }
  return transports;
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
  module.def("local_transports", &LocalTransports, nb::arg("num_ranks"), nb::arg("seed"),
             nb::arg("max_delay_ns"), nb::arg("is_buffered"),
             "Ranks as threads of this process; see src/parts/hosts/transports/local_transport.h.");
  module.def("check_programs", &CheckPrograms, nb::arg("text"),
             "Check the programs of all hosts, or of one alone: names of the hosts, by rank.");
}

}  // namespace heteroplace::bind
