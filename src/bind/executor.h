// An executor as Python has it, of a process alone or of one rank, and what it is made from.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bind/gil.h"
#include "exec/engine/executor.h"

namespace heteroplace::bind {

using BlobArray =
    nanobind::ndarray<const uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

/*! \brief Keeps an array alive as long as a worker may read it, whichever thread drops it. */
inline std::shared_ptr<const void> Kept(const BlobArray& blob) {
  return {new BlobArray(blob), [](const void* array) {
            // At the end of the interpreter nothing is freed any more.
            if (!IsFinalizing()) {
              const WithGil locked;
              delete static_cast<const BlobArray*>(array);
            }
          }};
}

inline exec::ExecutorSource SourceOf(const std::string& libtvm_path,
                                     const std::string& library_path,
                                     const std::string& program_text,
                                     const std::optional<BlobArray>& blob, int max_in_flight,
                                     std::optional<bool> helping, bool cuda_graphs,
                                     bool cuda_words) {
  exec::ExecutorSource source;
  source.libtvm_path = libtvm_path;
  source.library_path = library_path;
  source.program_text = program_text;
  source.max_in_flight = max_in_flight;
  source.helping = helping;
  source.has_cuda_graphs = cuda_graphs;
  source.has_cuda_words = cuda_words;
  if (blob.has_value()) {
    source.blob = {blob->data(), static_cast<int64_t>(blob->size()), Kept(*blob)};
  }
  return source;
}

/*! \brief An executor of a process alone. What is virtual is different on one of several ranks. */
class LoadedExecutor {
 public:
  explicit LoadedExecutor(const exec::ExecutorSource& source)
      : alone_(std::make_unique<exec::Executor>(source)), local_(alone_.get()) {}
  virtual ~LoadedExecutor() = default;

  /*! \brief That of the program of this process. */
  exec::Executor& local() { return *local_; }
  /*! \brief All instructions, of other ranks too. */
  virtual const exec::Program& program() const { return local_->program(); }

  /*! \brief Refuses a function where the process may not call it. \throws Error kExecution. */
  virtual void Check([[maybe_unused]] const char* function) const {}
  /*! \brief Refuses, with this text, what a process alone can do. \throws Error kExecution. */
  virtual void CheckAlone([[maybe_unused]] const char* refusal) const {}
  /*! \brief In a handler of an error: throws that of the whole job instead, if there is one. */
  virtual void NameFailure([[maybe_unused]] const Error& error) const {}

  virtual std::vector<exec::Executor::Span> RunTimed(const exec::Limit& limit) {
    return local_->RunTimed(limit);
  }
  virtual void StartTrace(std::optional<int64_t> max_requests) { local_->StartTrace(max_requests); }
  virtual exec::Trace StopTrace(const exec::Limit& limit) { return local_->StopTrace(limit); }
  virtual std::vector<int64_t> Profile(int64_t num_runs, const exec::Limit& limit) {
    return local_->Profile(num_runs, limit);
  }
  virtual std::vector<int64_t> ProfileCpu(int64_t num_runs, const exec::Limit& limit) {
    return local_->ProfileCpu(num_runs, limit);
  }
  /*! \brief Of the spaces of each program. [num_hosts][num_spaces] */
  virtual std::vector<std::vector<exec::SpaceBytes>> MemoryBytes(const exec::Limit& limit) {
    return {local_->MemoryBytes(limit)};
  }
  /*! \brief The program of each host. [num_hosts] */
  virtual const exec::Program& ProgramOf([[maybe_unused]] size_t host) const { return program(); }

  /*! \brief Does a function's work within a limit, without the interpreter's lock. */
  template <typename Work>
  auto Call(const char* function, const Work& work, std::optional<double> timeout_s = {}) const {
    Check(function);
    const exec::Limit limit = LimitOf(timeout_s);
    try {
      return Unlocked([&] { return work(limit); });
    } catch (const Error& error) {
      NameFailure(error);
      throw;
    }
  }

 protected:
  explicit LoadedExecutor(exec::Executor* local) : local_(local) {}

 private:
  std::unique_ptr<exec::Executor> alone_;  // none on a rank
  exec::Executor* local_;
};

/*! \brief A request of an executor, which outlives it. */
struct LoadedRequest {
  std::unique_ptr<exec::Request> core;
  LoadedExecutor* executor;

  void Check([[maybe_unused]] const char* function) const {}
};

/*! \brief State of a sequence of calls of an executor, which outlives it. */
struct LoadedSession {
  std::shared_ptr<exec::Session> core;
  LoadedExecutor* executor;
};

/*! \brief Adds the functions that measure. */
void BindMeasuring(nanobind::class_<LoadedExecutor>& executor);
/*! \brief Adds recordings of requests and of route decisions. */
void BindRecording(nanobind::module_& module, nanobind::class_<LoadedExecutor>& executor);
/*! \brief Adds sessions. */
void BindSession(nanobind::module_& module, nanobind::class_<LoadedExecutor>& executor);

}  // namespace heteroplace::bind
