// What one request changes: the memory of its values, the arguments of its calls, its state.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "exec/devices/device.h"
#include "exec/engine/image.h"
#include "exec/engine/mode_chooser.h"
#include "exec/engine/sync.h"
#include "exec/requests/session.h"
#include "support/error.h"

namespace heteroplace::exec {

struct Measurement;
class TraceRecorder;

/*! \brief Most slots of an executor. */
inline constexpr int kMaxSlots = 4096;

/*! \brief Numbers of requests that one thread does alone begin here: they are in no order with the
 * others. */
inline constexpr int64_t kFirstSerial = int64_t{1} << 62;

/*! \brief How the workers carry a request out; but for the first, nothing else is in flight. */
enum class RequestKind {
  kRun,       ///< all instructions
  kTouch,     ///< only writes zeros to the arenas: their pages then belong to the cores' memory
  kCpuTimed,  ///< as kRun, with the processor time of every instruction
  kSample,    ///< the only kernel call over and over
  kPassLine   ///< throws a cache line between two workers
};

/*! \brief What a request failed of, where somebody acts on it. */
enum class FailureCause {
  kFault,      ///< of this process: a step, a device, a caller who was interrupted
  kCancelled,  ///< by Request::Cancel
  kWaiting     ///< something did not come, perhaps as another host is gone
};

/*! \brief The error of a request, with its cause. */
class RequestError : public Error {
 public:
  RequestError(const std::string& text, FailureCause cause)
      : Error(ErrorKind::kExecution, text), cause_(cause) {}

  FailureCause cause() const { return cause_; }

 private:
  FailureCause cause_;
};

/*! \brief Who holds a slot, and whether workers are in it. */
enum class SlotState : int {
  kFree,       ///< nobody; guarded by the pool
  kHeld,       ///< a caller: it sets inputs, reads outputs
  kInFlight,   ///< submitted; a caller will come back for it
  kAbandoned,  ///< submitted; the last worker frees it
};

/*! \brief Memory and state of one request at a time. Addresses never change after it was made. */
class Slot {
 public:
  /*! \throws Error kExecution when memory is short. */
  Slot(const Image* image, int index);
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  /*! \brief Position in the pool; 0 is the one that `set_input` without a request writes to. */
  int index() const { return index_; }

  /*! \brief The tensor as kernels take it. */
  DLTensor* tensor(int32_t id) { return &tensors_[static_cast<size_t>(id)]; }
  /*! \brief Arguments of the call whose first one is at this position in the queue's list. */
  TVMValue* arguments(size_t queue, size_t first) { return arguments_[queue].data() + first; }
  /*! \brief Arguments of a queue's guarded calls. */
  BranchArguments* branch_arguments(size_t queue) { return &branch_arguments_[queue]; }
  /*! \brief Events of an asynchronous queue: of its awaited instructions, then of its end. */
  std::vector<std::unique_ptr<Event>>& events(size_t queue) { return events_[queue]; }

  /*! \brief Events of an asynchronous queue at the ends of its groups on each side stream. */
  std::vector<std::unique_ptr<Event>>& side_ends(size_t queue) { return side_ends_[queue]; }

  /*! \brief Launches of an asynchronous queue that are issued together. */
  std::vector<std::unique_ptr<RecordedWork>>& recorded(size_t queue) { return recorded_[queue]; }
  /*! \brief Timed events of an asynchronous queue: two of each instruction, one of the start of the
   * request. Only where requests are recorded. */
  std::vector<std::unique_ptr<Event>>& timers(size_t queue) { return timers_[queue]; }

  /*! \brief Copies a host buffer of the tensor's size into it, or back. Blocks. */
  void Write(int32_t tensor, const void* data);
  void Read(int32_t tensor, void* data);
  /*! \brief Takes the state of a session for the next request; null: the slot's own, which is made
   * when it is first used. Whoever gets the slot for requests calls it first. \throws Error
   * kExecution when another request has the session, or memory is short. */
  void Use(std::shared_ptr<Session> session);
  /*! \brief Gives the session back. */
  void LeaveSession();
  bool HasSession() const { return session_ != nullptr; }
  /*! \brief Makes outputs of a request that succeeded the state of the session, but those that
   * calls have changed in place. */
  void KeepState();
  /*! \brief State has no value any more, nor was it given one: a run that failed may have replaced
   * some of it. */
  void ForgetState();
  /*! \brief Inputs that a request has changed in place have no value any more. */
  void ForgetChanged();
  /*! \brief Writes zeros to a host arena: its pages then belong to the caller's memory node. */
  void TouchArena(int32_t space);
  /*! \brief Whether all its memory of the host is pinned, of a program with a GPU. */
  bool is_pinned() const { return is_pinned_; }
  /*! \brief What arenas, external tensors and its own state take in a space. Any thread may ask. */
  int64_t HeldBytes(size_t space) const;

  /*! \brief Ends the request early; the first text is kept, or "memory is short" where it cannot
   * be. A worker that is in it. */
  void Fail(std::string_view text, FailureCause cause = FailureCause::kFault) noexcept;
  /*! \brief Cancels it; of any thread. False if the slot is another request's by now. */
  bool CancelRequest(int64_t number, std::string_view text) noexcept;
  bool HasFailed() const { return has_failed_.load(std::memory_order_relaxed); }
  /*! \brief The same for conditions of a Bell. */
  bool HasFailedInOrder() const { return has_failed_.load(); }
  /*! \brief Why; "" if it has not failed. */
  std::string failure();
  /*! \brief Of what; kFault if it has not failed. */
  FailureCause cause();

  /*! \brief Says what is done next in it; of its caller, before each submission. */
  void Prepare(RequestKind next, std::shared_ptr<Measurement> measured);

  // Of the request in the slot: written by its caller before it is submitted.

  RequestKind kind = RequestKind::kRun;
  /*! \brief What is measured; null for kRun and kTouch. Shared, as a caller whose time is up goes
   * while a step that does not end is still at it. */
  std::shared_ptr<Measurement> measurement;
  /*! \brief How it is run, where its time counts in the choice of that; none: it does not. */
  std::optional<Mode> mode;
  /*! \brief The chooser of the mode; null: it was not measured. */
  ModeChooser* chooser = nullptr;
  /*! \brief Requests that had been submitted before it, if all of those were over; else -1. */
  int64_t num_before = -1;
  /*! \brief NowNs when it was submitted. */
  int64_t start_ns = 0;
  /*! \brief Where its times are recorded, its number and its place there; null: they are not. */
  std::shared_ptr<TraceRecorder> trace;
  int64_t trace_number = -1;  // in `trace`, of the last request; -1: it was not recorded
  size_t trace_place = 0;
  /*! \brief Whether the slot has its timers, or needs none. */
  bool has_timers = false;
  /*! \brief Stands for the value of each input: equal numbers are equal values; 0: none.
   * [num_inputs] */
  std::vector<int64_t> input_versions;
  /*! \brief Whether the present request has set it. [num_inputs] */
  std::vector<bool> is_input_given;
  /*! \brief Branches that were predicted when the request began, those of all decisions. */
  std::vector<uint8_t> predicted;
  /*! \brief Whether the last request succeeded, so that outputs can be read. */
  bool has_outputs = false;
  /*! \brief What the hook of a caller has thrown who was at work in it himself. */
  std::exception_ptr interruption;
  /*! \brief Whether it was abandoned as one of its steps did not end. */
  bool is_stuck = false;

  /*! \brief Raised by a caller or the last worker, which rings the bell after. */
  std::atomic<SlotState> state{SlotState::kFree};
  Bell bell;
  /*! \brief Workers that have not finished their part. */
  alignas(kCacheLineBytes) std::atomic<uint32_t> working{0};

  /*! \brief Forgets the last request: the slot is that of request `number` from now on. */
  void Begin(int64_t number);
  /*! \brief Around a fork: nobody is failing the request, as that would be for ever in the child.
   */
  void Lock() { mutex_.lock(); }
  void Unlock() { mutex_.unlock(); }
  /*! \brief Position among all requests of the executor: the order in which workers take them. */
  int64_t number() const { return number_.load(std::memory_order_relaxed); }

 private:
  void AllocateSpace(size_t space, std::vector<char*>* externals);
  void BindTensors(const std::vector<char*>& externals);
  void BindArguments();
  void BindState(const Session& state);
  void KeepFailure(std::string_view text, FailureCause cause);

  const Image* image_;
  int index_;
  std::shared_ptr<Session> session_;    // null: none
  std::unique_ptr<Session> own_state_;  // null: no request has used it
  std::atomic<bool> has_own_state_{false};
  std::vector<DeviceBuffer> buffers_;
  std::vector<std::unique_ptr<PinnedMemory>> pinned_;
  bool is_pinned_ = true;
  std::vector<int64_t> held_bytes_;                          // [num_spaces], without its own state
  std::vector<char*> arenas_;                                // [num_spaces]
  std::vector<DLTensor> tensors_;                            // [num_tensors]
  std::vector<std::vector<TVMValue>> arguments_;             // [num_queues], of all calls in order
  std::vector<BranchArguments> branch_arguments_;            // [num_queues]
  std::vector<std::vector<std::unique_ptr<Event>>> events_;  // [num_queues]
  std::vector<std::vector<std::unique_ptr<Event>>> side_ends_;        // [num_queues]
  std::vector<std::vector<std::unique_ptr<RecordedWork>>> recorded_;  // [num_queues]
  std::vector<std::vector<std::unique_ptr<Event>>> timers_;           // [num_queues]
  /*! \brief Every wait looks at it; on a line of its own, as all workers read it all the time. */
  alignas(kCacheLineBytes) std::atomic<bool> has_failed_{false};
  alignas(kCacheLineBytes) std::mutex mutex_;
  std::string failure_;              // guarded by mutex_
  FailureCause cause_ = {};          // guarded by mutex_
  std::atomic<int64_t> number_{-1};  // written under mutex_
};

}  // namespace heteroplace::exec
