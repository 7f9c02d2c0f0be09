// `_core.local_transports`, `_core.mpi_transport`: what moves the messages of ranks.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/gil.h"
#include "bind/values.h"
#include "exec/net/transport.h"
#include "parts/hosts/bind/bind.h"
#include "parts/hosts/transports/local_transport.h"
#include "parts/hosts/transports/mpi_abi.h"
#include "parts/hosts/transports/mpi_transport.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

auto LocalTransports(int num_ranks, uint64_t seed, int64_t max_delay_ns, bool is_buffered) {
  std::vector<std::shared_ptr<exec::Transport>> transports;
  for (auto& transport : exec::MakeLocalTransports(num_ranks, {seed, max_delay_ns, is_buffered})) {
    transports.push_back(std::move(transport));
  }
  return ToTuple(transports);
}

std::shared_ptr<exec::Transport> MpiTransport(std::optional<uintptr_t> communicator,
                                              const std::string& library) {
  exec::MpiOptions options;
  options.library = library;
  options.communicator = communicator;
  return Unlocked(
      [&]() -> std::shared_ptr<exec::Transport> { return exec::MakeMpiTransport(options); });
}

}  // namespace

void BindTransports(nb::module_& module) {
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
  module.def("launched_ranks", &exec::LaunchedRanks,
             "How many ranks the launcher of this process has started; 1: there is none.");
  module.def("mpi_transport", &MpiTransport, nb::arg("communicator") = nb::none(),
             nb::arg("library") = "", R"(
Return this rank's transport by MPI; all ranks call it.

Parameters
----------
communicator
    MPI's handle of the ranks' communicator; None: all that the launcher has started.
library
    Path of the MPI library; "": the one of this process, else of the launcher.

Raises
------
ExecutionError
    No library, one that is refused, or what MPI says.
)");
  module.def("end_mpi_at_exit", &exec::EndMpiAtExit, R"(
End MPI when this process ends, which whoever began it leaves open, but not in a child.

After `mpi_transport`.
)");
}

}  // namespace heteroplace::bind
