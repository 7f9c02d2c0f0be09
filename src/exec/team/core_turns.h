// Turns of programs that share cores: each has all of its cores for some milliseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "exec/engine/sync.h"
#include "exec/team/cores.h"

namespace heteroplace::exec {

/*! \brief How long a program begins requests while others wait for its cores. */
inline constexpr int64_t kProgramTurnNs = 5'000'000;

/*! \brief Longest pause between two requests of a program that is called over and over. */
inline constexpr int64_t kBetweenRequestsNs = 1'000'000;

/*! \brief Who has waited so long takes the turn from one that does not end it. */
inline constexpr int64_t kLongestProgramTurnNs = 500'000'000;

/*!
 * \brief The place of a program among those of the process that have some of the same cores.
 *
 * Workers of one program wait for each other. Where two programs are at work on the same cores,
 * such a wait lasts until the system takes the other core from the other program, again and again;
 * so they take turns, first come, first served. Workers do not wait for the turn with a request
 * that another worker of the program has begun, so nobody waits for somebody who waits for him. A
 * turn is a hint, and right answers do not hang on it.
 */
class CoreSeat {
 public:
  /*! \param cores of its workers, distinct; with fewer than two it has no rivals. */
  explicit CoreSeat(std::vector<int> cores);
  ~CoreSeat();
  CoreSeat(const CoreSeat&) = delete;
  CoreSeat& operator=(const CoreSeat&) = delete;

  /*! \brief In the child of a fork, where nobody is at work. */
  static void ForgetAll();
  /*! \brief Held by the thread that forks, for the child. */
  static std::mutex& mutex();
  /*! \brief Whether other programs have some of its cores. */
  bool HasRivals() const { return num_rivals_.load(std::memory_order_relaxed) != 0; }
  /*! \brief A request of the program is submitted; and it is over. */
  void BeginRequest() { num_in_flight_.fetch_add(1); }
  void EndRequest() {
    last_end_ns_.store(NowNs());
    num_in_flight_.fetch_sub(1);
  }
  /*!
   * \brief Requests of rivals in flight.
   * \param has_pauses whether to count one for a rival whose latest request has just ended.
   */
  int NumRivalRequests(bool has_pauses) const;

 private:
  friend class CoreTurn;

  bool Enter(int64_t request, CoreShare* core);
  bool MayGoOn(int64_t request);
  void Leave();

  // With the mutex:
  bool MayBegin(int64_t request) const;
  bool HasWaitingRival() const;
  bool HasRivalAtTurn() const;
  void Begin(int64_t request);
  void Take();
  void End();

  const std::vector<int> cores_;
  /*! \brief Programs with some of its cores; and how many, for who does not hold the mutex. */
  std::vector<CoreSeat*> rivals_;
  std::atomic<int> num_rivals_{0};
  std::atomic<int> num_in_flight_{0};
  std::atomic<int64_t> last_end_ns_{0};
  // Written with the mutex: whether it has the turn, how many it has had, and the last request that
  // a worker has begun.
  std::atomic<bool> has_turn_{false};
  std::atomic<int64_t> num_turns_{0};
  std::atomic<int64_t> last_{-1};
  Bell bell_;  // rung when one of these changes
  int64_t until_ns_ = 0;
  int num_inside_ = 0;
  int num_waiting_ = 0;
  int64_t asked_ = 0;  // who has waited longer has the lower number
};

/*! \brief The part of a worker in turns of its program: from one request to the end of the last. */
class CoreTurn {
 public:
  /*!
   * \brief Waits for the turn.
   * \param seat null: of a worker without a core.
   * \param needs_turn whether its next request waits for other workers.
   */
  CoreTurn(CoreSeat* seat, bool needs_turn, int64_t request, CoreShare* core)
      : seat_(seat), is_inside_(seat != nullptr && needs_turn && seat->Enter(request, core)) {}
  ~CoreTurn() {
    if (is_inside_) seat_->Leave();
  }
  CoreTurn(const CoreTurn&) = delete;
  CoreTurn& operator=(const CoreTurn&) = delete;

  /*! \brief Whether it holds the turn of its program, and rivals wait for its end. */
  bool is_inside() const { return is_inside_; }
  /*! \brief Whether the worker may begin another request in the same turn. */
  bool MayGoOn(int64_t request) const { return is_inside_ && seat_->MayGoOn(request); }
  /*! \brief The same beside requests that it has begun; with no rivals there are no turns. */
  bool MayBegin(int64_t request) const {
    return is_inside_ ? seat_->MayGoOn(request) : seat_ == nullptr || !seat_->HasRivals();
  }

 private:
  CoreSeat* seat_;
  bool is_inside_;  // there were rivals, and it needs the turn
};

}  // namespace heteroplace::exec
