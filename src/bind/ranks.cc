// `_core.Group`, `_core.RankedExecutor`: this process as one of the ranks of a job.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <utility>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "bind/executor_source.h"
#include "bind/gil.h"
#include "exec/trace/trace_json.h"
#include "parts/hosts/group.h"
#include "parts/hosts/job.h"
#include "parts/hosts/ranked_executor.h"
#include "parts/hosts/transports/mpi_abi.h"
#include "parts/hosts/transports/mpi_transport.h"
#include "support/shown_text.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

/*! \brief Shows a failure at once: a launcher may end this process before a call raises it. */
void Tell(const std::string& text, bool is_first) {
  if (!is_first) return;
  const std::string line = "heteroplace: " + ShownText(text) + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

std::shared_ptr<exec::Group> Meet(std::shared_ptr<exec::Transport> transport, double silence_s) {
  const exec::Limit limit = LimitOf({});
  const auto silence_ns = static_cast<int64_t>(silence_s * 1e9);
  return Unlocked([&] {
    auto group = exec::Group::Meet(std::move(transport), {silence_ns, Tell}, limit);
    if (group->transport_name() != "local") exec::ForgetSharedFiles();
    return group;
  });
}

std::shared_ptr<exec::Transport> MpiTransport(const std::string& library,
                                              std::optional<uintptr_t> communicator) {
  exec::MpiOptions options;
  options.library = library;
  options.communicator = communicator;
  return Unlocked(
      [&]() -> std::shared_ptr<exec::Transport> { return exec::MakeMpiTransport(options); });
}

std::vector<std::string> AgreeOnFile(exec::Group& group, const std::string& path,
                                     const exec::CompiledFile* file, const std::string& fault,
                                     const std::string& hosts, int max_in_flight) {
  const exec::Limit limit = LimitOf({});
  return Unlocked([&] {
    exec::JobFile job{path, "", "", fault};
    if (file != nullptr && fault.empty()) job = exec::JobFileOf(path, *file);
    return exec::AgreeOnFile(&group, job, hosts, max_in_flight, limit);
  });
}

void MakeRanked(exec::RankedExecutor* place, std::shared_ptr<exec::Group> group,
                const std::string& libtvm_path, const std::string& library_path,
                const std::string& program_text, const std::optional<BlobArray>& blob,
                int max_in_flight, std::optional<bool> helping, bool cuda_graphs, bool cuda_words) {
  const exec::ExecutorSource source = SourceOf(libtvm_path, library_path, program_text, blob,
                                               max_in_flight, helping, cuda_graphs, cuda_words);
  const exec::Limit limit = LimitOf({});
  Unlocked([&] { new (place) exec::RankedExecutor(std::move(group), source, [](int) {}, limit); });
}

void Serve(exec::RankedExecutor& ranked) {
  const exec::Limit limit = LimitOf({});
  Unlocked([&] { ranked.Serve(limit); });
}

template <std::vector<int64_t> (exec::RankedExecutor::*kMeasure)(int64_t, const exec::Limit&)>
NumpyInts TimeRuns(exec::RankedExecutor& ranked, int64_t num_runs) {
  const exec::Limit limit = LimitOf({});
  return ToNumpy(Unlocked([&] { return (ranked.*kMeasure)(num_runs, limit); }));
}

void StartRankedTrace(exec::RankedExecutor& ranked, std::optional<int64_t> max_requests) {
  Unlocked([&] { ranked.StartTrace(max_requests); });
}

exec::Trace StopRankedTrace(exec::RankedExecutor& ranked, std::optional<double> timeout_s) {
  const exec::Limit limit = LimitOf(timeout_s);
  return Unlocked([&] { return ranked.MergedTrace(limit); });
}

std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>> MemoryBytes(
    exec::RankedExecutor& ranked) {
  const exec::Limit limit = LimitOf({});
  const auto all = Unlocked([&] { return ranked.MemoryBytes(limit); });
  std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>> rows;
  for (size_t host = 0; host < all.size(); ++host) {
    for (size_t space = 0; space < all[host].size(); ++space) {
      const exec::SpaceBytes& bytes = all[host][space];
      rows.emplace_back(ranked.programs()[host].spaces[space].name, bytes.arena, bytes.weights,
                        bytes.workspace);
    }
  }
  return rows;
}

void BindGroup(nb::module_& module) {
  nb::class_<exec::Group>(module, "Group", "The ranks of a job; see src/parts/hosts/group.h.")
      .def_prop_ro("rank", &exec::Group::rank, "Which of the ranks it is.")
      .def_prop_ro("num_ranks", &exec::Group::num_ranks, "How many there are.")
      .def_prop_ro("host", &exec::Group::host, "Position of its host; after agree_on_file.")
      .def_prop_ro("transport_name", &exec::Group::transport_name, "What moves the bytes.")
      .def_prop_ro("failure", &exec::Group::failure, "Why the job has failed; \"\": it has not.")
      .def("name_of", &exec::Group::NameOf, nb::arg("rank"), "A rank, for messages.")
      .def("fail", &exec::Group::Fail, nb::arg("text"), nb::call_guard<WithoutGil>(),
           "End the job on all ranks.")
      .def("agree_on_file", &AgreeOnFile, nb::arg("path"), nb::arg("file").none(), nb::arg("fault"),
           nb::arg("hosts"), nb::arg("max_in_flight"),
           "Names of the hosts, once all ranks have the same file; all ranks.");
  module.def("meet", &Meet, nb::arg("transport"), nb::arg("silence_s"),
             "The group of this rank; all ranks.");
  module.def("launched_ranks", &exec::LaunchedRanks,
             "How many ranks the launcher of this process has started; 1: there is none.");
  module.def("mpi_transport", &MpiTransport, nb::arg("library"),
             nb::arg("communicator").none() = nb::none(), "Messages by MPI; all ranks.");
  module.def("end_mpi_at_exit", &exec::EndMpiAtExit,
             "End MPI, which its beginner leaves open, but not in children of this process.");
}

}  // namespace

void BindRanks(nb::module_& module) {
  BindGroup(module);
  nb::class_<exec::RankedExecutor>(module, "RankedExecutor",
                                   "One rank's part; see src/parts/hosts/ranked_executor.h.")
      .def("__init__", &MakeRanked, nb::arg("group"), nb::arg("libtvm_path"),
           nb::arg("library_path"), nb::arg("program_text"), nb::arg("blob").none(),
           nb::arg("max_in_flight"), nb::arg("helping").none(), nb::arg("cuda_graphs"),
           nb::arg("cuda_words"), "Load the program of this rank's host; all ranks.")
      .def_prop_ro("executor", &exec::RankedExecutor::executor, nb::rv_policy::reference_internal,
                   "Of the program of this rank's host.")
      .def_prop_ro("is_feeding", &exec::RankedExecutor::is_feeding,
                   "Whether its host feeds and reads the model.")
      .def_prop_ro("feeding_rank", &exec::RankedExecutor::feeding_rank, "Whose host does.")
      .def("check_feeding", &exec::RankedExecutor::CheckFeeding, nb::arg("function"),
           "Refuse a function of the feeding rank elsewhere, or after a failure.")
      .def("serve", &Serve, "Do what the feeding rank says until it closes.")
      .def("close", &exec::RankedExecutor::Close, nb::call_guard<WithoutGil>(),
           "End the job in order; the feeding rank.")
      .def(
          "instructions",
          [](const exec::RankedExecutor& self) { return DescribeInstructions(self.merged()); },
          "(queue, position, step, kernel or \"\") of all hosts.")
      .def(
          "queues", [](const exec::RankedExecutor& self) { return DescribeQueues(self.merged()); },
          "Names, of all hosts.")
      .def("profile", &TimeRuns<&exec::RankedExecutor::Profile>, nb::arg("num_runs"),
           "As Executor, of all hosts.")
      .def("profile_cpu", &TimeRuns<&exec::RankedExecutor::ProfileCpu>, nb::arg("num_runs"),
           "As Executor, of all hosts.")
      .def("memory_bytes", &MemoryBytes, "As Executor, of all hosts.")
      .def("start_trace", &StartRankedTrace, nb::arg("max_requests").none() = nb::none(),
           "Record on all ranks.")
      .def("stop_trace", &StopRankedTrace, nb::arg("timeout_s").none() = nb::none(),
           "End the recording: that of all ranks as one.")
      .def(
          "trace_json",
          [](const exec::RankedExecutor& self, const exec::Trace& trace,
             const std::vector<std::string>& step_names) {
            return Unlocked([&] { return exec::TraceJson(self.merged(), trace, step_names); });
          },
          nb::arg("trace"), nb::arg("step_names"), "The text of a Chrome trace of all hosts.");
}

}  // namespace heteroplace::bind
