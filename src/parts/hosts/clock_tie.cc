#include "parts/hosts/clock_tie.h"

#include <algorithm>
#include <memory>

#include "exec/engine/sync.h"

namespace heteroplace::exec {

namespace {

constexpr int kRoundTrips = 100;

/*! \brief One number to a rank, or from it, again and again. */
class ClockMessage {
 public:
  ClockMessage(Group* group, int rank, bool is_sent) {
    message_ = is_sent ? group->MakeSend(rank, ControlTag::kClock, &value_, sizeof(value_))
                       : group->MakeReceive(rank, ControlTag::kClock, &value_, sizeof(value_));
  }
  void Start() { message_->Start(); }
  void Wait(Group* group, const Limit& limit) {
    group->Await([&] { return message_->Test(); }, kSpinNs, limit);
  }
  int64_t value_ = 0;

 private:
  static constexpr int64_t kSpinNs = 1'000'000;

  std::unique_ptr<Message> message_;
};

/*! \brief All round trips of one side; what they throw ends the job before the messages are given
 * up, as the other side would wait for the rest of them. */
template <typename Trip>
void MakeTrips(Group* group, const Trip& trip) {
  try {
    for (int i = 0; i < kRoundTrips; ++i) trip();
  } catch (...) {
    group->FailAsThrown();
    throw;
  }
}

}  // namespace

ClockTie TieClock(Group* group, int rank, const Limit& limit) {
  ClockMessage question(group, rank, /*is_sent=*/true), answer(group, rank, /*is_sent=*/false);
  ClockTie best;
  best.uncertainty_ns = kNever;
  MakeTrips(group, [&] {
    answer.Start();
    const int64_t before_ns = NowNs();
    question.Start();
    answer.Wait(group, limit);
    const int64_t after_ns = NowNs();
    question.Wait(group, limit);
    const int64_t half_ns = (after_ns - before_ns + 1) / 2;
    if (half_ns >= best.uncertainty_ns) return;
    best = {before_ns + half_ns, answer.value_ - (before_ns + half_ns), half_ns};
  });
  return best;
}

void AnswerClock(Group* group, int rank, const Limit& limit) {
  ClockMessage question(group, rank, /*is_sent=*/false), answer(group, rank, /*is_sent=*/true);
  MakeTrips(group, [&] {
    question.Start();
    question.Wait(group, limit);
    answer.value_ = NowNs();
    answer.Start();
    answer.Wait(group, limit);
  });
}

int64_t OwnTime::operator()(int64_t other_ns) const {
  const int64_t length_ns = last_.own_ns - first_.own_ns;
  const int64_t since_ns = other_ns - first_.ahead_ns - first_.own_ns;
  if (length_ns <= 0) return other_ns - first_.ahead_ns;
  const double part = static_cast<double>(since_ns) / static_cast<double>(length_ns);
  const auto gained_ns = static_cast<double>(last_.ahead_ns - first_.ahead_ns);
  return other_ns - first_.ahead_ns - static_cast<int64_t>(part * gained_ns);
}

int64_t OwnTime::uncertainty_ns() const {
  return std::max(first_.uncertainty_ns, last_.uncertainty_ns);
}

}  // namespace heteroplace::exec
