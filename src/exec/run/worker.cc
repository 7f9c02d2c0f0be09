#include "exec/run/worker.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

void PinToCore(const Queue& queue) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(queue.core), &cores);
  const int error = pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
  if (error != 0) {
    throw Error(ErrorKind::kExecution,
                "queue '" + queue.name + "' needs core " + std::to_string(queue.core) +
                    ", which this machine or this process's cpuset does not have (" +
                    std::strerror(error) + "); plan for the cores it has");
  }
}

/*! \brief Turn that a worker asks for: the shortest that Linux grants. */
constexpr uint64_t kTurnNs = 100'000;

/*! \brief The kernel's `sched_attr` in its first version; not every C library declares it. */
struct SchedulingRequest {
  uint32_t size = sizeof(SchedulingRequest);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};

/*!
 * \brief Lets the calling thread, once woken, begin before the turn of another program is over.
 *
 * Since 6.6 Linux lets a running thread finish its turn of some milliseconds before one of equal
 * priority that has been woken: beside a busy program each hand-over would take as long as 50
 * undisturbed ones. Since 6.12 a thread that asks for shorter turns goes first. Its share of the
 * core stays the same. A wish only: older systems ignore it, sandboxes may refuse it, and all
 * works without it.
 */
void AskForShortTurns() {
#if defined(SYS_sched_getattr) && defined(SYS_sched_setattr)
  SchedulingRequest request;
  if (syscall(SYS_sched_getattr, 0, &request, sizeof(request), 0) != 0) return;
  // Threads with a fixed priority, which someone has set, do not wait for others' turns.
  if (request.policy != SCHED_OTHER && request.policy != SCHED_BATCH) return;
  request.runtime_ns = kTurnNs;
  static_cast<void>(syscall(SYS_sched_setattr, 0, &request, 0));
#endif
}

/*! \brief Threads of the largest team that a queue leads. */
uint32_t MaxThreads(const Queue& queue) {
  int32_t threads = 1;
  for (const Instruction& instruction : queue.instructions) {
    if (instruction.opcode == Opcode::kCall) threads = std::max(threads, instruction.threads);
  }
  return static_cast<uint32_t>(threads);
}

}  // namespace

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void RunState::Fail(const std::string& text) {
  {
    std::lock_guard lock(mutex);
    if (failure.empty()) failure = text;
  }
  is_cancelled.store(true);
  for (Worker* worker : workers) {
    worker->progress().bell.Ring();
    worker->team().Cancel();
  }
}

Worker::Worker(const TvmAbi* abi, const Program& program, size_t queue, RunState* state,
               Device* host)
    : abi_(abi),
      program_(program),
      queue_(program.queues[queue]),
      state_(state),
      instructions_(queue_.instructions.size()),
      spans_(queue_.instructions.size()),
      team_(abi, MaxThreads(queue_)),
      workspace_(host) {}

void Worker::MakeStream(TensorStore* store) {
  if (!queue_.IsAsync()) return;
  if (queue_.kind == QueueKind::kFake) {
    fake_device_ = MakeFakeDevice(abi_, queue_.delay_ns);
    stream_ = fake_device_->MakeStream();
  } else {
    stream_ = store->DeviceOf(queue_.device)->MakeStream();
    if (queue_.workspace_bytes != 0) stream_->ReserveWorkspace(queue_.workspace_bytes);
  }
  for (size_t i = 0; i < instructions_.size(); ++i) {
    if (queue_.instructions[i].is_awaited) {
      instructions_[i].event = stream_->MakeEvent(/*is_timed=*/false);
    }
  }
}

void Worker::Bind(const Program& program, TensorStore* store, KernelLibrary* library,
                  const std::vector<KernelFunction>& kernels,
                  const std::vector<std::unique_ptr<Worker>>& workers) {
  has_teams_ = library->HasTeams();
  size_t most_arguments = 0;
  for (const Instruction& from : queue_.instructions) {
    most_arguments = std::max(most_arguments, from.tensors.size());
  }
  type_codes_.assign(most_arguments, kTVMDLTensorHandle);
  for (size_t i = 0; i < instructions_.size(); ++i) {
    const Instruction& from = queue_.instructions[i];
    BoundInstruction& to = instructions_[i];
    to.opcode = from.opcode;
    to.is_awaited = from.is_awaited;
    to.role = {static_cast<uint32_t>(from.threads), static_cast<uint32_t>(from.rank)};
    for (const Wait& wait : from.waits) {
      Worker& other = *workers[static_cast<size_t>(wait.queue)];
      Event* event = other.instructions_[static_cast<size_t>(wait.count - 1)].event.get();
      to.waits.push_back({&other.progress_, static_cast<uint32_t>(wait.count), event});
    }
    if (from.opcode == Opcode::kCall) {
      std::vector<TVMValue>& values = arguments_.emplace_back(from.tensors.size());
      for (size_t a = 0; a < values.size(); ++a) values[a].v_handle = store->Get(from.tensors[a]);
      to.call = {kernels[static_cast<size_t>(from.kernel)], values.data(), type_codes_.data(),
                 static_cast<int>(values.size())};
    } else if (from.opcode == Opcode::kJoin) {
      Worker& leader = *workers[static_cast<size_t>(from.leader_queue)];
      to.team = &leader.team_;
      to.leader = &leader.progress_;
      to.leader_count = static_cast<uint32_t>(from.leader_index) + 1;
    } else {
      to.src = store->Get(from.tensors[0]);
      to.dst = store->Get(from.tensors[1]);
      to.bytes = program.tensors[static_cast<size_t>(from.tensors[0])].bytes;
    }
  }
}

void Worker::Attach() {
  if (queue_.core >= 0) PinToCore(queue_);
  // Workers that spin through their waits are not woken, and do better with long turns.
  if (Spins() <= kSpins) AskForShortTurns();
  // Kernels that do not come through our launch must not make a pool of threads on this core.
  if (abi_->SetMaxConcurrency != nullptr) abi_->SetMaxConcurrency(1);
  if (stream_ == nullptr && queue_.workspace_bytes != 0) {
    workspace_.Reserve(queue_.workspace_bytes);
  }
  SetWorkspacePool(abi_, &workspace_);
  if (stream_ != nullptr) stream_->Attach();
}

void Worker::Run(bool is_timed) {
  workspace_.Clear();
  try {
    if (stream_ != nullptr) {
      if (is_timed) MakeTimers();
      is_timed ? RunStream<true>() : RunStream<false>();
      current_ = instructions_.size();
      stream_->Synchronise();
      if (is_timed && !state_->is_cancelled.load()) ReadTimers();
    } else {
      is_timed ? RunHost<true>() : RunHost<false>();
    }
  } catch (const Error& error) {
    FailAndDrain(error.what());
  }
}

template <bool kTimed>
void Worker::RunHost() {
  int64_t now_ns = kTimed ? NowNs() : 0;
  for (current_ = 0; current_ < instructions_.size(); ++current_) {
    const BoundInstruction& instruction = instructions_[current_];
    if (!instruction.waits.empty()) {
      if (!Await(instruction)) return;
      if (kTimed) now_ns = NowNs();
    }
    if (kTimed) spans_[current_].start_ns = now_ns - state_->start_ns;
    if (!Execute(instruction)) return;
    if (kTimed) {
      now_ns = NowNs();
      spans_[current_].finish_ns = now_ns - state_->start_ns;
    }
    if (instruction.is_awaited) progress_.Publish(static_cast<uint32_t>(current_) + 1);
    if (instruction.opcode == Opcode::kCall && instruction.role.threads > 1) team_.End();
    if (state_->is_cancelled.load(std::memory_order_relaxed)) return;
  }
}

template <bool kTimed>
void Worker::RunStream() {
  for (current_ = 0; current_ < instructions_.size(); ++current_) {
    const BoundInstruction& instruction = instructions_[current_];
    if (!Await(instruction)) return;
    if (kTimed) stream_->Record(timers_[2 * current_].get());
    if (instruction.opcode == Opcode::kCall) {
      stream_->Launch(instruction.call);
    } else {
      stream_->Copy(*instruction.dst, *instruction.src, instruction.bytes);
    }
    if (kTimed) stream_->Record(timers_[2 * current_ + 1].get());
    if (instruction.is_awaited) {
      stream_->Record(instruction.event.get());
      progress_.Publish(static_cast<uint32_t>(current_) + 1);
    }
    if (state_->is_cancelled.load(std::memory_order_relaxed)) return;
  }
}

/*! \brief Waits for all waits of an instruction; false if the run was cancelled meanwhile. */
bool Worker::Await(const BoundInstruction& instruction) {
  const int spins = Spins();
  for (const BoundWait& wait : instruction.waits) {
    if (wait.progress->done.load(std::memory_order_acquire) < wait.count) {
      wait.progress->bell.WaitUntil(
          [&] { return wait.progress->done.load() >= wait.count || state_->is_cancelled.load(); },
          spins);
      if (wait.progress->done.load() < wait.count) return false;
    }
    // The counter of an asynchronous queue says only that the event was recorded in this run.
    if (wait.event != nullptr && (stream_ == nullptr || !stream_->Wait(wait.event))) {
      wait.event->HostWait();
    }
  }
  return true;
}

/*! \brief Does one instruction on the calling core; false if it failed. */
bool Worker::Execute(const BoundInstruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kCall:
      return Call(instruction);
    case Opcode::kJoin:
      instruction.team->Help(
          instruction.role,
          [&] {
            return instruction.leader->done.load() >= instruction.leader_count ||
                   state_->is_cancelled.load();
          },
          state_->run_spins);
      return true;
    case Opcode::kCopy:
      if (instruction.bytes != 0) {
        std::memmove(instruction.dst->data, instruction.src->data,
                     static_cast<size_t>(instruction.bytes));
      }
      return true;
  }
  return true;
}

bool Worker::Call(const BoundInstruction& instruction) {
  if (instruction.role.threads > 1 && has_teams_) team_.Begin(instruction.role);
  if (CallKernel(*abi_, instruction.call) == 0) return true;
  if (instruction.role.threads > 1) team_.End();
  Fail(abi_->LastErrorLine());
  return false;
}

void Worker::MakeTimers() {
  if (base_ == nullptr) {
    base_ = stream_->MakeEvent(/*is_timed=*/true);
    for (size_t i = 0; i < 2 * instructions_.size(); ++i) {
      timers_.push_back(stream_->MakeEvent(/*is_timed=*/true));
    }
  }
  // Ties the device's clock to the host's: the error is the time that HostWait takes to return.
  stream_->Record(base_.get());
  base_->HostWait();
  base_ns_ = NowNs() - state_->start_ns;
}

void Worker::ReadTimers() {
  for (size_t i = 0; i < instructions_.size(); ++i) {
    spans_[i].start_ns = base_ns_ + timers_[2 * i]->ElapsedNs(*base_);
    spans_[i].finish_ns = base_ns_ + timers_[2 * i + 1]->ElapsedNs(*base_);
  }
}

void Worker::FailAndDrain(const std::string& cause) {
  Fail(cause);
  if (stream_ == nullptr) return;
  try {
    stream_->Synchronise();
  } catch (const Error&) {  // its fault is the one just told
  }
}

void Worker::Fail(const std::string& cause) {
  std::string where;
  if (current_ < queue_.instructions.size()) {
    const Instruction& at = queue_.instructions[current_];
    where = "step " + std::to_string(at.step) + " failed on queue '" + queue_.name + "' (" +
            DeviceName(queue_.device) + ")";
    if (at.opcode == Opcode::kCall) {
      where += " in kernel '" + program_.kernels[static_cast<size_t>(at.kernel)] + "'";
    }
  } else {
    // A stream tells of a fault only when it is asked, so its step is not known.
    where = "a step failed on queue '" + queue_.name + "' (" + DeviceName(queue_.device) + ")";
  }
  state_->Fail(where + ": " + cause);
}

}  // namespace heteroplace::exec
