// When the instructions of a stream ran, by events of its device.
#include "exec/workers/worker.h"

namespace heteroplace::exec {

namespace {

/*! \brief Events of which the one that was reached fastest ties the clocks. */
constexpr size_t kTies = 3;

/*! \brief Between two moments that tie the device's clock to the host's, as both drift. */
constexpr int64_t kTieNs = 100'000'000;

/*! \brief No base is older for long: CUDA tells elapsed times as float32, of a second to 60 ns. */
constexpr int64_t kOldBaseNs = 1'000'000'000;

}  // namespace

void Worker::MakeTimers(Slot* slot) {
  if (stream_ == nullptr) return;
  std::vector<std::unique_ptr<Event>>& timers = slot->timers(index_);
  while (timers.size() < 2 * instructions_.size() + 1) {
    timers.push_back(stream_->MakeEvent(/*is_timed=*/true));
  }
}

/*!
 * \brief Marks the start of a request on the stream.
 *
 * The clocks are tied before the first one, and anew where the stream has nothing to do.
 */
void Worker::BeginTrace() {
  if (base_ns_ == 0 || (pending_.empty() && NowNs() - base_ns_ > kTieNs)) TieClocks();
  RecordedPart* part = slot_->trace->part(index_, slot_->trace_place);
  part->num_issued = -1;  // until there is a start
  stream_->Record(slot_->timers(index_).back().get());
  part->num_issued = 0;
}

/*!
 * \brief An event is reached between two moments of the host, some us apart where the stream has
 * nothing else to do, as from the second event on: in the middle.
 */
void Worker::TieClocks() {
  int64_t min_ns = kNever;
  while (tie_events_.size() < kTies) tie_events_.push_back(stream_->MakeEvent(/*is_timed=*/true));
  if (base_event_ == nullptr) base_event_ = stream_->MakeEvent(/*is_timed=*/true);
  for (std::unique_ptr<Event>& event : tie_events_) {
    const int64_t before_ns = NowNs();
    stream_->Record(event.get());
    event->HostWait();
    const int64_t after_ns = NowNs();
    if (after_ns - before_ns >= min_ns) continue;
    min_ns = after_ns - before_ns;
    base_ns_ = event->HostNs().value_or(before_ns + min_ns / 2);
    std::swap(base_event_, event);
  }
}

void Worker::BeginTimer(size_t index) { stream_->Record(slot_->timers(index_)[2 * index].get()); }

void Worker::EndTimer(size_t index) {
  // Of a call in a group it was recorded where that was issued.
  if (!instructions_[index].is_grouped) {
    stream_->Record(slot_->timers(index_)[2 * index + 1].get());
  }
  slot_->trace->part(index_, slot_->trace_place)->num_issued = static_cast<int64_t>(index) + 1;
}

/*!
 * \brief Times of one request are told from its own start, and that from the base, which moves on
 * with the requests: a stream that is never idle is tied once.
 */
void Worker::ReadTimers(Slot* slot) {
  RecordedPart* part = slot->trace->part(index_, slot->trace_place);
  RecordedSpan* spans = slot->trace->spans(index_, slot->trace_place);
  std::vector<std::unique_ptr<Event>>& timers = slot->timers(index_);
  const int64_t num_issued = part->num_issued;
  if (num_issued < 0) {
    *part = {};
    return;
  }
  std::unique_ptr<Event>& start = timers.back();
  const int64_t start_ns = base_ns_ + start->ElapsedNs(*base_event_);
  const auto moment_ns = [&](size_t timer) { return start_ns + timers[timer]->ElapsedNs(*start); };
  *part = {start_ns, 0, 0, -1};
  for (size_t i = 0; i < static_cast<size_t>(num_issued); ++i) {
    spans[i] = {moment_ns(2 * i), moment_ns(2 * i + 1)};
  }
  part->num_done = num_issued;
  if (start_ns - base_ns_ < kOldBaseNs) return;
  std::swap(base_event_, start);
  base_ns_ = start_ns;
}

}  // namespace heteroplace::exec
