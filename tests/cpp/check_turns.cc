// CoreSeat: programs that share cores are at work one after the other, and none waits for ever.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "exec/team/core_turns.h"

using namespace heteroplace;
using namespace heteroplace::exec;
using namespace heteroplace::test;

namespace {

/*! \brief A program of two workers that wait for each other in each request. */
class Pair {
 public:
  Pair(CoreSeat* seat, std::atomic<int>* num_at_work) : seat_(seat), num_at_work_(num_at_work) {}

  /*! \brief One worker's part of all requests; counts those with no other program at work. */
  void Work(size_t self, int64_t num_requests, int* num_alone) {
    CoreShare core(-1);
    int64_t next = 0;
    while (next < num_requests) {
      const int64_t begin = NowNs();
      const CoreTurn turn(seat_, true, next, &core);
      if (NowNs() - begin >= kLongestProgramTurnNs) has_waited_long_.store(true);
      do {
        Request(self, next, num_alone);
        ++next;
      } while (next < num_requests && turn.MayGoOn(next));
    }
  }

  /*! \brief Whether a worker went on without the turn, on a machine that does not come to it. */
  bool has_waited_long() const { return has_waited_long_.load(); }

 private:
  void Request(size_t self, int64_t request, int* num_alone) {
    if (self == 0 && num_at_work_->fetch_add(1) == 0) ++*num_alone;
    Meet(self, 2 * request + 1);
    if (self == 0) num_at_work_->fetch_sub(1);
    Meet(self, 2 * request + 2);
  }

  void Meet(size_t self, int64_t count) {
    met_[self].store(count);
    while (met_[1 - self].load() < count) std::this_thread::yield();
  }

  CoreSeat* seat_;
  std::atomic<int>* num_at_work_;
  std::array<std::atomic<int64_t>, 2> met_{};
  std::atomic<bool> has_waited_long_{false};
};

/*! \brief All programs have core 1 in common: no two are at a request at once. */
void OneAfterTheOther(Random& random) {
  const int num_pairs = 2 + random.Below(3), num_requests = 1 + random.Below(300);
  std::vector<std::unique_ptr<CoreSeat>> seats;
  std::vector<std::unique_ptr<Pair>> pairs;
  std::atomic<int> num_at_work{0};
  for (int p = 0; p < num_pairs; ++p) {
    seats.push_back(std::make_unique<CoreSeat>(std::vector<int>{1, 2 + random.Below(3)}));
    pairs.push_back(std::make_unique<Pair>(seats.back().get(), &num_at_work));
  }
  std::vector<int> num_alone(static_cast<size_t>(num_pairs), 0);
  std::vector<std::thread> threads;
  for (size_t p = 0; p < pairs.size(); ++p) {
    for (size_t self = 0; self < 2; ++self) {
      threads.emplace_back([&, p, self] { pairs[p]->Work(self, num_requests, &num_alone[p]); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  const bool has_waited_long = std::any_of(
      pairs.begin(), pairs.end(), [](const auto& pair) { return pair->has_waited_long(); });
  for (const int count : num_alone) CHECK(has_waited_long || count == num_requests);
}

/*! \brief Enters with a request, from the first one on; returns how long that took. */
int64_t EnterNs(CoreSeat* seat) {
  CoreShare core(-1);
  const int64_t begin = NowNs();
  const CoreTurn turn(seat, true, 0, &core);
  return NowNs() - begin;
}

void OneThatDoesNotEndIsPassedBy() {
  CoreSeat hung({0, 1}), rival({1, 2}), next({2, 3}), far({4, 5});
  CoreShare core(-1);
  const CoreTurn turn(&hung, true, 0, &core);
  CHECK(EnterNs(&far) < kLongestProgramTurnNs);
  CHECK(EnterNs(&next) < kLongestProgramTurnNs);
  CHECK(EnterNs(&rival) >= kLongestProgramTurnNs);
  CHECK(turn.MayGoOn(1));  // it has come to life
}

void OneThatIsGoneIsNotWaitedFor() {
  auto first = std::make_unique<CoreSeat>(std::vector<int>{0, 1});
  CoreSeat second({0, 1});
  {
    CoreShare core(-1);
    const CoreTurn turn(first.get(), true, 0, &core);
  }
  first.reset();
  CHECK(EnterNs(&second) < kLongestProgramTurnNs);
}

/*! \brief The other worker of a program that has its turn never waits, however old that is. */
void AWorkerOfARequestThatHasBegunDoesNotWait() {
  CoreSeat seat({0, 1}), rival({0, 1});
  CoreShare core(-1);
  const CoreTurn turn(&seat, true, 0, &core);
  std::thread waits([&] { EnterNs(&rival); });
  std::this_thread::sleep_for(std::chrono::nanoseconds(4 * kProgramTurnNs));
  CHECK(EnterNs(&seat) < kLongestProgramTurnNs / 2);
  CHECK(!turn.MayGoOn(1));
  waits.join();
}

/*! \brief Requests of rivals count while they are in flight, and no longer than the pause after. */
void RequestsOfRivalsAreCounted() {
  CoreSeat seat({0, 1}), rival({1, 2}), stranger({3, 4});
  CHECK_EQ(seat.NumRivalRequests(true), 0);
  rival.BeginRequest();
  rival.BeginRequest();
  stranger.BeginRequest();
  CHECK_EQ(seat.NumRivalRequests(false), 2);
  CHECK_EQ(rival.NumRivalRequests(true), 0);
  rival.EndRequest();
  rival.EndRequest();
  CHECK_EQ(seat.NumRivalRequests(false), 0);
  std::this_thread::sleep_for(std::chrono::nanoseconds(2 * kBetweenRequestsNs));
  CHECK_EQ(seat.NumRivalRequests(true), 0);
}

}  // namespace

int main() {
  ForSeeds("one after the other", 400, OneAfterTheOther);
  OneThatDoesNotEndIsPassedBy();
  OneThatIsGoneIsNotWaitedFor();
  AWorkerOfARequestThatHasBegunDoesNotWait();
  RequestsOfRivalsAreCounted();
  return 0;
}
