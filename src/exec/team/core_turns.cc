#include "exec/team/core_turns.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace heteroplace::exec {

namespace {

/*! \brief All seats. Never destroyed: threads outlive the end of main. */
struct Seats {
  std::mutex mutex;
  std::vector<CoreSeat*> members;  // guarded by mutex
  int64_t num_asked = 0;           // guarded by mutex
};

Seats& AllSeats() {
  static Seats* const seats = new Seats;
  return *seats;
}

std::vector<int> Sorted(std::vector<int> cores) {
  std::ranges::sort(cores);
  return cores;
}

bool HaveCommon(const std::vector<int>& one, const std::vector<int>& other) {
  std::vector<int> common;
  std::ranges::set_intersection(one, other, std::back_inserter(common));
  return !common.empty();
}

}  // namespace

CoreSeat::CoreSeat(std::vector<int> cores) : cores_(Sorted(std::move(cores))) {
  if (cores_.size() < 2) return;  // a worker that waits for no other one loses nothing
  const std::scoped_lock lock(mutex());
  for (CoreSeat* other : AllSeats().members) {
    if (!HaveCommon(cores_, other->cores_)) continue;
    rivals_.push_back(other);
    other->rivals_.push_back(this);
    other->num_rivals_.store(static_cast<int>(other->rivals_.size()));
  }
  num_rivals_.store(static_cast<int>(rivals_.size()));
  AllSeats().members.push_back(this);
}

CoreSeat::~CoreSeat() {
  const std::scoped_lock lock(mutex());
  if (has_turn_.load()) End();
  for (CoreSeat* other : rivals_) {
    std::erase(other->rivals_, this);
    other->num_rivals_.store(static_cast<int>(other->rivals_.size()));
  }
  std::erase(AllSeats().members, this);
}

std::mutex& CoreSeat::mutex() { return AllSeats().mutex; }

void CoreSeat::ForgetAll() {
  for (CoreSeat* seat : AllSeats().members) {
    seat->has_turn_.store(false);
    seat->num_inside_ = seat->num_waiting_ = 0;
    seat->num_in_flight_.store(0);
  }
}

bool CoreSeat::HasWaitingRival() const {
  return std::ranges::any_of(rivals_,
                             [](const CoreSeat* rival) { return rival->num_waiting_ > 0; });
}

bool CoreSeat::HasRivalAtTurn() const {
  return std::ranges::any_of(rivals_,
                             [](const CoreSeat* rival) { return rival->has_turn_.load(); });
}

int CoreSeat::NumRivalRequests(bool has_pauses) const {
  if (!HasRivals()) return 0;
  const int64_t now_ns = NowNs();
  const std::scoped_lock lock(mutex());
  int num_requests = 0;
  for (const CoreSeat* rival : rivals_) {
    const bool has_just_ended =
        has_pauses && now_ns - rival->last_end_ns_.load() < kBetweenRequestsNs;
    num_requests += std::max(rival->num_in_flight_.load(), has_just_ended ? 1 : 0);
  }
  return num_requests;
}

/*! \brief Whether a worker may begin a request at once. */
bool CoreSeat::MayBegin(int64_t request) const {
  if (request <= last_.load())
    return true;  // others of the program are at it, and may wait for this one
  if (has_turn_.load()) return NowNs() < until_ns_ || !HasWaitingRival();
  return !HasRivalAtTurn();
}

void CoreSeat::Begin(int64_t request) {
  if (request > last_.load()) {
    last_.store(request);
    bell_.Ring();  // those who wait with the same request need not
  }
  if (!has_turn_.load() && !HasRivalAtTurn()) Take();
}

void CoreSeat::Take() {
  until_ns_ = NowNs() + kProgramTurnNs;
  has_turn_.store(true);
  num_turns_.fetch_add(1);
}

/*! \brief Ends the turn: those who have waited longest, and do not exclude each other, are next. */
void CoreSeat::End() {
  has_turn_.store(false);
  std::vector<CoreSeat*> waiting;
  for (CoreSeat* seat : AllSeats().members) {
    if (seat->num_waiting_ > 0 && !seat->has_turn_.load()) waiting.push_back(seat);
  }
  std::ranges::sort(waiting, [](const CoreSeat* one, const CoreSeat* other) {
    return one->asked_ < other->asked_;
  });
  for (CoreSeat* seat : waiting) {
    if (seat->HasRivalAtTurn()) continue;
    seat->Take();
    seat->bell_.Ring();
  }
}

/*! \brief A worker begins a request; whether it is to leave later. */
bool CoreSeat::Enter(int64_t request, CoreShare* core) {
  if (!HasRivals()) return false;
  std::unique_lock lock(mutex());
  if (!MayBegin(request)) {
    if (num_waiting_++ == 0) asked_ = AllSeats().num_asked++;
    const int64_t seen = num_turns_.load();
    lock.unlock();
    core->Leave();
    bell_.Sleep([&] { return num_turns_.load() != seen || request <= last_.load(); },
                NowNs() + kLongestProgramTurnNs);
    core->Enter();
    lock.lock();
    --num_waiting_;
    if (!MayBegin(request)) {  // it is taken from who does not end it
      for (CoreSeat* rival : rivals_) rival->has_turn_.store(false);
    }
  }
  Begin(request);
  ++num_inside_;
  return true;
}

bool CoreSeat::MayGoOn(int64_t request) {
  const std::scoped_lock lock(mutex());
  if (!MayBegin(request)) return false;
  Begin(request);
  return true;
}

void CoreSeat::Leave() {
  const std::scoped_lock lock(mutex());
  if (--num_inside_ == 0 && has_turn_.load()) End();
}

}  // namespace heteroplace::exec
