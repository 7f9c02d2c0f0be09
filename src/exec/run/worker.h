// One queue at run time: its instructions with all pointers resolved, and the loop over them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "exec/devices/device.h"
#include "exec/devices/workspace.h"
#include "exec/measure/sampling.h"
#include "exec/program/program.h"
#include "exec/run/kernel_library.h"
#include "exec/run/sync.h"
#include "exec/run/team.h"
#include "exec/run/tensor_store.h"

namespace heteroplace::exec {

class Worker;

/*! \brief ns of a monotonic clock. */
int64_t NowNs();

/*! \brief When an instruction ran, in ns from the start of the run; its waits come before. */
struct Span {
  int64_t start_ns = 0;
  int64_t finish_ns = 0;
};

/*! \brief What the workers of one executor share during a run. */
struct RunState {
  /*! \brief Set by the first failure; every wait looks at it. */
  std::atomic<bool> is_cancelled{false};
  std::mutex mutex;
  std::string failure;  // guarded by mutex
  /*! \brief NowNs at the start of the run; written before the workers start. */
  int64_t start_ns = 0;
  /*! \brief Spins of a worker with a core of its own before it sleeps. Constant after load. */
  int run_spins = kSpins;
  /*! \brief All workers, whose waits a failure must wake. Constant after load. */
  std::vector<Worker*> workers;

  /*! \brief Cancels the run; the first text is kept. Any worker may call it. */
  void Fail(const std::string& text);
};

/*! \brief A wait with its counter, and the event to wait for where that queue is asynchronous. */
struct BoundWait {
  Progress* progress;
  uint32_t count;
  Event* event;
};

/*! \brief An instruction with all it needs at run time. */
struct BoundInstruction {
  Opcode opcode;
  bool is_awaited;
  /*! \brief Call or join: this worker's part in the team; one thread where there is no team. */
  TeamRole role;
  std::vector<BoundWait> waits;
  KernelCall call;
  /*! \brief Join: the leader's team and progress, and the count at which its call is over. */
  Team* team = nullptr;
  Progress* leader = nullptr;
  uint32_t leader_count = 0;
  /*! \brief Copy. */
  DLTensor* src = nullptr;
  DLTensor* dst = nullptr;
  int64_t bytes = 0;
  /*! \brief Asynchronous and awaited: recorded after the instruction. */
  std::unique_ptr<Event> event;
};

/*! \brief The state of one queue. Bind is called by the loader, all else by the worker's thread. */
class Worker {
 public:
  /*! \param host gives scratch memory; must outlive the worker. */
  Worker(const TvmAbi* abi, const Program& program, size_t queue, RunState* state, Device* host);

  /*! \brief Makes the stream and the events of an asynchronous queue. First, for all workers. */
  void MakeStream(TensorStore* store);

  /*! \brief Resolves the instructions. All workers must have their streams. */
  void Bind(const Program& program, TensorStore* store, KernelLibrary* library,
            const std::vector<KernelFunction>& kernels,
            const std::vector<std::unique_ptr<Worker>>& workers);

  /*! \brief Prepares the calling thread: core, TVM's pools, stream. Throws Error. */
  void Attach();

  /*! \brief Does all instructions once. Never throws; a failure goes to the RunState. */
  void Run(bool is_timed);

  /*! \brief As Run on a host queue, timed by this thread's processor time. */
  void RunCpuTimed();

  /*! \brief Does all instructions once, but its kernel calls as `order` says. Never throws. */
  void Sample(SampleOrder* order);

  const Queue& queue() const { return queue_; }
  Progress& progress() { return progress_; }
  Team& team() { return team_; }
  /*! \brief Scratch memory of the kernels that this worker runs, or helps to run. */
  const WorkspacePool& workspace() const { return workspace_; }
  /*! \brief Bytes that it holds: of the host what was touched, of a GPU all. */
  int64_t workspace_bytes() const {
    return workspace_.touched_bytes() + (stream_ == nullptr ? 0 : stream_->workspace_bytes());
  }
  /*! \brief Times of the last timed run. [num_instructions] */
  const std::vector<Span>& spans() const { return spans_; }

 private:
  template <bool kTimed>
  void RunHost();
  template <bool kTimed>
  void RunStream();
  void SampleHost(SampleOrder* order);
  void SampleStream(SampleOrder* order);
  bool SampleCall(const BoundInstruction& instruction, SampleOrder* order);
  /*! \brief Spins before a wait sleeps: few without an own core, as others compute on that one. */
  int Spins() const { return queue_.core >= 0 ? state_->run_spins : kSpins; }
  bool Await(const BoundInstruction& instruction);
  bool Execute(const BoundInstruction& instruction);
  bool Call(const BoundInstruction& instruction);
  void MakeTimers();
  void ReadTimers();
  void Fail(const std::string& cause);
  /*! \brief Fails, and leaves the stream empty, as the next run must find it. Never throws. */
  void FailAndDrain(const std::string& cause);

  const TvmAbi* abi_;
  const Program& program_;
  const Queue& queue_;
  RunState* state_;
  bool has_teams_ = false;
  std::vector<BoundInstruction> instructions_;
  std::deque<std::vector<TVMValue>> arguments_;  // one array per call, addresses kept
  std::vector<int> type_codes_;                  // all equal; as many as the longest call needs
  std::unique_ptr<Device> fake_device_;
  std::unique_ptr<Stream> stream_;
  /*! \brief Timed events of a stream: its start of the run, and two per instruction. */
  std::unique_ptr<Event> base_;
  int64_t base_ns_ = 0;
  std::vector<std::unique_ptr<Event>> timers_;  // [2 * num_instructions]
  std::vector<Span> spans_;
  /*! \brief Position in the queue, for messages. */
  size_t current_ = 0;
  Progress progress_;
  Team team_;
  WorkspacePool workspace_;
};

}  // namespace heteroplace::exec
