// BoundedReservationTable against ReservationTable: the same as long as it remembers everything,
// and never too early.
#include <algorithm>

#include "check.h"
#include "list/engine/reservation_table.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

constexpr int kCapacity = 32;  // of the bounded table, in intervals
constexpr int kHorizon = 200;

/*! \brief Up to its capacity the bounded table gives the same gaps as ReservationTable. */
void SameAsUnbounded(Random& random) {
  list::BoundedReservationTable bounded;
  list::ReservationTable unbounded;
  for (int count = 0; count < kCapacity; ++count) {
    const int64_t ready = random.Below(kHorizon), duration = random.Below(6);
    const int64_t start = unbounded.EarliestFit(ready, duration);
    CHECK_EQ(bounded.EarliestFit(ready, duration), start);
    bounded.Reserve(start, start + duration);
    unbounded.Reserve(start, start + duration);
    const list::BoundedReservationTable copy = bounded;
    CHECK(copy.IsSameFrom(bounded, 0));
    const int64_t probe = random.Below(kHorizon);
    CHECK_EQ(copy.EarliestFit(probe, 1), unbounded.EarliestFit(probe, 1));
  }
  bounded.Clear();
  CHECK_EQ(bounded.EarliestFit(3, kHorizon), int64_t{3});
}

/*! \brief What takes no time, between two intervals that have been joined, changes nothing. */
void NothingBetweenJoined() {
  list::ReservationTable table;
  table.Reserve(0, 1);
  table.Reserve(1, 3);
  table.Reserve(1, 1);
  CHECK_EQ(table.EarliestFit(0, 1), int64_t{3});
}

/*! \brief Beyond its capacity the bounded table may miss gaps, but never gives time that is taken.
 */
void NeverTaken(Random& random) {
  list::BoundedReservationTable bounded;
  list::ReservationTable unbounded;
  int64_t late = 0;
  for (int count = 0; count < 8 * kCapacity; ++count) {
    const int64_t ready = count * 3 / 2 + random.Below(kHorizon), duration = 1 + random.Below(4);
    const int64_t start = bounded.EarliestFit(ready, duration);
    CHECK(start >= ready);
    CHECK_EQ(unbounded.EarliestFit(start, duration), start);
    late += start - unbounded.EarliestFit(ready, duration);
    bounded.Reserve(start, start + duration);
    unbounded.Reserve(start, start + duration);
  }
  CHECK(late >= 0);
}

/*! \brief IsSameFrom says whether the tables answer alike, for tables that remember everything. */
void SameFrom(Random& random) {
  list::BoundedReservationTable left, right;
  for (int count = random.Below(kCapacity / 2); count >= 0; --count) {
    const int64_t ready = random.Below(60), duration = 1 + random.Below(4);
    const int64_t start = left.EarliestFit(ready, duration);
    left.Reserve(start, start + duration);
    // The other one has mostly the same, and something else early.
    const int64_t other =
        right.EarliestFit(random.Below(5) == 0 ? random.Below(10) : ready, duration);
    right.Reserve(other, other + duration);
  }
  for (int64_t from = 0; from < kHorizon; ++from) {
    bool is_alike = true;
    for (int64_t ready = from; ready < kHorizon; ++ready) {
      is_alike = is_alike && left.EarliestFit(ready, 1) == right.EarliestFit(ready, 1);
    }
    CHECK_EQ(left.IsSameFrom(right, from), is_alike);
    CHECK_EQ(right.IsSameFrom(left, from), is_alike);
  }
}

}  // namespace

int main() {
  NothingBetweenJoined();
  ForSeeds("as unbounded", 5000, SameAsUnbounded);
  ForSeeds("never taken", 2000, NeverTaken);
  ForSeeds("same from", 1000, SameFrom);
  return 0;
}
