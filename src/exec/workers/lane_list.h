// The branches of a group that are to be done in a request, and which worker does which.
//
// The leader lists the active ones by their rows; it and all who have joined it take one until none
// is left. One with many rows computes, one with few waits for its weights, and cores that all do
// the same at a time leave either the memory or their arithmetic idle. So half of the cores begin
// with the fewest rows, as long as many branches are left; of the last ones all take the one with
// most rows (list scheduling; Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl.
// Math. 17, 1969, doi:10.1137/0117039).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "exec/engine/sync.h"
#include "exec/program/program.h"

namespace heteroplace::exec {

/*! \brief Calls of one branch in a group, [first, end) of the leader's instructions. */
struct Lane {
  size_t first;
  size_t end;
};

/*!
 * \brief What is left to do of one group. Takers see what was listed with the number that they
 * take; the leader goes on when all that was listed is finished, so nothing changes under them.
 *
 * The ticket is the turn (32 bits; of the request), so that who comes late takes nothing of another
 * request, and of the lanes that are left the end (16) and the first (16).
 */
class LaneList {
 public:
  explicit LaneList(size_t num_lanes) { order_.reserve(num_lanes); }

  // Of the leader.

  void Clear() { order_.clear(); }
  void Add(size_t lane, int64_t rows) { order_.emplace_back(-rows, lane); }
  /*! \brief Lanes, those with most rows first. */
  const std::vector<std::pair<int64_t, size_t>>& Sort() {
    std::ranges::sort(order_);
    return order_;
  }
  /*! \brief Lets the lanes be taken; those of the turn before are finished. */
  void Open(uint32_t turn) {
    Sort();
    num_finished_.store(0);
    ticket_.store(static_cast<uint64_t>(turn) << 32 | order_.size() << 16);
  }
  bool IsOver() const { return num_finished_.load() == order_.size(); }

  // Of any worker of the team.

  bool HasNext(uint32_t turn) const { return IsLeft(ticket_.load(), turn); }
  /*!
   * \brief Takes a lane; none if none is left.
   * \param least_left if more than that are left, the one with fewest rows; else with most.
   */
  std::optional<size_t> Take(uint32_t turn, size_t least_left) {
    uint64_t ticket = ticket_.load();
    for (;;) {
      if (!IsLeft(ticket, turn)) return {};
      const bool is_last = End(ticket) - Next(ticket) > least_left;
      const size_t taken = is_last ? End(ticket) - 1 : Next(ticket);
      const uint64_t after = is_last ? ticket - kOneEnd : ticket + 1;
      if (ticket_.compare_exchange_weak(ticket, after)) return order_[taken].second;
    }
  }
  /*! \brief One that was taken is done; whether all are, of which the leader is to be told. */
  bool Finish() {
    const size_t num_lanes = order_.size();  // read before: then the leader may list others
    return num_finished_.fetch_add(1) + 1 == num_lanes;
  }

 private:
  static constexpr uint64_t kOneEnd = 1 << 16;
  static size_t Next(uint64_t ticket) { return ticket & 0xffff; }
  static size_t End(uint64_t ticket) { return ticket >> 16 & 0xffff; }
  static bool IsLeft(uint64_t ticket, uint32_t turn) {
    return ticket >> 32 == turn && Next(ticket) < End(ticket);
  }

  std::vector<std::pair<int64_t, size_t>> order_;  // rows less than 0, lane
  alignas(kCacheLineBytes) std::atomic<uint64_t> ticket_{0};
  alignas(kCacheLineBytes) std::atomic<size_t> num_finished_{0};
};

}  // namespace heteroplace::exec
