// The loop of a worker: its part of one request after the other.
#include "exec/workers/worker.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "exec/engine/engine.h"
#include "exec/net/network.h"
#include "exec/requests/limit.h"
#include "exec/team/core_turns.h"
#include "exec/team/threads.h"
#include "exec/workers/worker_wait.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief No stream waits for more counts of a core than this: its words wrap around. */
constexpr int64_t kMaxCounterWait = int64_t{1} << 30;

}  // namespace

void Worker::Attach() {
  NameThread(queue_.device.device_type == kDLCUDA ? DeviceName(queue_.device) : queue_.name);
  queue_.core >= 0 ? PinToCore(queue_) : GoAnywhere();
  is_on_core_ = true;
  // Workers that spin through their waits are not woken, and do better with long turns.
  if (Spins() <= kLooseSpins) AskForShortTurns();
  // Who waits for a device, or issues, looks every `kPollNs`; by itself Linux adds 50 us to that.
  const std::vector<Queue>& queues = image_->program().queues;
  if (std::ranges::any_of(queues, [](const Queue& q) { return q.IsAsync(); })) {
    AskForExactSleep();
  }
  // Kernels that do not come through our launch must not make a pool of threads on this core.
  const TvmAbi& abi = image_->abi();
  if (abi.SetMaxConcurrency != nullptr) abi.SetMaxConcurrency(1);
  if (stream_ == nullptr && queue_.workspace_bytes != 0) {
    workspace_.Reserve(queue_.workspace_bytes);
  }
  SetWorkspacePool(&abi, &workspace_);
  for (Worker* member : members_) {
    if (member->stream_ != nullptr) member->stream_->Attach();
    for (const std::unique_ptr<Stream>& side : member->sides_) side->Attach();
  }
}

void Worker::Work() {
  CoreShare core(queue_.core);
  while (AwaitRequest(&core)) {
    std::scoped_lock turn(*turn_);
    if (is_lent_.load()) continue;  // somebody else does the request for which it woke
    for (Worker* member : members_) member->core_ = &core;
    const auto has_more = [&] { return HasNext() || MayServe(); };
    if (!has_more()) continue;
    const CoreTurn of_core(queue_.core >= 0 ? engine_->seat() : nullptr, HasNext(), NextRequest(),
                           &core);
    do {
      if (num_contexts_ > 1) {
        DoContexts(of_core);
      } else if (HasNext()) {
        KeepToCore(true);
        Do();
      } else {
        DoSerial();
      }
    } while (has_more() && of_core.MayGoOn(NextRequest()));
  }
  for (Worker* member : members_) member->core_ = nullptr;
}

int Worker::Spins() const {
  const int spins = engine_->run_spins();
  return queue_.core >= 0 ? spins : std::min(spins, kLooseSpins);
}

/*! \brief Spins before a wait between requests sleeps. */
int Worker::IdleSpins() const {
  if (engine_->is_repeating()) return engine_->run_spins();
  return queue_.core >= 0 ? std::min(engine_->run_spins(), kCallerSpins) : kSpins;
}

/*! \brief Waits for a request that nobody has taken; false if there will be none. */
bool Worker::AwaitRequest(CoreShare* core) {
  Bell* bell = engine_->submitted_bell();
  const auto has_come = [&] { return HasNext() || MayServe() || engine_->is_stopping(); };
  const auto is_mine = [&] { return !is_lent_.load() || engine_->is_stopping(); };
  do {
    if (!is_mine()) {
      core->Leave();
      returned_bell_.Sleep(is_mine);
      core->Enter();
    }
    // Others are at requests of which this one has done its part: the next one may follow these.
    if (queue_.core >= 0 && !engine_->IsPlanIdle()) {
      const std::unique_lock turn(*turn_, std::try_to_lock);
      if (turn.owns_lock()) {
        core_ = core;
        WaitFor(bell, [&] { return has_come() || engine_->IsPlanIdle(); }, Spins());
      }
    }
    AwaitIdly(bell, [&] { return has_come() || !is_mine(); }, IdleSpins(), core);
  } while (!is_mine());
  return !engine_->is_stopping() || HasNext() || MayServe();
}

/*! \brief Waits on a bell outside of requests: without the turn, which a caller may have. */
template <typename Ready>
void Worker::AwaitIdly(Bell* bell, const Ready& ready, int spins, CoreShare* core) {
  const auto moves = [&] {
    PollNetwork();
    return ready();
  };
  if (!PollUntil(bell, ready, spins, core)) bell->WaitUntil(moves, core, spins);
}

/*! \brief Does, or issues, the thread's part of one request. */
void Worker::Do() {
  for (Worker* member : members_) member->Begin(member->NextSlot());
  stream_ == nullptr ? DoHost() : DoStreams();
}

Slot* Worker::NextSlot() const { return engine_->SlotOf(next_ * num_contexts_ + context_); }

bool Worker::HasNext() const { return engine_->num_submitted() > NextRequest(); }

void Worker::Begin(Slot* slot) {
  slot_ = slot;
  base_ = next_ * static_cast<int64_t>(instructions_.size());
  ++next_;
  // What is measured of a kernel must not hang on who was idle.
  is_open_ = slot_->kind != RequestKind::kCpuTimed && slot_->kind != RequestKind::kSample;
  leader_->workspace_.Clear();
  position_.store(0, std::memory_order_relaxed);
  grouped_.store(nullptr, std::memory_order_relaxed);
  num_issued_ = 0;
}

void Worker::DoHost() {
  try {
    switch (slot_->kind) {
      case RequestKind::kRun:
        if (slot_->trace == nullptr) {
          RunHost(NoRecorder{});
        } else {
          RunHost(slot_->trace->Recorder(index_, slot_->trace_place));
        }
        break;
      case RequestKind::kTouch:
        TouchArena();
        break;
      case RequestKind::kCpuTimed:
        RunCpuTimed();
        break;
      case RequestKind::kSample:
        SampleHost(&slot_->measurement->sample);
        break;
      case RequestKind::kPassLine:
        PassLine();
        break;
    }
  } catch (const std::exception& fault) {
    Fail(CauseOf(fault));
  }
  FinishPart(slot_);
}

/*! \brief The worker does not touch the slot any more; the last one hands it back. */
void Worker::FinishPart(Slot* slot) {
  // Before whoever waits for the rest of this part leaves it, he sees why: see Await.
  if (slot->HasFailed() && stream_ == nullptr) {
    progress_.Publish(base_ + static_cast<int64_t>(instructions_.size()));
  }
  num_finished_.fetch_add(1);
  engine_->Finish(slot);
}

template <typename Recorder>
void Worker::RunHost(Recorder recorder) {
  size_t i = 0;
  for (; i < instructions_.size(); ++i) {
    const BoundInstruction& instruction = instructions_[i];
    position_.store(i, std::memory_order_relaxed);
    if (!instruction.waits.empty()) {
      if (!Await(instruction)) break;
      recorder.Waited();
    }
    if (slot_->HasFailed()) break;
    if (hook_ != nullptr && i % kStepsPerQuestion == 0) AskCaller();
    recorder.Start(i);
    if (!Execute(instruction)) break;
    recorder.Finish(i);
    Tell(instruction, i);
  }
  recorder.End(i, instructions_.size());
}

/*!
 * \brief Waits for all waits of an instruction; false if the request has failed meanwhile.
 *
 * A queue that gives a request up raises its counter as if it had done all of it, and the failure
 * before: whoever sees such a count sees the failure, and does not take it for a value.
 */
bool Worker::Await(const BoundInstruction& instruction) {
  // CUDA may read pageable memory when a copy is issued, before its stream has waited.
  const bool waits_on_host =
      instruction.waits_on_host || (instruction.is_of_host && !slot_->is_pinned());
  for (const BoundWait& wait : instruction.waits) {
    const int64_t target = CountAt(wait.length, wait.count);
    std::atomic<int64_t>& done = wait.progress->done;
    const int64_t missing = target - done.load(std::memory_order_acquire);
    if (missing > 0 && !waits_on_host && wait.counter != 0 && missing < kMaxCounterWait) {
      stream_->WaitWord(wait.counter, static_cast<uint32_t>(target));
      continue;
    }
    if (missing > 0) {
      WaitFor(
          &wait.progress->bell, [&] { return done.load() >= target || slot_->HasFailedInOrder(); },
          Spins());
    }
    if (slot_->HasFailed()) return false;
    // The counter of an asynchronous queue says only that the work was issued in this request.
    if (wait.has_word) {
      if (!AwaitDevice([&] { return wait.progress->HasReached(target); })) return false;
    } else if (wait.event >= 0) {
      Event* event =
          slot_->events(static_cast<size_t>(wait.queue))[static_cast<size_t>(wait.event)].get();
      if (stream_ != nullptr && !waits_on_host && stream_->Wait(event)) continue;
      if (!AwaitEvent(wait, event)) return false;
    }
  }
  return true;
}

/*! \brief Waits on the host for an event of another queue; false if the request has failed. */
bool Worker::AwaitEvent(const BoundWait& wait, Event* event) {
  try {
    if (!AwaitDevice([&] { return event->IsReached(); })) return false;
    wait.progress->seen.store(CountAt(wait.length, wait.count), std::memory_order_relaxed);
    return true;
  } catch (const std::exception& fault) {
    engine_->workers()[static_cast<size_t>(wait.queue)]->FailBefore(slot_, wait, CauseOf(fault));
    return false;
  }
}

/*!
 * \brief Looks until a device has come so far; false if the request has failed.
 *
 * A core that looks at words calls nothing of the driver: what frees memory waits there for
 * streams, and these may wait for this core. The thread that issues sees the device's faults.
 */
bool Worker::AwaitDevice(const std::function<bool()>& is_reached) {
  for (int looks = 0; !is_reached(); ++looks) {
    if (slot_->HasFailed()) return false;
    PollNetwork();
    leader_->PollAllPending();
    if (looks < kSpins && core_->MaySpin(/*is_short=*/true)) {
      Pause();
    } else {
      core_->Leave();
      std::this_thread::sleep_for(std::chrono::nanoseconds(kPollNs));
      core_->Enter();
    }
  }
  return true;
}

/*! \brief Does one instruction on the calling core; false if it failed. */
bool Worker::Execute(const BoundInstruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kCall:
      return Call(instruction);
    case Opcode::kJoin: {
      if (is_serial_) return true;  // all of the call is done
      if (instruction.group != nullptr) {
        JoinGroup(instruction);
        return true;
      }
      const int64_t target = CountAt(instruction.leader_length, instruction.leader_count);
      const auto is_over = [&] {
        return instruction.leader->done.load() >= target || slot_->HasFailedInOrder();
      };
      Team* team = instruction.team;
      while (!is_over()) {
        WaitFor(
            team->bell(), [&] { return team->HasShare(instruction.role) || is_over(); },
            engine_->run_spins());
        team->Work(instruction.role);
      }
      return true;
    }
    case Opcode::kCopy:
      if (instruction.bytes != 0) {
        std::memmove(slot_->tensor(instruction.dst)->data, slot_->tensor(instruction.src)->data,
                     static_cast<size_t>(instruction.bytes));
      }
      CountCopy(instruction, instruction.bytes);
      return true;
    case Opcode::kBranchCall:
    case Opcode::kBranchCopy:
      return ExecuteBranch(instruction);
    case Opcode::kGroup:
      return DoGroup(instruction);
    case Opcode::kSend:
    case Opcode::kReceive:
      return true;  // of no worker
  }
  return true;
}

/*! \brief One thread adds at a time, so that no locked instruction is needed. */
void Worker::CountCopy(const BoundInstruction& instruction, int64_t bytes) {
  std::atomic<int64_t>& total =
      copied_bytes_[static_cast<size_t>(&instruction - &instructions_[0])];
  total.store(total.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
}

std::vector<int64_t> Worker::CopiedBytes() const {
  std::vector<int64_t> bytes(instructions_.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = copied_bytes_[i].load(std::memory_order_relaxed);
  }
  return bytes;
}

void Worker::AdvanceNetwork() { network_->Advance(); }

void Worker::PollNetwork() noexcept {
  if (network_ != nullptr) network_->Poll();
}

void Worker::TellMessage(int64_t request, size_t index) {
  position_.store(index + 1, std::memory_order_relaxed);
  if (!instructions_[index].is_awaited) return;
  progress_.Publish(request * static_cast<int64_t>(instructions_.size()) +
                    static_cast<int64_t>(index) + 1);
}

void Worker::EndMessages(Slot* slot) {
  base_ = num_finished_.load() * static_cast<int64_t>(instructions_.size());
  position_.store(0, std::memory_order_relaxed);
  FinishPart(slot);
}

}  // namespace heteroplace::exec
