// The workers' part of measuring.
#include "exec/measure/sampling.h"

#include <pthread.h>

#include <algorithm>
#include <ctime>

#include "exec/engine/engine.h"
#include "exec/workers/worker.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

constexpr int kClockRounds = 100;
constexpr int kLineRounds = 21;
constexpr uint32_t kTransfersPerRound = 1000;

/*! \brief Looks at the line between two questions whether the request was cancelled. */
constexpr uint32_t kLooksPerQuestion = 1 << 16;

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

/*! \brief As RunHost, but the recorded spans hold processor times of this thread. */
void Worker::RunCpuTimed() {
  RecordedSpan* spans = slot_->trace->spans(index_, slot_->trace_place);
  const int64_t clock_ns = ThreadCpuClockNs();
  for (size_t i = 0; i < instructions_.size(); ++i) {
    const BoundInstruction& instruction = instructions_[i];
    position_.store(i, std::memory_order_relaxed);
    if (!Await(instruction) || slot_->HasFailed()) return;
    const int64_t before = ThreadCpuNs();
    if (!Execute(instruction)) return;
    spans[i] = {0, std::max<int64_t>(0, ThreadCpuNs() - before - clock_ns)};
    Tell(instruction, i);
  }
}

void Worker::SampleHost(SampleOrder* order) {
  for (size_t i = 0; i < instructions_.size(); ++i) {
    const BoundInstruction& instruction = instructions_[i];
    position_.store(i, std::memory_order_relaxed);
    if (!Await(instruction) || slot_->HasFailed()) return;
    const bool is_call = instruction.opcode == Opcode::kCall;
    if (!(is_call ? SampleCall(instruction, order) : Execute(instruction))) return;
    Tell(instruction, i);
  }
}

/*!
 * \brief Takes all samples of a call. Those who joined it stay until it is published, and help in
 * every repetition.
 */
bool Worker::SampleCall(const BoundInstruction& instruction, SampleOrder* order) {
  const KernelCall arguments = CallOf(instruction);
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
      if (order->is_cold) FlushArguments(arguments);
      const int64_t cpu_ns = CpuNs(order->clocks);
      const int64_t start_ns = NowNs();
      for (int64_t i = 0; i < order->num_calls / rounds; ++i) {
        if (!call() || slot_->HasFailed()) return false;
      }
      sum.wall_ns += NowNs() - start_ns;
      sum.cpu_ns += CpuNs(order->clocks) - cpu_ns;
    }
    order->samples.push_back(sum);
  }
  return true;
}

/*! \brief Takes all samples of a call on a stream; false if the request has failed meanwhile. */
bool Worker::SampleStream(const BoundInstruction& instruction, SampleOrder* order) {
  const std::unique_ptr<Event> start = stream_->MakeEvent(/*is_timed=*/true);
  const std::unique_ptr<Event> finish = stream_->MakeEvent(/*is_timed=*/true);
  try {
    for (int64_t sample = 0; sample < order->num_samples; ++sample) {
      stream_->Record(start.get());
      for (int64_t call = 0; call < order->num_calls; ++call) {
        stream_->Launch(CallOf(instruction));
      }
      stream_->Record(finish.get());
      finish->HostWait();
      order->samples.push_back({finish->ElapsedNs(*start), 0});
      if (slot_->HasFailed()) return false;
    }
  } catch (const std::exception& fault) {
    Fail(CauseOf(fault));
    Drain();  // what was issued may still mark the events
    return false;
  }
  return true;
}

/*! \brief Throws the ball to the other worker and catches it again; times it on the first. */
void Worker::PassLine() {
  if (queue_.kind != QueueKind::kCpu) return;
  size_t earlier = 0;
  for (size_t q = 0; q < index_; ++q) {
    if (image_->program().queues[q].kind == QueueKind::kCpu) ++earlier;
  }
  if (earlier >= 2) return;
  const bool is_first = earlier == 0;
  std::atomic<uint32_t>& ball = slot_->measurement->ball;
  uint32_t passed = 0;
  for (int round = 0; round < kLineRounds; ++round) {
    const int64_t start_ns = NowNs();
    for (uint32_t i = 0; i < kTransfersPerRound / 2; ++i) {
      if (is_first) ball.store(++passed, std::memory_order_release);
      // No pause: it would add up to its own length to every transfer.
      uint32_t looks = 0;
      while (ball.load(std::memory_order_acquire) != passed + 1) {
        if (++looks % kLooksPerQuestion == 0 && slot_->HasFailed()) return;
      }
      ++passed;
      if (!is_first) ball.store(++passed, std::memory_order_release);
    }
    if (is_first) {
      slot_->measurement->line_rounds_ns.push_back((NowNs() - start_ns) / kTransfersPerRound);
    }
  }
}

std::vector<int> Engine::Clocks() {
  std::vector<int> clocks;
  for (std::thread& thread : threads_) {
    clockid_t clock{};
    if (pthread_getcpuclockid(thread.native_handle(), &clock) != 0) {
      throw Error(ErrorKind::kExecution, "this system has no clock of a thread's processor time");
    }
    clocks.push_back(static_cast<int>(clock));
  }
  return clocks;
}

}  // namespace heteroplace::exec
