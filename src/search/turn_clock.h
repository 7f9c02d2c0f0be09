#pragma once

#include <algorithm>
#include <chrono>

#include "search/search.h"
#include "support/jobs.h"

namespace heteroplace::search {

/*! \brief The time of a search: of the present turn, and of all turns together. */
class TurnClock {
 public:
  /*! \brief Begins a turn. */
  void Begin(const SearchTurn& turn) {
    before_s_ += Elapsed();
    turn_ = turn;
    is_begun_ = true;
    last_hook_s_ = 0;
    begin_ = Clock::now();
  }

  /*! \brief Ends a turn: what is between turns counts for none. */
  void End() {
    before_s_ += Elapsed();
    is_begun_ = false;
  }

  /*! \brief Seconds of this turn. */
  double Elapsed() const {
    return is_begun_ ? std::chrono::duration<double>(Clock::now() - begin_).count() : 0.0;
  }

  double TimeLimit() const { return turn_.time_limit_s; }

  /*! \brief Whether the time of this turn is up. */
  bool IsLate() const { return Elapsed() >= turn_.time_limit_s; }

  /*! \brief When jobs must end, so that a selection from what they found is in time. */
  double JobsEnd() const {
    return turn_.time_limit_s - std::min(selecting_s_, kMaxSelecting * turn_.time_limit_s);
  }

  /*! \brief Tells what the latest selection took. */
  void TellSelecting(double seconds) { selecting_s_ = seconds; }

  /*! \brief Tells of a gain. */
  void TellGain() { last_gain_s_ = before_s_ + Elapsed(); }

  /*! \brief Tells what a bound took, in which no plan was looked for. */
  void TellBounding(double seconds) { last_gain_s_ += seconds; }

  /*! \brief Seconds since the last gain, but for those of bounds. */
  double Stalled() const { return before_s_ + Elapsed() - last_gain_s_; }

  /*! \brief Whether there was no gain for too long. */
  bool IsStalled() const {
    return turn_.stall_share > 0 &&
           Stalled() >= std::max(turn_.stall_s, turn_.stall_share * (before_s_ + Elapsed()));
  }

  /*! \brief Whether it is time for the hook; then it is not again for a while. */
  bool IsHookDue() {
    const double now = Elapsed();
    if (now - last_hook_s_ < kHookSeconds) return false;
    last_hook_s_ = now;
    return true;
  }

 private:
  static constexpr double kMaxSelecting = 0.2;  // of the time, set aside for the last selection

  using Clock = std::chrono::steady_clock;

  SearchTurn turn_;
  Clock::time_point begin_;
  bool is_begun_ = false;
  double before_s_ = 0;     // of the turns before
  double last_gain_s_ = 0;  // in the time of all turns
  double last_hook_s_ = 0;  // in the time of this turn
  double selecting_s_ = 0;
};

}  // namespace heteroplace::search
