// Ties the clocks of two ranks by the quickest of many round trips.
//
// F. Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989, section 3: the
// other clock was read within the round trip, so the quickest one errs by half of its time at most.
#pragma once

#include <cstdint>
#include <vector>

#include "parts/hosts/group.h"

namespace heteroplace::exec {

/*! \brief Another rank's clock at a moment of this one's. */
struct ClockTie {
  /*! \brief NowNs of this rank. */
  int64_t own_ns = 0;
  /*! \brief What the other clock is ahead of it, at most `uncertainty_ns` from the truth. */
  int64_t ahead_ns = 0;
  int64_t uncertainty_ns = 0;
};

/*! \brief Asks a rank that is in AnswerClock. \throws Error kExecution if the job fails. */
ClockTie TieClock(Group* group, int rank, const Limit& limit);

/*! \brief Answers TieClock of a rank. \throws the same. */
void AnswerClock(Group* group, int rank, const Limit& limit);

/*! \brief Times of another rank as this one's clock would have shown them, between two ties: clocks
 * of two machines do not run at one speed. */
class OwnTime {
 public:
  OwnTime(const ClockTie& first, const ClockTie& last) : first_(first), last_(last) {}
  int64_t operator()(int64_t other_ns) const;
  /*! \brief The larger one of the two ties. */
  int64_t uncertainty_ns() const;

 private:
  ClockTie first_, last_;
};

}  // namespace heteroplace::exec
