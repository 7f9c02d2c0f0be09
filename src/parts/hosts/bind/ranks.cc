// `_core.Group`, `_core.RankedExecutor`: this process as one of the ranks of a job.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "bind/executor.h"
#include "bind/gil.h"
#include "parts/hosts/bind/bind.h"
#include "parts/hosts/group.h"
#include "parts/hosts/job.h"
#include "parts/hosts/ranked_executor.h"
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

/*! \brief The executor of one of several ranks: of the feeding one it is that of the whole job. */
class RankedExecutor : public LoadedExecutor {
 public:
  explicit RankedExecutor(std::unique_ptr<exec::RankedExecutor> ranked)
      : LoadedExecutor(&ranked->executor()), ranked_(std::move(ranked)) {}

  exec::RankedExecutor& ranked() { return *ranked_; }
  const exec::Program& program() const override { return ranked_->merged(); }
  const exec::Program& ProgramOf(size_t host) const override { return ranked_->programs()[host]; }

  void Check(const char* function) const override { ranked_->CheckFeeding(function); }
  void CheckAlone(const char* refusal) const override {
    throw Error(ErrorKind::kExecution, refusal);
  }
  void NameFailure(const Error& error) const override {
    const std::string failure = ranked_->group().failure();
    if (error.kind() == ErrorKind::kExecution && !failure.empty() && failure != error.what()) {
      std::throw_with_nested(Error(ErrorKind::kExecution, failure));
    }
  }

  std::vector<exec::Executor::Span> RunTimed(const exec::Limit& limit) override {
    return ranked_->RunTimed(limit);
  }
  void StartTrace(std::optional<int64_t> max_requests) override {
    ranked_->StartTrace(max_requests);
  }
  exec::Trace StopTrace(const exec::Limit& limit) override { return ranked_->MergedTrace(limit); }
  std::vector<int64_t> Profile(int64_t num_runs, const exec::Limit& limit) override {
    return ranked_->Profile(num_runs, limit);
  }
  std::vector<int64_t> ProfileCpu(int64_t num_runs, const exec::Limit& limit) override {
    return ranked_->ProfileCpu(num_runs, limit);
  }
  std::vector<std::vector<exec::SpaceBytes>> MemoryBytes(const exec::Limit& limit) override {
    return ranked_->MemoryBytes(limit);
  }

 private:
  std::unique_ptr<exec::RankedExecutor> ranked_;
};

void MakeRanked(RankedExecutor* place, std::shared_ptr<exec::Group> group,
                const std::string& libtvm_path, const std::string& library_path,
                const std::string& program_text, const std::optional<BlobArray>& blob,
                int max_in_flight, std::optional<bool> helping, bool cuda_graphs, bool cuda_words) {
  const exec::ExecutorSource source = SourceOf(libtvm_path, library_path, program_text, blob,
                                               max_in_flight, helping, cuda_graphs, cuda_words);
  const exec::Limit limit = LimitOf({});
  Unlocked([&] {
    new (place) RankedExecutor(
        std::make_unique<exec::RankedExecutor>(std::move(group), source, [](int) {}, limit));
  });
}

void Serve(RankedExecutor& self) {
  const exec::Limit limit = LimitOf({});
  Unlocked([&] { self.ranked().Serve(limit); });
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
}

}  // namespace

constexpr const char* kRankedText = R"(
One rank's part of a program for several hosts; all ranks make one.

On the feeding rank it is an `Executor` whose instructions and queues are those of all hosts. On
the others all but `serve` is refused with what to call. Errors of a job that has failed are the
one that all ranks have.
)";

constexpr const char* kLoadText = R"(
Load the program of this rank's host; all ranks.

Parameters
----------
group
    `Group.core`.
program_text
    The programs of all hosts. All others: see `Executor`.

Raises
------
ExecutionError
    On all ranks, if one cannot load.
)";

void BindRanks(nb::module_& module) {
  BindGroup(module);
  nb::class_<RankedExecutor, LoadedExecutor>(module, "RankedExecutor", kRankedText)
      .def("__init__", &MakeRanked, nb::arg("group"), nb::arg("libtvm_path"),
           nb::arg("library_path"), nb::arg("program_text"), nb::kw_only(), nb::arg("blob").none(),
           nb::arg("max_in_flight") = 1, nb::arg("helping") = nb::none(),
           nb::arg("cuda_graphs") = false, nb::arg("cuda_words") = true, kLoadText)
      .def_prop_ro(
          "is_feeding", [](RankedExecutor& self) { return self.ranked().is_feeding(); },
          "Whether its host feeds and reads the model.")
      .def("serve", &Serve, R"(
Do what the feeding rank says, until it closes.

Raises
------
ExecutionError
    This is the feeding rank, or a rank has failed.
)")
      .def(
          "close", [](RankedExecutor& self) { self.ranked().Close(); },
          nb::call_guard<WithoutGil>(),
          "End the job in order, on the feeding rank; elsewhere nothing.");
}

}  // namespace heteroplace::bind
