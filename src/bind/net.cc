// `_core.Transport`: messages between the hosts of a plan; the programs of all hosts, checked.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "bind/values.h"
#include "exec/net/transport.h"
#include "exec/program/bundle.h"
#include "parts/hosts/transports/local_transport.h"

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

auto LocalTransports(int num_ranks, uint64_t seed, int64_t max_delay_ns, bool is_buffered) {
  std::vector<std::shared_ptr<exec::Transport>> transports;
  for (auto& transport : exec::MakeLocalTransports(num_ranks, {seed, max_delay_ns, is_buffered})) {
    transports.push_back(std::move(transport));
  }
  return ToTuple(transports);
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
  module.def("local_transports", &LocalTransports, nb::arg("num_ranks"), nb::kw_only(),
             nb::arg("seed") = 0, nb::arg("max_delay_ns") = 0, nb::arg("is_buffered") = false, R"(
Make the transports of ranks that are threads of this process, where there is no MPI.

Parameters
----------
seed
    Of the delays.
max_delay_ns
    Each message takes from 0 to this long after both sides have started it.
is_buffered
    A send is complete when its bytes are taken, not when they are received.

Returns
-------
tuple of Transport
    By rank; each for one executor.
)");
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
