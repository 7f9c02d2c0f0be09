// The workers' part of measuring, and the executor's orders for it.
#include "exec/measure/sampling.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>

#include "exec/run/executor.h"
#include "exec/run/worker.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

constexpr int kClockRounds = 100;

/*! \brief No processor has shorter lines; a line that is flushed twice costs little. */
constexpr uintptr_t kShortestLineBytes = 64;

int64_t ReadClock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + static_cast<int64_t>(now.tv_nsec);
}

int64_t ByteSize(const DLTensor& tensor) {
  int64_t elements = 1;
  for (int i = 0; i < tensor.ndim; ++i) elements *= tensor.shape[i];
  return (elements * tensor.dtype.bits * tensor.dtype.lanes + 7) / 8;
}

/*! \brief Writes the lines of some memory back and drops them from the caches of all cores. */
void Flush(const void* data, int64_t bytes) {
  const uintptr_t begin =
      reinterpret_cast<uintptr_t>(data) / kShortestLineBytes * kShortestLineBytes;
  const uintptr_t end = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes);
  for (uintptr_t line = begin; line < end; line += kShortestLineBytes) {
#if defined(__x86_64__)
    asm volatile("clflush (%0)" : : "r"(line) : "memory");
#elif defined(__aarch64__)
    asm volatile("dc civac, %0" : : "r"(line) : "memory");
#endif
  }
#if defined(__x86_64__)
  asm volatile("mfence" : : : "memory");
#elif defined(__aarch64__)
  asm volatile("dsb ish" : : : "memory");
#endif
}

constexpr bool CanFlush() {
#if defined(__x86_64__) || defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

void FlushArguments(const KernelCall& call) {
  for (int i = 0; i < call.num_arguments; ++i) {
    const auto* tensor = static_cast<const DLTensor*>(call.arguments[i].v_handle);
    const char* data = static_cast<const char*>(tensor->data) + tensor->byte_offset;
    Flush(data, ByteSize(*tensor));
  }
}

}  // namespace

int64_t ThreadCpuNs() { return ReadClock(CLOCK_THREAD_CPUTIME_ID); }

int64_t CpuNs(const std::vector<int>& clocks) {
  int64_t sum = 0;
  for (int clock : clocks) sum += ReadClock(clock);
  return sum;
}

int64_t ThreadCpuClockNs() {
  int64_t least = ThreadCpuNs();
  for (int i = 0; i < kClockRounds; ++i) {
    const int64_t before = ThreadCpuNs();
    least = std::min(least, ThreadCpuNs() - before);
  }
  return least;
}

/*! \brief As RunHost, but the spans hold processor times of this thread. */
void Worker::RunCpuTimed() {
  workspace_.Clear();
  const int64_t clock_ns = ThreadCpuClockNs();
  for (current_ = 0; current_ < instructions_.size(); ++current_) {
    const BoundInstruction& instruction = instructions_[current_];
    if (!Await(instruction)) return;
    const int64_t before = ThreadCpuNs();
    if (!Execute(instruction)) return;
    spans_[current_] = {0, std::max<int64_t>(0, ThreadCpuNs() - before - clock_ns)};
    if (instruction.is_awaited) progress_.Publish(static_cast<uint32_t>(current_) + 1);
    if (instruction.opcode == Opcode::kCall && instruction.role.threads > 1) team_.End();
    if (state_->is_cancelled.load(std::memory_order_relaxed)) return;
  }
}

void Worker::Sample(SampleOrder* order) {
  workspace_.Clear();
  try {
    if (stream_ != nullptr) {
      SampleStream(order);
      current_ = instructions_.size();
      stream_->Synchronise();
    } else {
      SampleHost(order);
    }
  } catch (const Error& error) {
    FailAndDrain(error.what());
  }
}

void Worker::SampleHost(SampleOrder* order) {
  for (current_ = 0; current_ < instructions_.size(); ++current_) {
    const BoundInstruction& instruction = instructions_[current_];
    if (!Await(instruction)) return;
    const bool is_call = instruction.opcode == Opcode::kCall;
    if (!(is_call ? SampleCall(instruction, order) : Execute(instruction))) return;
    if (instruction.is_awaited) progress_.Publish(static_cast<uint32_t>(current_) + 1);
    if (is_call && instruction.role.threads > 1) team_.End();
    if (state_->is_cancelled.load(std::memory_order_relaxed)) return;
  }
}

/*!
 * \brief Takes all samples of a call. Those who joined it stay until it is published, and help in
 * every repetition.
 */
bool Worker::SampleCall(const BoundInstruction& instruction, SampleOrder* order) {
  const auto call = [&] {
    if (!Call(instruction)) return false;
    if (instruction.role.threads > 1) team_.End();
    return true;
  };
  for (int64_t sample = 0; sample < order->num_samples; ++sample) {
    KernelSample sum;
    // With warm caches one pair of clock readings covers all calls; with cold ones each call has
    // its own, as the flush between two calls must not count.
    const int64_t rounds = order->is_cold ? order->num_calls : 1;
    for (int64_t round = 0; round < rounds; ++round) {
      if (order->is_cold) FlushArguments(instruction.call);
      const int64_t cpu_ns = CpuNs(order->clocks);
      const int64_t start_ns = NowNs();
      for (int64_t i = 0; i < order->num_calls / rounds; ++i) {
        if (!call()) return false;
      }
      sum.wall_ns += NowNs() - start_ns;
      sum.cpu_ns += CpuNs(order->clocks) - cpu_ns;
    }
    order->samples.push_back(sum);
    if (state_->is_cancelled.load(std::memory_order_relaxed)) return false;
  }
  return true;
}

void Worker::SampleStream(SampleOrder* order) {
  for (current_ = 0; current_ < instructions_.size(); ++current_) {
    const BoundInstruction& instruction = instructions_[current_];
    if (!Await(instruction)) return;
    if (instruction.opcode == Opcode::kCall) {
      const std::unique_ptr<Event> start = stream_->MakeEvent(/*is_timed=*/true);
      const std::unique_ptr<Event> finish = stream_->MakeEvent(/*is_timed=*/true);
      for (int64_t sample = 0; sample < order->num_samples; ++sample) {
        stream_->Record(start.get());
        for (int64_t i = 0; i < order->num_calls; ++i) stream_->Launch(instruction.call);
        stream_->Record(finish.get());
        finish->HostWait();
        order->samples.push_back({finish->ElapsedNs(*start), 0});
        if (state_->is_cancelled.load(std::memory_order_relaxed)) return;
      }
    } else {
      stream_->Copy(*instruction.dst, *instruction.src, instruction.bytes);
    }
    if (instruction.is_awaited) {
      stream_->Record(instruction.event.get());
      progress_.Publish(static_cast<uint32_t>(current_) + 1);
    }
  }
}

std::vector<KernelSample> Executor::Sample(int64_t num_samples, int64_t num_calls, bool is_cold) {
  std::unique_lock lock = Occupy();
  if (num_samples < 1 || num_calls < 1) {
    throw Error(ErrorKind::kExecution,
                "a kernel is sampled with at least 1 sample of 1 call; got " +
                    std::to_string(num_samples) + " of " + std::to_string(num_calls));
  }
  int64_t num_kernel_calls = 0;
  bool is_async = false;
  for (const Queue& queue : program_.queues) {
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
  sample_order_ = SampleOrder{};
  sample_order_.num_samples = num_samples;
  sample_order_.num_calls = num_calls;
  sample_order_.is_cold = is_cold;
  for (std::thread& thread : threads_) {
    clockid_t clock{};
    if (pthread_getcpuclockid(thread.native_handle(), &clock) != 0) {
      throw Error(ErrorKind::kExecution, "this system has no clock of a thread's processor time");
    }
    sample_order_.clocks.push_back(static_cast<int>(clock));
  }
  CheckInputs();
  has_outputs_ = false;
  library_->InstallRuntime();
  Command(Order::kSample, /*is_timed=*/false, 1);
  if (state_.is_cancelled.load()) throw Error(ErrorKind::kExecution, state_.failure);
  return sample_order_.samples;
}

std::vector<int64_t> Executor::ProfileCpu(int64_t num_runs) {
  std::unique_lock lock = Occupy();
  for (const Queue& queue : program_.queues) {
    if (queue.IsAsync()) {
      throw Error(ErrorKind::kExecution, "queue '" + queue.name +
                                             "' is asynchronous: its work takes no processor time "
                                             "that could be told apart");
    }
  }
  is_cpu_timed_ = true;
  std::vector<int64_t> medians;
  try {
    RunMany(/*is_timed=*/true, num_runs);
  } catch (...) {
    is_cpu_timed_ = false;
    throw;
  }
  is_cpu_timed_ = false;
  for (std::vector<int64_t>& durations : durations_ns_) {
    std::sort(durations.begin(), durations.end());
    medians.push_back(durations[durations.size() / 2]);
  }
  return medians;
}

}  // namespace heteroplace::exec
