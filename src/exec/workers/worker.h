// One queue at run time: its instructions with all pointers resolved, and the loop over them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exec/devices/device.h"
#include "exec/devices/workspace.h"
#include "exec/engine/progress_table.h"
#include "exec/engine/sync.h"
#include "exec/measure/sampling.h"
#include "exec/program/program.h"
#include "exec/requests/slot.h"
#include "exec/team/team.h"
#include "exec/trace/trace_recorder.h"
#include "exec/workers/bound_instruction.h"
#include "exec/workers/call_time.h"

namespace heteroplace::exec {

class CoreTurn;
class Engine;
class HookTurn;
struct Limit;
class Network;
class SerialContext;

/*! \brief Between two looks at an event when nothing else is to be done. */
inline constexpr int64_t kPollNs = 20'000;

/*! \brief Instructions between two questions to a caller who does them himself. */
inline constexpr size_t kStepsPerQuestion = 16;

/*! \brief Most requests that a core has begun and not ended. */
inline constexpr size_t kMaxContexts = 8;

class Worker;

/*! \brief An instruction of one of the queues of a thread. */
struct IssueStep {
  Worker* worker;
  size_t index;
};

/*!
 * \brief The state of one queue. It takes requests in the order in which they were submitted, and
 * begins one when it has done (asynchronous queues: issued) its part of the one before.
 *
 * Where the engine has n contexts, that is the state of one of them, which takes each n-th request;
 * one thread has all contexts of a queue, see worker_contexts.cc.
 */
class Worker {
 public:
  /*! \param progress counters of all queues; must outlive the worker. */
  Worker(Engine* engine, const Image* image, ProgressTable* progress, size_t queue, size_t context);

  /*! \brief Makes the stream of an asynchronous queue. First, for all workers. */
  void MakeStream();
  /*! \brief Resolves the instructions. All workers must exist. */
  void Bind(std::span<const std::unique_ptr<Worker>> workers);
  /*! \brief Lets it move the engine's messages. */
  void Join(Network* network) { network_ = network; }
  /*! \brief Gives a slot its events. Any thread, before the slot is used. */
  void MakeEvents(Slot* slot);
  /*! \brief The same for the times of its instructions, before a request that is recorded. */
  void MakeTimers(Slot* slot);
  /*! \brief After a fork, whose child has no threads: what the one of before may have held or was,
   * its turn and a stream of the host, is made anew. */
  void Revive();

  /*! \brief Lets it do chunks of others' kernels while it waits, and others of its own. */
  void HelpEachOther(std::vector<Team*> others, size_t num_cores);

  /*!
   * \brief Makes this the first worker of a thread that issues the work of several streams.
   * \param members of the thread, this one among them.
   * \param order of their instructions in a request.
   */
  void Lead(std::vector<Worker*> members, std::vector<IssueStep> order);

  // Of the worker that leads a thread.

  /*! \brief Prepares the calling thread: core, TVM's pools, stream. Throws Error. */
  void Attach();
  /*! \brief Does requests until the engine stops. Never throws: a failure goes to the request. */
  void Work();
  // A caller does the worker's part of his request himself: see worker_here.cc.

  /*! \brief Lends it to the calling thread, unless its own thread is at a request: that one then
   * sleeps until `TakeBack`. Owns nothing if it is. */
  std::unique_lock<std::mutex> Lend();
  /*! \brief Does its part of the requests up to `number`, that of the caller, who holds what `Lend`
   * gave, and helps others until all of that one is over, or the worker's own thread is to begin
   * the next. What the limit's hook throws is kept in the slot, and fails the request. */
  void WorkHere(int64_t number, const Limit& limit);
  /*! \brief Its own thread does the next requests. */
  void TakeBack();

  // Of a serial context: see worker_serial.cc.
  void BeginSerial(Slot* slot);
  /*! \brief Does the next instruction; false if it failed. */
  bool StepSerial();
  void EndSerial();
  /*! \brief The calling thread does the request of its serial context. */
  void RunSerialHere(SerialContext* serial, const Limit& limit);

  // Of a queue of messages, which has no thread: of the network that moves them.

  const std::vector<BoundInstruction>& instructions() const { return instructions_; }
  /*! \brief Tells whoever waits for a message that it is complete. */
  void TellMessage(int64_t request, size_t index);
  /*! \brief Its part of a request is over. */
  void EndMessages(Slot* slot);
  /*! \brief Whether a message is under way, or all of them wait for others. */
  void SetUnderWay(bool is_under_way) {
    is_waiting_.store(!is_under_way, std::memory_order_relaxed);
  }

  const Queue& queue() const { return queue_; }
  size_t index() const { return index_; }
  Progress& progress() { return progress_; }
  Team& team() { return team_; }
  /*! \brief Scratch memory that it holds: of the host what was touched, of a GPU all. */
  int64_t workspace_bytes() const {
    int64_t bytes =
        workspace_.touched_bytes() + (stream_ == nullptr ? 0 : stream_->workspace_bytes());
    for (const std::unique_ptr<Stream>& side : sides_) bytes += side->workspace_bytes();
    return bytes;
  }
  /*! \brief Whether it has not finished its part of a request of its own. Any thread. */
  bool IsAt(int64_t request) const {
    if (is_serial_ || request >= kFirstSerial) return serial_request_.load() == request;
    return request % num_contexts_ == context_ && num_finished_.load() <= request / num_contexts_;
  }
  /*! \brief Whether it waits for others, or helps them meanwhile. Any thread. */
  bool is_waiting() const { return is_waiting_.load(std::memory_order_relaxed); }
  /*! \brief What each instruction has copied from tensor to tensor so far, in all requests, also
   * failed ones; 0 for those that copy nothing. Any thread. [num_instructions] */
  std::vector<int64_t> CopiedBytes() const;
  /*! \brief "step 3 `what` on queue 'q0' (cpu:0) in kernel 'add'": where it is. Any thread. */
  std::string Where(const std::string& what) const;

 private:
  bool AwaitRequest(CoreShare* core);
  template <typename Ready>
  void AwaitIdly(Bell* bell, const Ready& ready, int spins, CoreShare* core);
  void AskCaller();
  void Do();
  /*! \brief The number of the next request that its thread begins. */
  int64_t NextRequest() const { return num_contexts_ == 1 ? next_.load() : taken_.load(); }
  /*! \brief What a counter of `length` instructions in each request has come to when it has done
   * `count` of the present one. */
  int64_t CountAt(int64_t length, int64_t count) const { return (next_ - 1) * length + count; }
  // Several requests at once: see worker_contexts.cc.
  void DoContexts(const CoreTurn& of_core);
  void BeginContexts(const CoreTurn& of_core);
  bool MayBegin(const CoreTurn& of_core);
  Worker* NextContext() const;
  bool AdvanceOne();
  bool IsReady() const;
  bool HasCome(const BoundInstruction& instruction) const;
  void Advance() noexcept;
  void EndContext();
  void DoHost();
  void DoStreams();
  Slot* NextSlot() const;
  bool HasNext() const;
  void Begin(Slot* slot);
  bool MayServe() const;
  SerialContext* TakeSerial();
  void DoSerial();
  void BeginRecording();
  void EndRecording();
  bool DoNext() noexcept;
  void KeepToCore(bool is_kept) noexcept;
  template <typename Recorder>
  void RunHost(Recorder recorder);
  bool IssueAll();
  bool Issue(size_t index);
  void MarkRecorded();
  void WarmLibraryKernels();
  void RecordLaunches();
  void CatchUp();
  void EndSample();
  void EndIssue();
  void RunCpuTimed();
  void SampleHost(SampleOrder* order);
  bool SampleStream(const BoundInstruction& instruction, SampleOrder* order);
  bool SampleCall(const BoundInstruction& instruction, SampleOrder* order);
  void PassLine();
  void TouchArena();
  template <typename Ready>
  bool PollUntil(Bell* bell, const Ready& ready, int spins, CoreShare* core);
  template <typename Ready>
  void WaitFor(Bell* bell, const Ready& ready, int spins);
  Team* FindOpenTeam();
  void Help(Team* team);
  bool Await(const BoundInstruction& instruction);
  bool AwaitEvent(const BoundWait& wait, Event* event);
  bool AwaitDevice(const std::function<bool()>& is_reached);
  bool Execute(const BoundInstruction& instruction);
  bool Call(const BoundInstruction& instruction);
  bool Call(TeamRole role, const KernelCall& call, CallTime* times, size_t place);
  bool CallAs(TeamRole role, const KernelCall& call, CallTime* times, size_t place);
  bool CallOpen(TeamRole role, const KernelCall& call, CallTime* time);
  bool CallIn(TeamRole role, const KernelCall& call);
  // Guarded instructions: see worker_branch.cc.
  void BindBranch(const Instruction& from, std::span<const std::unique_ptr<Worker>> workers);
  bool ExecuteBranch(const BoundInstruction& instruction) noexcept;
  void IssueBranch(const BoundInstruction& instruction);
  int64_t TakeLoad(const BoundBranch& at);
  bool IsRefuted(const BoundBranch& at) const;
  bool IsThere(const BoundThere& there) const;
  void ForgetNested(const BranchStep& step);
  template <typename Visit>
  bool ForEachRound(const BranchStep& step, int64_t load, const Visit& visit);
  bool DoRounds(Worker* owner, const BoundBranch& at, int64_t load, TeamRole role);
  bool DoRoundsHere(Worker* owner, const BoundBranch& at, int64_t load, TeamRole role);
  void IssueRounds(Stream* stream, const BoundBranch& at, int64_t load);
  KernelCall CallOf(Slot* slot, const BoundBranch& at, const CapacityStep& call, size_t round,
                    int64_t first_row);
  // Groups of them: see worker_group.cc.
  void BindGroup(size_t index);
  bool DoGroup(const BoundInstruction& instruction) noexcept;
  void DoLanes(BoundGroup* group, TeamRole role) noexcept;
  void DoLane(const BoundGroup& group, Lane lane) noexcept;
  void JoinGroup(const BoundInstruction& instruction);
  void ListLanes(BoundGroup* group);
  void IssueGroup(const BoundInstruction& instruction);
  void IssueLanes(BoundGroup* group);
  void IssueLane(Stream* stream, Lane lane, int32_t side);
  BoundGroup* GroupAt(size_t index) const;
  std::unique_ptr<Stream> MakeOneStream();
  KernelCall CallOf(const BoundInstruction& instruction) {
    return {instruction.kernel, slot_->arguments(index_, instruction.first_argument),
            type_codes_.data(), instruction.num_arguments};
  }
  /*! \brief Tells whoever waits for the instruction, or has joined it, that it is done. */
  void Tell(const BoundInstruction& instruction, size_t position) {
    if (instruction.is_awaited) progress_.Publish(base_ + static_cast<int64_t>(position) + 1);
    if (instruction.has_joins) team_.End();
    if (instruction.is_sent) AdvanceNetwork();
  }
  void AdvanceNetwork();
  void IssueOne(const BoundInstruction& instruction);
  void CountCopy(const BoundInstruction& instruction, int64_t bytes);
  /*! \brief Finishes the requests whose work on the stream has come to its end. */
  void PollPending() noexcept;
  /*! \brief The same for all queues of the thread; whether requests are left. */
  bool PollAllPending() noexcept;
  /*! \brief Looks for messages, if there are any. */
  void PollNetwork() noexcept;
  bool IsAnyPending() const;
  bool MustPoll() const { return looks_for_faults_ || IsAnyPending(); }
  // Faults of streams: see worker_faults.cc.
  void LookForFault() noexcept;
  bool IsLost() noexcept;
  void FailQueue(Slot* slot, const char* cause) noexcept;
  void FailBefore(Slot* slot, const BoundWait& wait, const char* cause) noexcept;
  void FailPending(Slot* slot, const char* cause) noexcept;
  std::string StepText(size_t index, const std::string& what) const;
  std::string StepText(const Instruction& at, const std::string& what) const;
  std::string StepsText(size_t first, size_t end) const;
  /*! \brief Instructions [first, end) of a queue, one of which may have failed. */
  struct Doubt {
    const Worker* worker;
    size_t first;
    size_t end;
  };
  std::string DoubtText(const std::vector<Doubt>& doubts, size_t unknown, bool is_oldest) const;
  std::string FaultText(Slot* slot, size_t unknown);
  size_t NumReached(const Slot* slot, size_t num_issued) const;
  size_t NumIssued(const Slot* slot) const;
  bool HasReached(Slot* slot, size_t index) noexcept;
  void FinishPart(Slot* slot);
  void Drain() noexcept;
  // Of a stream, where the request is recorded; ReadTimers once all of it was reached.
  void BeginTrace();
  void TieClocks();
  void BeginTimer(size_t index);
  void EndTimer(size_t index);
  void ReadTimers(Slot* slot);
  /*! \brief Spins before a wait in a request sleeps: fewer without an own core. */
  int Spins() const;
  int IdleSpins() const;
  /*! \brief Fails the present request at the present instruction. */
  void Fail(const char* cause) noexcept;

  Engine* engine_;
  const Image* image_;
  const Queue& queue_;
  const size_t index_;
  const int64_t context_;
  const int64_t num_contexts_;
  const bool is_serial_;
  const bool has_teams_;
  std::vector<BoundInstruction> instructions_;
  std::vector<BoundBranch> branches_;  // guarded instructions, in order
  std::vector<std::unique_ptr<BoundGroup>> groups_;
  /*! \brief See CopiedBytes; written by the thread that does a request alone. */
  std::unique_ptr<std::atomic<int64_t>[]> copied_bytes_;  // [num_instructions]
  std::vector<int32_t> zeros_;   // loads of a nested router whose branch is not active
  std::vector<int> type_codes_;  // all equal; as many as the longest call needs
  std::unique_ptr<Device> fake_device_;
  std::unique_ptr<Stream> stream_;
  /*! \brief Of a stream with groups: [kSideStreams]; and where they begin. Else none. */
  std::vector<std::unique_ptr<Stream>> sides_;
  int32_t first_side_ = 0;  // of `Program::FirstSides`
  std::unique_ptr<Event> fork_;
  /*! \brief `reached` of this queue as its stream can write it; 0: cores look at events. */
  uint64_t word_ = 0;
  /*! \brief First and last of each row of launches that are issued together; empty if none are. */
  std::vector<std::pair<size_t, size_t>> recorded_;

  /*! \brief Held by the thread that does a request, the worker's own or a caller's. */
  std::unique_ptr<std::mutex> turn_ = std::make_unique<std::mutex>();
  /*! \brief Whether callers do the requests; rung when they do not any more. */
  std::atomic<bool> is_lent_{false};
  Bell returned_bell_;
  /*! \brief Of the slot for whose end the last caller has waited here, rung with it. */
  std::atomic<Bell*> caller_bell_{nullptr};

  // Of that thread.
  /*! \brief The thread's queues and the order of their work, of the one that leads; and that one.
   */
  std::vector<Worker*> members_{this};
  std::vector<IssueStep> order_;
  Worker* leader_ = this;
  /*! \brief The request at work (none: null), how many it has begun, and what `done` was at its
   * start. */
  Slot* slot_ = nullptr;
  std::atomic<int64_t> next_{0};  // the thread looks at it while another works here
  int64_t base_ = 0;
  /*! \brief Of the one that leads contexts: requests that the thread has begun; the contexts at
   * work, the oldest request first, and whether no more is begun before these end. */
  std::atomic<int64_t> taken_{0};
  std::vector<Worker*> active_;
  bool is_draining_ = false;
  /*! \brief Of a context, or in a serial request: the next instruction and its recording; of a
   * context, whether it has ended. */
  size_t at_ = 0;
  bool is_over_ = true;
  std::optional<PartRecorder> recorder_;
  /*! \brief Teams in whose launches it helps, [others], and their cores; the one at which it looks
   * first, whether its own launches are open in the present request, and how long its calls take.
   */
  std::vector<Team*> others_;
  uint32_t num_other_cores_ = 0;
  size_t first_other_ = 0;
  bool is_open_ = false;
  SerialContext* serial_ = nullptr;  // of the one that leads contexts; null: none is at work
  std::atomic<int64_t> serial_request_{-1};  // of a serial context; -1: none
  /*! \brief Whether the worker's own thread is kept to the core of its queue. */
  bool is_on_core_ = true;
  /*! \brief Calls to be done without help, as helpers lost their cores: now, and the last time. */
  int64_t closed_calls_ = 0;
  int64_t last_closed_calls_ = 0;
  /*! \brief Of instructions, then of the capacities of guarded ones; empty: nobody helps. */
  std::vector<CallTime> call_times_;
  /*! \brief Instructions of the present request that were issued, of a stream. */
  size_t num_issued_ = 0;
  /*! \brief Requests that are issued but not finished, in order. */
  std::deque<Slot*> pending_;
  CoreShare* core_ = nullptr;
  /*! \brief Of the caller whose request it is; null: of a thread of the engine. */
  HookTurn* hook_ = nullptr;
  /*! \brief The messages of the engine; null: it has none. Constant after load. */
  Network* network_ = nullptr;
  /*! \brief Whether nobody but this thread, which issues, would see a fault of its streams now. */
  bool looks_for_faults_ = false;
  uint32_t num_polls_ = 0;
  /*! \brief A moment of the stream, and the same by NowNs; 0: never taken. */
  std::unique_ptr<Event> base_event_;
  int64_t base_ns_ = 0;
  std::vector<std::unique_ptr<Event>> tie_events_;
  /*! \brief Scratch memory of the kernels that this worker runs, or helps to run. */
  WorkspacePool workspace_;

  /*! \brief Position in the queue, for messages; written by the worker only. */
  alignas(kCacheLineBytes) std::atomic<size_t> position_{0};
  /*! \brief The call of a group that it does, of whatever queue; null: none. */
  std::atomic<const Instruction*> grouped_{nullptr};
  std::atomic<int64_t> num_finished_{0};
  std::atomic<bool> is_waiting_{false};
  ProgressTable* table_;
  Progress& progress_;
  Team team_;
};

}  // namespace heteroplace::exec
