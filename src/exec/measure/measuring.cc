// The executor's measurements, each in requests that stand alone.
#include <algorithm>
#include <memory>

#include "exec/engine/executor.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

int64_t Median(std::vector<int64_t> values) {
  auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/*! \brief Lets the times of all instructions of each repetition be recorded. */
void AskForTimes(Measurement* found, const Program& program) {
  size_t num_instructions = 0;
  for (const Queue& queue : program.queues) num_instructions += queue.instructions.size();
  found->durations_ns.resize(num_instructions);
  found->trace = std::make_shared<TraceRecorder>(&program, 1, 1, TraceClock::Source::kMonotonic);
}

/*! \brief A measurement of some runs in a row, of whole runs or of every instruction too. */
void Ask(Measurement* found, const Program& program, int64_t num_runs, bool is_timed) {
  if (num_runs < 1) {
    throw Error(ErrorKind::kExecution,
                "the number of runs is " + std::to_string(num_runs) + "; expected at least 1");
  }
  found->runs_left = num_runs;
  if (is_timed) AskForTimes(found, program);
}

constexpr bool CanFlush() {
#if defined(__x86_64__) || defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

}  // namespace

void Executor::Measure(RequestKind kind, const std::shared_ptr<Measurement>& found,
                       const Limit& limit) {
  engine_->CheckUsable();
  Engine::Alone alone(engine_.get(), limit);
  alone.slot()->Use(nullptr);
  if (kind != RequestKind::kPassLine) FillInputs(alone.slot(), /*is_measured=*/true);
  if (kind == RequestKind::kSample) found->sample.clocks = engine_->Clocks();
  const bool had_outputs = alone.slot()->has_outputs;
  alone.Run(kind, found, limit);
  // A sampled kernel ran without the others; a thrown line leaves the outputs of the last run.
  if (kind == RequestKind::kSample) alone.slot()->has_outputs = false;
  if (kind == RequestKind::kPassLine) alone.slot()->has_outputs = had_outputs;
}

std::vector<Executor::Span> Executor::RunTimed(const Limit& limit) {
  const auto found = std::make_shared<Measurement>();
  AskForTimes(found.get(), program());
  Measure(RequestKind::kRun, found, limit);
  const Trace trace = found->trace->Collect();
  const int64_t origin_ns = trace.requests.at(0).start_ns;
  std::vector<Span> spans;
  spans.reserve(trace.events.size());
  for (const TraceEvent& event : trace.events) {
    spans.push_back({event.start_ns - origin_ns, event.finish_ns - origin_ns});
  }
  return spans;
}

std::vector<int64_t> Executor::Profile(int64_t num_runs, const Limit& limit) {
  const auto found = std::make_shared<Measurement>();
  Ask(found.get(), program(), num_runs, /*is_timed=*/true);
  Measure(RequestKind::kRun, found, limit);
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& durations : found->durations_ns) {
    all.insert(all.end(), durations.begin(), durations.end());
  }
  return all;
}

std::vector<int64_t> Executor::Benchmark(int64_t num_runs, const Limit& limit) {
  const auto found = std::make_shared<Measurement>();
  Ask(found.get(), program(), num_runs, /*is_timed=*/false);
  Measure(RequestKind::kRun, found, limit);
  return found->wall_ns;
}

std::vector<int64_t> Executor::ProfileCpu(int64_t num_runs, const Limit& limit) {
  for (const Queue& queue : program().queues) {
    if (queue.IsAsync()) {
      throw Error(ErrorKind::kExecution, "queue '" + queue.name +
                                             "' is asynchronous: its work takes no processor time "
                                             "that could be told apart");
    }
  }
  const auto found = std::make_shared<Measurement>();
  Ask(found.get(), program(), num_runs, /*is_timed=*/true);
  Measure(RequestKind::kCpuTimed, found, limit);
  std::vector<int64_t> medians;
  for (std::vector<int64_t>& durations : found->durations_ns) {
    std::ranges::sort(durations);
    medians.push_back(durations[durations.size() / 2]);
  }
  return medians;
}

void Executor::CheckSample(int64_t num_samples, int64_t num_calls, bool is_cold) const {
  if (num_samples < 1 || num_calls < 1) {
    throw Error(ErrorKind::kExecution,
                "a kernel is sampled with at least 1 sample of 1 call; got " +
                    std::to_string(num_samples) + " of " + std::to_string(num_calls));
  }
  int64_t num_kernel_calls = 0;
  bool is_async = false;
  if (program().num_hosts > 1) {
    throw Error(ErrorKind::kExecution,
                "only a program of one host can be sampled; this one is for " +
                    std::to_string(program().num_hosts));
  }
  for (const Queue& queue : program().queues) {
    for (const Instruction& at : queue.instructions) {
      if (at.opcode != Opcode::kCall) continue;
      ++num_kernel_calls;
      is_async = is_async || queue.IsAsync();
    }
  }
  if (num_kernel_calls != 1) {
    throw Error(ErrorKind::kExecution,
                "only a program of one kernel call can be sampled; this one "
                "has " +
                    std::to_string(num_kernel_calls));
  }
  if (is_cold && (is_async || !CanFlush())) {
    throw Error(ErrorKind::kExecution,
                "caches are emptied only on processors, and only on x86-64 and ARM64; sample with "
                "warm caches here");
  }
}

std::vector<KernelSample> Executor::Sample(int64_t num_samples, int64_t num_calls, bool is_cold,
                                           const Limit& limit) {
  CheckSample(num_samples, num_calls, is_cold);
  const auto found = std::make_shared<Measurement>();
  found->sample.num_samples = num_samples;
  found->sample.num_calls = num_calls;
  found->sample.is_cold = is_cold;
  Measure(RequestKind::kSample, found, limit);
  return found->sample.samples;
}

std::vector<SpaceBytes> Executor::MemoryBytes(const Limit& limit) {
  engine_->CheckUsable();
  // Alone: workers change their scratch memory.
  const Engine::Alone alone(engine_.get(), limit);
  const std::vector<int64_t> held = engine_->slots().HeldBytes();
  std::vector<SpaceBytes> spaces(held.size());
  for (size_t s = 0; s < spaces.size(); ++s) {
    spaces[s] = {held[s], engine_->image().weight_bytes()[s], 0};
  }
  for (const std::unique_ptr<Worker>& worker : engine_->workers()) {
    const int32_t space = worker->queue().space;
    if (space >= 0) spaces[static_cast<size_t>(space)].workspace += worker->workspace_bytes();
  }
  return spaces;
}

std::optional<int64_t> Executor::CoreToCoreNs(const Limit& limit) {
  const auto is_cpu = [](const Queue& queue) { return queue.kind == QueueKind::kCpu; };
  if (std::count_if(program().queues.begin(), program().queues.end(), is_cpu) < 2) return {};
  const auto found = std::make_shared<Measurement>();
  Measure(RequestKind::kPassLine, found, limit);
  return Median(found->line_rounds_ns);
}

}  // namespace heteroplace::exec
