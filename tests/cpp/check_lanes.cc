// Branches of a group: which one is taken, each once, and who finishes last.
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "check.h"
#include "exec/workers/lane_list.h"

using namespace heteroplace;
using namespace heteroplace::exec;
using namespace heteroplace::test;

namespace {

constexpr size_t kMaxRows = SIZE_MAX;

/*! \brief Takes lane `expected`; says whether all are finished then. */
bool Takes(LaneList* list, uint32_t turn, size_t least_left, size_t expected) {
  const std::optional<size_t> lane = list->Take(turn, least_left);
  CHECK(lane.has_value());
  CHECK_EQ(*lane, expected);
  return list->Finish();
}

/*! \brief Most rows from one end, fewest from the other while more than two are left. */
void BothEndsAreTaken() {
  LaneList list(6);
  const int64_t rows[] = {3, 9, 1, 20, 4, 7};
  for (size_t lane = 0; lane < 6; ++lane) list.Add(lane, rows[lane]);
  list.Open(5);
  CHECK(!list.Take(4, kMaxRows).has_value());  // of another request
  CHECK(!Takes(&list, 5, kMaxRows, 3));
  CHECK(!Takes(&list, 5, 2, 2));
  CHECK(!Takes(&list, 5, 2, 0));
  CHECK(!Takes(&list, 5, 2, 4));
  CHECK(!Takes(&list, 5, 2, 1));  // two are left: the larger
  CHECK(list.HasNext(5) && !list.IsOver());
  CHECK(Takes(&list, 5, 2, 5));
  CHECK(!list.HasNext(5) && list.IsOver());
  CHECK(!list.Take(5, 2).has_value());
}

void NoneAreTakenOfNone() {
  LaneList list(3);
  list.Open(1);
  CHECK(!list.Take(1, 0).has_value() && !list.Take(1, kMaxRows).has_value());
  CHECK(list.IsOver());
}

/*! \brief Threads from both ends, over some requests: each lane once, and one is told the end. */
void EachIsTakenOnce(Random& random) {
  const size_t num_lanes = static_cast<size_t>(random.Below(40));
  LaneList list(num_lanes);
  for (uint32_t turn = 0; turn < 20; ++turn) {
    std::vector<std::atomic<int>> times(num_lanes);
    std::atomic<int> ends{0};
    list.Clear();
    for (size_t lane = 0; lane < num_lanes; ++lane) list.Add(lane, 1 + random.Below(9));
    const auto take = [&](size_t least_left) {
      while (const std::optional<size_t> lane = list.Take(turn, least_left)) {
        ++times[*lane];
        if (list.Finish()) ++ends;
      }
    };
    const auto least_left = static_cast<size_t>(random.Below(6));
    list.Open(turn);
    std::thread other(take, least_left);
    take(kMaxRows);
    other.join();
    for (const std::atomic<int>& each : times) CHECK_EQ(each.load(), 1);
    CHECK_EQ(ends.load(), num_lanes == 0 ? 0 : 1);
    CHECK(list.IsOver());
  }
}

}  // namespace

int main() {
  BothEndsAreTaken();
  NoneAreTakenOfNone();
  ForSeeds("threads", 80, EachIsTakenOnce);
  return 0;
}
