// The workers of one executor and the requests that they take, in the order of submission.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "exec/engine/image.h"
#include "exec/engine/mode_chooser.h"
#include "exec/engine/progress_table.h"
#include "exec/requests/decisions.h"
#include "exec/requests/fork_guard.h"
#include "exec/requests/limit.h"
#include "exec/requests/slot_pool.h"
#include "exec/team/core_turns.h"
#include "exec/trace/trace_recorder.h"
#include "exec/workers/serial_context.h"
#include "exec/workers/worker.h"

namespace heteroplace::exec {

class Network;

/*! \brief What a call waits beyond its limit for a step that does not end. */
inline constexpr int64_t kGraceNs = 100'000'000;

/*! \brief A request, from 0, and a step of the plan that it has finished; -1: none yet. */
struct StepReached {
  int64_t request = -1;
  int64_t step = -1;
};

/*! \brief Cores that a program uses. */
size_t NumCores(const Program& program);

/*! \brief Whether threads of callers may run kernels. Those of a module in memory use TVM's pool of
 * threads, which only our own threads keep small. */
bool MayCallersWork(const Image& image);

/*! \brief Most serial requests at once; 0: no request may be serial. */
size_t NumSerialContexts(const Image& image, const ExecutorSource& source);

/*! \brief How the requests of an engine were run that it might run in either mode. */
struct ModeCounts {
  Mode chosen = Mode::kParallel;
  int64_t num_changes = 0;
  /*! \brief Requests that one thread did alone, trials among them. */
  int64_t num_serial = 0;
};

/*!
 * \brief Image, slots and workers. Any thread may call it.
 *
 * Request k is in place k modulo the number of slots of a ring. Each has a slot until it has ended,
 * so before a place comes again one of those since then has ended, which all workers had begun, and
 * with it, as they begin requests in order, the one in that place: nobody reads it any more. A
 * request counts as completed before its slot is handed back, so whoever has got back all of his
 * finds the engine idle, and one that is idle with no slot held has no worker in any slot.
 *
 * All this holds for requests that run as planned. Serial requests have numbers of their own and
 * are in no ring: see engine_serial.cc.
 */
class Engine : private ForkAware {
 public:
  /*! \brief Loads, and starts the workers. \throws Error as Image and Slot; kExecution when a core
   * is missing or no thread can be started. */
  explicit Engine(const ExecutorSource& source);
  ~Engine() override;

  /*!
   * \brief Ends the workers. False if one is at work for longer than kGraceNs, or lives in the
   * parent of a fork: all of the engine must then stay where it is.
   */
  bool Stop();
  /*! \brief Whether the workers live in this process, and so may end some day. */
  bool CanEnd();

  Image& image() { return image_; }
  SlotPool& slots() { return slots_; }
  /*! \brief Whether any workers help each other. */
  bool is_helping() const { return is_helping_; }
  const std::vector<std::unique_ptr<Worker>>& workers() const { return workers_; }
  /*! \brief Clocks of the processor time of all workers' threads. \throws Error kExecution. */
  std::vector<int> Clocks();

  /*! \brief How far the oldest request in flight, or else the one before it, is known to be: what
   * somebody awaits is told. Not of serial ones. Any thread; takes no lock. */
  StepReached Reached() const;

  /*!
   * \brief Refuses to begin anything that could not end.
   *
   * In the child of a fork it starts the workers anew.
   * \throws Error kExecution if a worker is in a kernel that does not end, a device is lost, or a
   * request was in flight when the process forked.
   */
  void CheckUsable();
  /*!
   * \brief Lets the workers take the request in a slot.
   * \param number where its number goes, at once: others may cancel it by that.
   * \param is_waited whether the caller goes on to wait for its end. With no deadline he then does
   * the part of a worker himself, see WorkerHere: nobody is woken for it, nor for its end.
   * \throws Error kExecution at the limit, if somebody measures until then.
   */
  void Submit(Slot* slot, const Limit& limit, bool is_waited, std::atomic<int64_t>* number);
  /*! \brief Waits for the end of a request; false at the limit. */
  bool Await(Slot* slot, const Limit& limit);
  /*! \brief Ends request `number` early; nothing if it has ended by now. Any thread. */
  void Cancel(Slot* slot, int64_t number, std::string_view text) noexcept;
  /*!
   * \brief Leaves a slot to its request, whose last worker frees it; now if it is over already.
   * \param is_stuck whether a step does not end, and the engine is of no use until it does.
   */
  void Abandon(Slot* slot, bool is_stuck);

  /*! \brief Holds the engine alone, with no request in flight, as long as the object lives. */
  class Alone {
   public:
    /*! \brief Holds the first slot meanwhile. \throws Error kExecution at the limit. */
    Alone(Engine* engine, const Limit& limit);
    ~Alone();
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

    Slot* slot() const { return slot_; }
    /*! \brief Does the request in the slot `measurement->runs_left` times. \throws Error kExecution
     * if it fails, and what the limit's hook throws. */
    void Run(RequestKind kind, const std::shared_ptr<Measurement>& measurement, const Limit& limit);

   private:
    void Leave();

    Engine* engine_;
    Slot* slot_;
    bool is_abandoned_ = false;
  };

  /*! \brief Waits for a request until the limit, then ends it. \throws RequestError when it failed,
   * Error kExecution when it did not end by then; the slot is abandoned (true) if a step does not
   * end. */
  void Finish(Slot* slot, const Limit& limit, bool* is_abandoned);

  /*! \brief See Executor. */
  void StartTrace(std::optional<int64_t> max_requests);
  Trace StopTrace(const Limit& limit);
  void Predict(const std::vector<PredictedBranches>& all);
  std::vector<std::pair<std::string, PredictionCounts>> PredictionsOf();
  void StartDecisions(DecisionLevel level);
  RecordedDecisions TakeDecisions(bool ends);
  std::vector<std::pair<int64_t, int64_t>> CopiedBytes() const;
  ModeCounts Modes();

  // For the workers.

  /*! \brief Whether a worker could begin a serial request now. */
  bool HasSerial() const { return num_servable_.load() != 0; }
  /*! \brief Begins the oldest of these; null: there is none. */
  SerialContext* TakeSerial();
  /*! \brief The request of a serial context is over. */
  void FinishSerial(SerialContext* serial, Slot* slot);
  /*! \brief Calls the hook of a caller's limit if it is time. An exception of the hook ends the
   * request. */
  void AskCaller(HookTurn* hook, Slot* slot);
  /*! \brief The slot of the latest request; null: there was none. */
  Slot* last_slot() const { return last_slot_.load(); }
  int64_t num_submitted() const { return num_submitted_.load(); }
  Slot* SlotOf(int64_t number) const {
    return ring_[static_cast<size_t>(number) % ring_.size()].load(std::memory_order_relaxed);
  }
  /*! \brief Requests that a queue may have begun and not ended: where one waits for another queue,
   * the next is gone on with. 1: a queue does them one after the other. Constant after load. */
  size_t num_contexts() const { return num_contexts_; }
  CoreSeat* seat() { return &*seat_; }
  Bell* submitted_bell() { return &submitted_bell_; }
  /*! \brief Whether no request is in flight. */
  bool IsIdle() const { return IsPlanIdle() && num_serial_completed_.load() == num_serial_.load(); }
  /*! \brief Whether no request that runs as planned is in flight. */
  bool IsPlanIdle() const { return num_completed_.load() == num_submitted_.load(); }
  bool is_stopping() const { return is_stopping_.load(); }
  /*! \brief Whether another request follows the present one, for which workers stay awake. */
  bool is_repeating() const { return is_repeating_.load(std::memory_order_relaxed); }
  /*! \brief Spins of a worker with a core of its own before it sleeps. Constant after load. */
  int run_spins() const { return run_spins_; }
  /*! \brief Fails a request, and wakes all who wait in it; the first text is kept. One of several
   * hosts fails them all. */
  void Fail(Slot* slot, std::string_view text, FailureCause cause = FailureCause::kFault) noexcept;
  /*! \brief Refuses all that is still to begin: a device does nothing more. The first text is kept.
   */
  void Lose(const char* text) noexcept;
  /*! \brief A worker has finished its part; the last one ends the request, or repeats it. */
  void Finish(Slot* slot);

 private:
  void MakeWorkers();
  /*! \brief The workers of all queues for one context. */
  std::span<const std::unique_ptr<Worker>> WorkersOf(size_t context) const {
    const size_t num_queues = image_.program().queues.size();
    return std::span(workers_).subspan(context * num_queues, num_queues);
  }
  void GroupWorkers();
  void GroupHelpers(bool is_everywhere);
  std::vector<int> SharedCores() const;
  void StartThreads();
  void ThreadMain(Worker* leader);
  Worker* WorkerHere() const;
  // See engine_serial.cc.
  void MakeSerialContexts();
  void ChooseMode(Slot* slot);
  SerialContext* LaunchSerial(Slot* slot, bool may_work, std::atomic<int64_t>* number);
  SerialContext* BeginSerialContext(Slot* slot);
  void CountServable();
  bool HasContextForEachSlot() const {
    return slots_.max_slots() <= static_cast<int>(num_serial_contexts_);
  }
  void LeaveSerial(Slot* slot) noexcept;
  void RunSerial(SerialContext* serial, const Limit& limit);
  void RecordMode(const Slot& slot);
  int64_t NumCompleted() const { return num_completed_.load() + num_serial_completed_.load(); }
  int64_t NumBegun() const { return num_submitted_.load() + num_serial_.load(); }
  void Wake(const Worker* here = nullptr);
  std::string ReasonOr(const std::string& failure) const;
  FailureCause FailureCauseOf(Slot* slot) const;
  int64_t Launch(Slot* slot);
  void BeginRequest(Slot* slot, int64_t number, size_t num_parts);
  bool Repeat(Slot* slot);
  bool IsTracing();
  void MakeTimers(Slot* slot);
  void BeginTrace(Slot* slot);
  void EndTrace(Slot* slot);
  void WakeAll() noexcept;
  Decisions* RoutedDecisions() const;
  void EndDecisions(Slot* slot);
  std::string DescribeStuck(Slot* slot, const char* before) const noexcept;

  void BeforeFork() override;
  void AfterFork(bool is_child) override;

  /*! \brief See ExecutorSource; called under mutex_. */
  const std::function<void(const Order&)> on_order_;
  const std::shared_ptr<Image> shared_image_;
  Image& image_;
  const size_t num_contexts_;
  const size_t num_serial_contexts_;
  ProgressTable progress_;  // after the image, whose memory it uses; before all streams
  SlotPool slots_;
  /*! \brief Of contexts, then of serial contexts. [num_contexts + num_serial_contexts][num_queues]
   */
  std::vector<std::unique_ptr<Worker>> workers_;
  /*! \brief Messages to and from other hosts; null: there are none. Before all slots. */
  std::unique_ptr<Network> network_;
  /*! \brief First worker of each thread: of a core, or of all streams of a GPU. [num_threads] */
  std::vector<Worker*> leaders_;
  std::vector<std::thread> threads_;  // [num_threads], and that of the network
  /*! \brief Whether callers may do the work of a worker. Constant after load. */
  bool has_callers_work_ = false;
  /*! \brief One for each serial request at a time. Constant after load. */
  std::vector<std::unique_ptr<SerialContext>> serial_contexts_;
  const bool is_always_serial_;  // all requests are
  /*! \brief Its turns on the cores of its workers. */
  std::optional<CoreSeat> seat_;
  int run_spins_ = kSpins;
  bool is_helping_ = false;  // constant after load

  /*! \brief Guards the order of submission, and all below that says so. */
  std::mutex mutex_;
  std::vector<std::atomic<Slot*>> ring_;
  /*! \brief Guarded by mutex_; null: the program has no routers, which is constant after load. */
  std::unique_ptr<Decisions> decisions_;
  std::shared_ptr<TraceRecorder> trace_;  // guarded by mutex_; null: nothing is recorded
  /*! \brief For requests that are alone in flight, and for concurrent ones. Guarded by mutex_, like
   * all members up to free_serial_contexts_. */
  ModeChooser alone_chooser_;
  ModeChooser concurrent_chooser_;
  /*! \brief The latest choice, trials aside. */
  Mode chosen_ = Mode::kParallel;
  /*! \brief Of the latest request that has succeeded: whether no other request of the program, or
   * of other programs, overlapped it; its end and its mode. */
  bool was_last_alone_ = true;
  bool had_rivals_ = false;
  int64_t last_end_ns_ = 0;
  Mode last_mode_ = Mode::kParallel;
  /*! \brief Serial requests that no thread has begun, and serial contexts without a request. */
  std::deque<Slot*> waiting_serial_;
  std::vector<SerialContext*> free_serial_contexts_;
  bool is_measuring_ = false;              // guarded by mutex_
  std::string stuck_;                      // guarded by mutex_; the last step that did not end
  std::exception_ptr start_failure_;       // guarded by mutex_
  std::string lost_;                       // guarded by mutex_; the fault of a device that is lost
  bool is_child_ = false;                  // guarded by mutex_; the threads are in the parent
  bool was_in_flight_ = false;             // guarded by mutex_; when the process forked
  std::atomic<int> num_stuck_{0};          // abandoned requests with a step that does not end
  std::atomic<uint32_t> num_measured_{0};  // raised when somebody has finished measuring
  std::atomic<uint32_t> num_started_{0};   // threads that are prepared, or failed to be
  std::atomic<bool> is_repeating_{false};
  std::atomic<bool> is_stopping_{false};
  Bell idle_bell_;  // requests ended, measuring ended, threads started

  alignas(kCacheLineBytes) std::atomic<int64_t> num_submitted_{0};
  Bell submitted_bell_;
  alignas(kCacheLineBytes) std::atomic<int64_t> num_completed_{0};
  /*! \brief Serial requests: submitted, completed, and those that a worker could begin now. */
  alignas(kCacheLineBytes) std::atomic<int64_t> num_serial_{0};
  std::atomic<int64_t> num_serial_completed_{0};
  std::atomic<size_t> num_servable_{0};
  std::atomic<Slot*> last_slot_{nullptr};

  /*! \brief The last member: made when all else is there, and ended before it. */
  std::optional<ForkWatch> fork_watch_;
};

}  // namespace heteroplace::exec
