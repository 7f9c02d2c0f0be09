// Running: the order to the workers, the barrier between runs, inputs and outputs.
#include "exec/run/executor.h"

#include <algorithm>
#include <cstring>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

constexpr int kLineRounds = 21;
constexpr uint32_t kTransfersPerRound = 1000;

/*! \brief Spins of a caller that has a core to itself, so that short runs need no wake-up. */
constexpr int kCallerSpins = 20 * kSpins;

int64_t Median(std::vector<int64_t> values) {
  auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string Quoted(const std::vector<Port>& ports) {
  std::string text;
  for (const Port& port : ports) text += (text.empty() ? "'" : ", '") + port.name + "'";
  return text.empty() ? "none" : text;
}

size_t FindPort(const std::vector<Port>& ports, const char* kind, const std::string& name) {
  for (size_t i = 0; i < ports.size(); ++i) {
    if (ports[i].name == name) return i;
  }
  throw Error(ErrorKind::kExecution, std::string("the program has no ") + kind + " '" + name +
                                         "'; it has " + Quoted(ports));
}

}  // namespace

std::unique_lock<std::mutex> Executor::Occupy() {
  std::unique_lock lock(occupied_, std::try_to_lock);
  if (!lock.owns_lock()) {
    throw Error(ErrorKind::kExecution,
                "the executor is at work for another thread; make one executor per thread, or "
                "call it from one thread at a time");
  }
  return lock;
}

void Executor::SetInput(const std::string& name, const DLDataType& dtype,
                        const std::vector<int64_t>& shape, const void* data) {
  std::unique_lock lock = Occupy();
  const size_t input = FindPort(program_.inputs, "input", name);
  const int32_t id = program_.inputs[input].tensor;
  const Tensor& tensor = program_.tensors[static_cast<size_t>(id)];
  const bool is_same_type = dtype.code == tensor.dtype.code && dtype.bits == tensor.dtype.bits &&
                            dtype.lanes == tensor.dtype.lanes;
  if (!is_same_type || shape != tensor.shape) {
    throw Error(ErrorKind::kExecution, "input '" + name + "': expected " +
                                           DescribeTensor(tensor.dtype, tensor.shape) + ", got " +
                                           DescribeTensor(dtype, shape));
  }
  store_->Write(id, data);
  is_input_set_[input] = true;
}

const Tensor& Executor::OutputTensor(const std::string& name) const {
  const size_t output = FindPort(program_.outputs, "output", name);
  return program_.tensors[static_cast<size_t>(program_.outputs[output].tensor)];
}

void Executor::GetOutput(const std::string& name, void* data) {
  std::unique_lock lock = Occupy();
  const size_t output = FindPort(program_.outputs, "output", name);
  if (!has_outputs_) {
    throw Error(ErrorKind::kExecution, "output '" + name +
                                           "' has no value: no run has succeeded since the "
                                           "executor was made or since the last failure");
  }
  store_->Read(program_.outputs[output].tensor, data);
}

void Executor::CheckInputs() const {
  std::string missing;
  for (size_t i = 0; i < is_input_set_.size(); ++i) {
    if (!is_input_set_[i])
      missing += (missing.empty() ? "'" : ", '") + program_.inputs[i].name + "'";
  }
  if (!missing.empty()) {
    throw Error(ErrorKind::kExecution, "inputs without a value: " + missing + "; set them first");
  }
}

void Executor::Run() {
  std::unique_lock lock = Occupy();
  RunMany(/*is_timed=*/false, 1);
}

std::vector<Span> Executor::RunTimed() {
  std::unique_lock lock = Occupy();
  RunMany(/*is_timed=*/true, 1);
  std::vector<Span> spans;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    spans.insert(spans.end(), worker->spans().begin(), worker->spans().end());
  }
  return spans;
}

std::vector<int64_t> Executor::Profile(int64_t num_runs) {
  std::unique_lock lock = Occupy();
  RunMany(/*is_timed=*/true, num_runs);
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& durations : durations_ns_) {
    all.insert(all.end(), durations.begin(), durations.end());
  }
  return all;
}

std::vector<int64_t> Executor::Benchmark(int64_t num_runs) {
  std::unique_lock lock = Occupy();
  RunMany(/*is_timed=*/false, num_runs);
  return wall_ns_;
}

std::vector<SpaceBytes> Executor::MemoryBytes() {
  std::unique_lock lock = Occupy();
  std::vector<SpaceBytes> spaces = store_->space_bytes();
  for (const std::unique_ptr<Worker>& worker : workers_) {
    const int32_t space = worker->queue().space;
    if (space >= 0) spaces[static_cast<size_t>(space)].workspace += worker->workspace_bytes();
  }
  return spaces;
}

std::optional<int64_t> Executor::CoreToCoreNs() {
  std::unique_lock lock = Occupy();
  const auto is_cpu = [](const Queue& queue) { return queue.kind == QueueKind::kCpu; };
  if (std::count_if(program_.queues.begin(), program_.queues.end(), is_cpu) < 2) return {};
  line_rounds_ns_.clear();
  ball_.store(0);
  Command(Order::kCoreToCore, /*is_timed=*/false, 1);
  return Median(line_rounds_ns_);
}

void Executor::RunMany(bool is_timed, int64_t num_runs) {
  if (num_runs < 1) {
    throw Error(ErrorKind::kExecution,
                "the number of runs is " + std::to_string(num_runs) + "; expected at least 1");
  }
  CheckInputs();
  for (std::vector<int64_t>& durations : durations_ns_) durations.clear();
  has_outputs_ = false;
  library_->InstallRuntime();
  Command(Order::kRun, is_timed, num_runs);
  if (state_.is_cancelled.load()) throw Error(ErrorKind::kExecution, state_.failure);
  has_outputs_ = true;
}

void Executor::Command(Order order, bool is_timed, int64_t num_runs) {
  order_ = order;
  is_timed_ = is_timed;
  runs_left_ = num_runs;
  is_repeating_.store(num_runs > 1);
  wall_ns_.clear();
  wall_ns_.reserve(static_cast<size_t>(num_runs));
  state_.is_cancelled.store(false);
  state_.failure.clear();
  const uint32_t before = carried_out_.load();
  BeginOne();
  // A caller that spins on a worker's core would take its time.
  const bool has_own_core = std::thread::hardware_concurrency() > workers_.size();
  carried_out_bell_.WaitUntil([&] { return carried_out_.load() != before; },
                              has_own_core ? kCallerSpins : 0);
}

/*! \brief Starts all workers once. They are all idle, or the caller is the last one at work. */
void Executor::BeginOne() {
  for (std::unique_ptr<Worker>& worker : workers_) {
    worker->progress().done.store(0, std::memory_order_relaxed);
  }
  working_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  state_.start_ns = NowNs();
  // Sequentially consistent: all of the above is seen by whoever sees the new epoch.
  epoch_.fetch_add(1);
  epoch_bell_.Ring();
}

/*! \brief Last worker of a run: keeps its times; starts the next one or tells the caller. */
void Executor::FinishOne() {
  const int64_t finish_ns = NowNs();
  if (order_ == Order::kRun && !state_.is_cancelled.load()) {
    wall_ns_.push_back(finish_ns - state_.start_ns);
    if (is_timed_) {
      size_t i = 0;
      for (const std::unique_ptr<Worker>& worker : workers_) {
        for (const Span& span : worker->spans()) {
          durations_ns_[i++].push_back(span.finish_ns - span.start_ns);
        }
      }
    }
    if (--runs_left_ > 0) {
      if (runs_left_ == 1) is_repeating_.store(false);
      BeginOne();
      return;
    }
  }
  carried_out_.fetch_add(1);
  carried_out_bell_.Ring();
}

void Executor::WorkerMain(size_t queue) {
  try {
    PrepareWorker(queue);
  } catch (const Error& error) {
    state_.Fail(error.what());
  }
  uint32_t seen = 0;
  // Acquire and release: what every worker did is seen by the last one, and so by the caller.
  if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    carried_out_.fetch_add(1);
    carried_out_bell_.Ring();
  }
  for (;;) {
    epoch_bell_.WaitUntil([&] { return epoch_.load() != seen; },
                          is_repeating_.load() ? state_.run_spins : kSpins);
    ++seen;
    if (order_ == Order::kStop) return;
    if (order_ == Order::kRun) {
      is_cpu_timed_ ? workers_[queue]->RunCpuTimed() : workers_[queue]->Run(is_timed_);
    } else if (order_ == Order::kSample) {
      workers_[queue]->Sample(&sample_order_);
    } else if (workers_[queue]->queue().kind == QueueKind::kCpu) {
      size_t earlier = 0;
      for (size_t q = 0; q < queue; ++q) {
        if (program_.queues[q].kind == QueueKind::kCpu) ++earlier;
      }
      if (earlier < 2) PassLine(/*is_first=*/earlier == 0);
    }
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) FinishOne();
  }
}

/*! \brief Throws the ball to the other worker and catches it again; times it on the first. */
void Executor::PassLine(bool is_first) {
  uint32_t ball = 0;
  for (int round = 0; round < kLineRounds; ++round) {
    const int64_t start_ns = NowNs();
    for (uint32_t i = 0; i < kTransfersPerRound / 2; ++i) {
      if (is_first) ball_.store(++ball, std::memory_order_release);
      // No pause: it would add up to its own length to every transfer.
      while (ball_.load(std::memory_order_acquire) != ball + 1) {
      }
      ++ball;
      if (!is_first) ball_.store(++ball, std::memory_order_release);
    }
    if (is_first) line_rounds_ns_.push_back((NowNs() - start_ns) / kTransfersPerRound);
  }
}

}  // namespace heteroplace::exec
