// Runs a program over all its devices at once. One worker thread per queue; no interpreter.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/engine/engine.h"
#include "exec/measure/sampling.h"
#include "exec/requests/request.h"

namespace heteroplace::exec {

/*!
 * \brief A loaded program, ready to run many times. Any thread may call any function.
 *
 * `Begin` gives a request of the caller's own; as many are in flight as the source allows, and
 * others wait. SetInput, Run and GetOutput use the first slot, one call at a time. What measures
 * waits until no request is in flight, and lets none begin meanwhile. A failed request leaves the
 * executor and all other requests as they are.
 */
class Executor {
 public:
  /*! \brief When an instruction ran, in ns from the start of the request; its waits come before. */
  struct Span {
    int64_t start_ns;
    int64_t finish_ns;
  };

  /*! \throws Error kArtifact for a wrong file or program; kExecution for a missing device. */
  explicit Executor(const ExecutorSource& source);
  /*! \brief Ends the workers. No call may be at work, and no request be held. */
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Program& program() const { return engine_->image().program(); }

  /*! \brief Most requests in flight. */
  int max_in_flight() const { return engine_->slots().max_slots(); }

  /*! \brief See Engine. */
  StepReached Reached() const { return engine_->Reached(); }

  /*! \brief How requests were run that could be run in either mode. */
  ModeCounts Modes() const { return engine_->Modes(); }

  /*! \brief Whether cores that wait do parts of others' kernels. */
  bool is_helping() const { return engine_->is_helping(); }

  /*! \brief A request in a slot of its own; null if none is free until the limit. */
  std::unique_ptr<Request> Begin(const Limit& limit = {},
                                 std::shared_ptr<Session> session = nullptr);

  /*! \brief State of a sequence of calls, all zeros, for `Begin`. \throws Error kExecution when
   * memory is short. */
  std::shared_ptr<Session> NewSession();

  /*! \brief Sets an input until it is set again; `data` is compact and row major. */
  void SetInput(const std::string& name, const DLDataType& dtype, const std::vector<int64_t>& shape,
                const void* data, const Limit& limit = {});

  /*! \brief The tensor of an output, for its type and shape. */
  const Tensor& OutputTensor(const std::string& name) const;

  /*! \brief Copies an output of the last run in the first slot. */
  void GetOutput(const std::string& name, void* data, const Limit& limit = {});

  /*! \brief Whether the last run of all was, or is, in the first slot. */
  bool WasLastInFirst() const;

  /*! \brief Runs once. \throws Error kExecution as Request::Finish. */
  void Run(const Limit& limit = {});

  /*! \brief Runs once and measures every instruction; queue by queue. [num_instructions] */
  std::vector<Span> RunTimed(const Limit& limit = {});

  /*!
   * \brief Records all requests that begin from now on, but those of RunTimed and what measures
   * instructions.
   * \param max_requests that are kept, the last ones; none: as many as kTraceBytes hold.
   * \throws Error kExecution if it records already, or `max_requests` is out of range.
   */
  void StartTrace(std::optional<int64_t> max_requests = {});

  /*!
   * \brief Ends the recording: what was recorded, once the requests in it have ended.
   *
   * Those that have not at the limit, or after a step that does not end, are only counted.
   * \throws Error kExecution if nothing is recorded.
   */
  Trace StopTrace(const Limit& limit = {});

  /*! \brief See Decisions. \throws Error kExecution. */
  void Predict(const std::vector<PredictedBranches>& all) { engine_->Predict(all); }
  /*! \brief How predictions of each router came out. \throws Error kExecution without routers. */
  std::vector<std::pair<std::string, PredictionCounts>> PredictionsOf() {
    return engine_->PredictionsOf();
  }
  /*! \brief Records the decisions of all requests that end from now on. \throws Error kExecution if
   * it records already, the program has no routers, or cells are not known. */
  void StartDecisions(DecisionLevel level) { engine_->StartDecisions(level); }
  /*! \brief What was recorded since the last call; ends the recording if so. \throws Error
   * kExecution if nothing is recorded. */
  RecordedDecisions TakeDecisions(bool ends) { return engine_->TakeDecisions(ends); }

  /*!
   * \brief What copies have moved so far, in all requests, also failed ones; of a guarded copy only
   * the rows that went over. Messages between hosts are no copies. Any thread.
   * \return (step of the plan, bytes) of each copy, queue by queue.
   */
  std::vector<std::pair<int64_t, int64_t>> CopiedBytes() const { return engine_->CopiedBytes(); }

  /*! \brief ns of every instruction in each timed run. [num_instructions][num_runs] as RunTimed. */
  std::vector<int64_t> Profile(int64_t num_runs, const Limit& limit = {});

  /*!
   * \brief Wall ns of each of some runs in a row. [num_runs]
   *
   * From the start that the last worker gives to the moment at which the last worker ends; the
   * caller's own wake-up is not in it, as no caller takes part between two runs.
   */
  std::vector<int64_t> Benchmark(int64_t num_runs, const Limit& limit = {});

  /*! \brief As Profile, but processor ns of the worker. Without asynchronous queues only. */
  std::vector<int64_t> ProfileCpu(int64_t num_runs, const Limit& limit = {});

  /*!
   * \brief Measures the only kernel call of the program; all else is done once, before it.
   * \param num_calls that one sample consists of.
   * \param is_cold whether the arguments are dropped from all caches before every call.
   * \return [num_samples]
   */
  std::vector<KernelSample> Sample(int64_t num_samples, int64_t num_calls, bool is_cold,
                                   const Limit& limit = {});

  /*!
   * \brief Bytes held for each space, after the runs so far. [num_spaces]
   *
   * Values, inputs and outputs of all slots made so far. Scratch memory is that of the cores'
   * workers, which grows in the first run. What kernels of a GPU take from TVM's pool of its memory
   * is not known.
   */
  std::vector<SpaceBytes> MemoryBytes(const Limit& limit = {});

  /*! \brief ns for a cache line to go between the first two CPU queues; none with fewer. */
  std::optional<int64_t> CoreToCoreNs(const Limit& limit = {});

 private:
  friend class Request;

  void Measure(RequestKind kind, const std::shared_ptr<Measurement>& found, const Limit& limit);
  void CheckSample(int64_t num_samples, int64_t num_calls, bool is_cold) const;
  /*! \brief Writes a value into a slot; of the caller that holds it. */
  void WriteInput(Slot* slot, const std::string& name, const DLDataType& dtype,
                  const std::vector<int64_t>& shape, const void* data);
  void ReadOutput(Slot* slot, const std::string& name, void* data);
  bool HasState(Slot* slot, const Port& output) const;
  /*!
   * \brief Takes what was not given from the first slot; not what a session keeps.
   * \param is_measured whether state that was changed in place may be what it is.
   * \throws Error kExecution.
   */
  void FillInputs(Slot* slot, bool is_measured = false);
  void CopyInput(size_t input, Slot* from, Slot* to);

  /*! \brief Left behind if a worker cannot be ended. */
  std::unique_ptr<Engine> engine_;
  /*! \brief Guards the values of the inputs in the first slot, and their versions. */
  std::mutex inputs_mutex_;
  std::atomic<int64_t> last_version_{0};
};

}  // namespace heteroplace::exec
