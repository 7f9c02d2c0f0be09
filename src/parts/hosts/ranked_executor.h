// An executor on each rank of a job, led by the one whose host feeds and reads the model.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "exec/engine/executor.h"
#include "parts/hosts/clock_tie.h"
#include "parts/hosts/group.h"
#include "parts/hosts/order_messages.h"

namespace heteroplace::exec {

/*! \brief What was recorded on one rank, by its own clock, and how that is tied to the caller's. */
struct RankTrace {
  Trace trace;
  ClockTie first, last;  // of the feeding rank: all 0
};

/*!
 * \brief This rank's part of a program for several hosts.
 *
 * On the feeding rank any thread may call any function, and those of `executor`; what the workers
 * do is ordered on all ranks. On the others there is only `Serve`.
 */
class RankedExecutor {
 public:
  /*!
   * \brief Loads; all ranks. \param source its `program_text` holds the programs of all hosts, its
   * `transport` is set here.
   * \param check may refuse this rank's host, by its position, before it is loaded.
   * \throws Error as Executor here, and kExecution on the other ranks.
   */
  RankedExecutor(std::shared_ptr<Group> group, ExecutorSource source,
                 const std::function<void(int)>& check, const Limit& limit);
  /*! \brief Closes if nobody has. */
  ~RankedExecutor();
  RankedExecutor(const RankedExecutor&) = delete;
  RankedExecutor& operator=(const RankedExecutor&) = delete;

  Executor& executor() { return *executor_; }
  Group& group() { return *group_; }
  /*! \brief Programs by host. [num_ranks] */
  const std::vector<Program>& programs() const { return programs_; }
  /*! \brief All of them as one; see merged.h. */
  const Program& merged() const { return merged_; }
  int feeding_rank() const { return feeding_rank_; }
  bool is_feeding() const { return feeding_rank_ == group_->rank(); }

  /*! \brief Throws Error kExecution, with what to call, on a rank that serves, or after Close. */
  void CheckFeeding(const char* function) const;

  /*! \brief Does what the feeding rank says until that closes. \throws Error kExecution when the
   * job fails, on a rank that feeds; and what the limit's hook throws. */
  void Serve(const Limit& limit);

  /*! \brief Ends the job in order; the feeding rank, with no request in flight. Others' Serve
   * returns. Once; nothing after a failure. */
  void Close();

  /*! \brief As Executor's. */
  void StartTrace(std::optional<int64_t> max_requests);
  /*! \brief The recording of each host; of requests of which another rank has none, none. The
   * limit is that of requests here: for what others answer no call has a deadline, as a job whose
   * answers nobody reads would be over. [num_ranks] */
  std::vector<RankTrace> StopTrace(const Limit& limit);
  /*! \brief All of them as one, of `merged`. */
  Trace MergedTrace(const Limit& limit);
  /*! \brief As Executor's, of all hosts: by a recording of one request.
   * \throws Error kExecution if calls of other threads take its place in the recording. */
  std::vector<Executor::Span> RunTimed(const Limit& limit);
  /*! \brief As Executor's, of all hosts: one host's instructions after the other's. */
  std::vector<int64_t> Profile(int64_t num_runs, const Limit& limit);
  std::vector<int64_t> ProfileCpu(int64_t num_runs, const Limit& limit);
  /*! \brief As Executor's, of each host. [num_ranks][num_spaces] */
  std::vector<std::vector<SpaceBytes>> MemoryBytes(const Limit& limit);

 private:
  void CountThreads(const Limit& limit);
  template <typename Ask>
  auto Asking(const Ask& ask);
  void Announce(const Order& order);
  void AwaitOrder(Order* order, const Limit& limit);
  bool Follow(const Order& order, const Limit& limit);
  void FinishOldest(const Limit& limit);
  void FinishAll(const Limit& limit);
  void Reply(const std::string& bytes, const Limit& limit);
  void ReplyMemory(const Limit& limit);
  /*! \brief What each other host answers; its own place is empty. [num_ranks] */
  std::vector<std::string> Answers(const Limit& limit);
  std::vector<int64_t> Gather(const std::vector<int64_t>& own, const Limit& limit);
  std::vector<ClockTie> TieClocks(const Limit& limit);

  const std::shared_ptr<Group> group_;
  std::vector<Program> programs_;
  Program merged_;
  int feeding_rank_ = 0;
  std::unique_ptr<Executor> executor_;
  /*! \brief Whether the ranks of this machine have cores for more than their workers. */
  bool may_spin_ = false;

  /*! \brief Held by what orders something that is answered. */
  std::mutex asking_mutex_;
  std::vector<ClockTie> first_ties_;  // guarded by asking_mutex_; [num_ranks]
  /*! \brief Whether others were ordered to answer, and not all that they do is read. */
  std::atomic<bool> are_answers_due_{false};

  std::mutex orders_mutex_;
  std::unique_ptr<OrderSender> sender_;  // guarded by orders_mutex_
  std::atomic<bool> is_closed_{false};

  // Of the thread that serves.
  std::atomic<bool> is_serving_{false};
  std::unique_ptr<OrderReceiver> receiver_;
  std::deque<std::unique_ptr<Request>> in_flight_;
};

}  // namespace heteroplace::exec
