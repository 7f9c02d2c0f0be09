#include "exec/trace/trace_recorder.h"

#include <algorithm>
#include <new>
#include <span>
#include <string>
#include <tuple>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Whether calls of a queue may be done by others. */
bool HasGroups(const Queue& queue) {
  return std::ranges::any_of(queue.instructions,
                             [](const Instruction& at) { return at.opcode == Opcode::kGroup; });
}

/*! \brief What one request takes in all rings. */
int64_t BytesOf(const Program& program) {
  int64_t bytes = 64;
  for (const Queue& queue : program.queues) {
    const size_t grouped = HasGroups(queue) ? sizeof(GroupedSpan) : 0;
    bytes += static_cast<int64_t>(sizeof(RecordedPart) +
                                  queue.instructions.size() * (sizeof(RecordedSpan) + grouped));
  }
  return bytes;
}

/*! \brief Requests to keep. \throws Error kExecution. */
int64_t NumKept(const Program& program, std::optional<int64_t> max_requests, int max_in_flight) {
  constexpr int64_t kMaxBytes = int64_t{1} << 40;
  const int64_t bytes = BytesOf(program);
  const int64_t most = kMaxBytes / bytes;
  const int64_t asked = max_requests.value_or(std::max<int64_t>(1, kTraceBytes / bytes));
  if (asked < 1 || asked > most) {
    throw Error(ErrorKind::kExecution, "a recording of the last " + std::to_string(asked) +
                                           " requests was asked for; expected 1 to " +
                                           std::to_string(most));
  }
  return std::max<int64_t>(asked, max_in_flight);
}

}  // namespace

TraceRecorder::TraceRecorder(const Program* program, std::optional<int64_t> max_requests,
                             int max_in_flight, TraceClock::Source source)
    : program_(program),
      num_kept_(NumKept(*program, max_requests, max_in_flight)),
      capacity_(static_cast<size_t>(num_kept_ + max_in_flight - 1)),
      clock_(source) {
  try {
    requests_ = std::make_unique<RecordedRequest[]>(capacity_);
    for (const Queue& queue : program->queues) {
      parts_.emplace_back(capacity_);
      spans_.emplace_back(capacity_ * queue.instructions.size());
      grouped_.emplace_back(HasGroups(queue) ? spans_.back().size() : 0);
    }
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::kExecution, "no memory for a recording of the last " +
                                           std::to_string(capacity_) + " requests, " +
                                           std::to_string(BytesOf(*program)) +
                                           " bytes each; record fewer");
  }
}

RecordedAt TraceRecorder::BeginRequest(int slot, bool is_serial) {
  // Older requests may still be at work. At most `max_in_flight` are, so there is a free place.
  while (!requests_[next_place_].has_ended.load()) next_place_ = (next_place_ + 1) % capacity_;
  const RecordedAt at{num_begun_++, next_place_};
  next_place_ = (next_place_ + 1) % capacity_;
  RecordedRequest& request = requests_[at.place];
  request.number = at.number;
  request.has_ended.store(false);
  request.slot = slot;
  request.is_serial = is_serial;
  request.begin = clock_.Now();
  for (size_t q = 0; q < parts_.size(); ++q) {
    parts_[q][at.place] = {};
    if (grouped_[q].empty()) continue;
    std::fill_n(grouped_spans(q, at.place), program_->queues[q].instructions.size(), GroupedSpan{});
  }
  return at;
}

void TraceRecorder::EndRequest(size_t place, bool has_failed) {
  RecordedRequest& request = requests_[place];
  request.has_failed = has_failed;
  request.end = clock_.NowAfterWait();
  request.has_ended.store(true);
}

void TraceRecorder::AddDurations(size_t place, std::vector<std::vector<int64_t>>* durations) {
  size_t i = 0;
  for (size_t q = 0; q < spans_.size(); ++q) {
    for (size_t k = 0; k < program_->queues[q].instructions.size(); ++k) {
      const RecordedSpan& span = SpanOf(q, place, k);
      (*durations)[i++].push_back(span.finish - span.start);
    }
  }
}

std::vector<size_t> TraceRecorder::PlacesKept() const {
  std::vector<size_t> places;
  for (size_t place = 0; place < capacity_; ++place) {
    if (requests_[place].number >= FirstKept()) places.push_back(place);
  }
  std::ranges::sort(places, {}, [&](size_t place) { return requests_[place].number; });
  return places;
}

bool TraceRecorder::HaveAllEnded() const {
  const std::span requests(requests_.get(), capacity_);
  return std::ranges::all_of(requests, [&](const RecordedRequest& request) {
    return request.number < FirstKept() || request.has_ended.load();
  });
}

Trace TraceRecorder::Collect() const {
  const TraceClock::ToNs to_ns(clock_);
  Trace trace;
  trace.origin_ns = clock_.start_ns();
  trace.duration_ns = NowNs() - trace.origin_ns;
  trace.num_dropped = FirstKept();
  for (const size_t place : PlacesKept()) {
    const RecordedRequest& request = requests_[place];
    if (!request.has_ended.load()) {
      ++trace.num_unfinished;
      continue;
    }
    trace.requests.push_back({request.number, request.slot, request.has_failed,
                              to_ns(request.begin) - trace.origin_ns,
                              to_ns(request.end) - trace.origin_ns, request.is_serial});
    std::vector<size_t> firsts;
    for (size_t q = 0; q < parts_.size(); ++q) {
      firsts.push_back(trace.events.size());
      CollectPart(q, place, to_ns, &trace);
    }
    firsts.push_back(trace.events.size());
    MoveJoins(firsts, &trace);
  }
  ClipWaits(&trace);
  return trace;
}

int32_t TraceRecorder::CoreOf(size_t queue, size_t place, size_t instruction) const {
  if (grouped_[queue].empty()) return -1;
  const size_t first = place * program_->queues[queue].instructions.size();
  return grouped_[queue][first + instruction].core;
}

/*! \brief When an instruction was done: of one in a group that was, by the core that did it. */
const RecordedSpan& TraceRecorder::SpanOf(size_t queue, size_t place, size_t instruction) const {
  const Queue& info = program_->queues[queue];
  const size_t at = place * info.instructions.size() + instruction;
  const bool is_own = info.IsAsync() || CoreOf(queue, place, instruction) < 0;
  return is_own ? spans_[queue][at] : grouped_[queue][at].span;
}

void TraceRecorder::CollectPart(size_t queue, size_t place, const TraceClock::ToNs& to_ns,
                                Trace* trace) const {
  const Queue& info = program_->queues[queue];
  const RecordedRequest& request = requests_[place];
  const RecordedPart& part = parts_[queue][place];
  const auto ns = [&](int64_t moment) {
    return (info.IsAsync() ? moment : to_ns(moment)) - trace->origin_ns;
  };
  TraceEvent event{request.number, request.slot, static_cast<int32_t>(queue), 0, true, 0, 0, 0};
  int64_t last_ns = part.num_done == 0 && part.given_up == 0 ? 0 : ns(part.begin);
  for (size_t i = 0; i < static_cast<size_t>(part.num_done); ++i) {
    event.instruction = static_cast<int32_t>(i);
    const RecordedSpan& span = SpanOf(queue, place, i);
    event.start_ns = ns(span.start);
    event.finish_ns = ns(span.finish);
    event.core = CoreOf(queue, place, i);
    // One thread alone waits for nobody.
    const bool has_waits = !info.instructions[i].waits.empty() && !request.is_serial;
    event.wait_ns = has_waits ? std::max<int64_t>(0, event.start_ns - last_ns) : 0;
    if (event.core < 0) last_ns = event.finish_ns;  // others are done within their group
    trace->events.push_back(event);
  }
  if (part.given_up == 0) return;
  event.instruction = static_cast<int32_t>(part.num_done);
  event.core = -1;
  event.is_done = false;
  event.wait_ns = 0;
  event.finish_ns = ns(part.given_up);
  // Since then, the thread of a serial request has done instructions of other queues.
  event.start_ns = request.is_serial ? event.finish_ns : last_ns;
  trace->events.push_back(event);
}

/*! \brief Who helps is there before the call begins: until then it waits. */
void TraceRecorder::MoveJoins(const std::vector<size_t>& firsts, Trace* trace) const {
  for (size_t e = firsts.front(); e < firsts.back(); ++e) {
    TraceEvent& event = trace->events[e];
    const Instruction& at = program_->queues[static_cast<size_t>(event.queue)]
                                .instructions[static_cast<size_t>(event.instruction)];
    if (at.opcode != Opcode::kJoin || !event.is_done) continue;
    const auto leader = static_cast<size_t>(at.leader_queue);
    const size_t call = firsts[leader] + static_cast<size_t>(at.leader_index);
    if (call >= firsts[leader + 1]) continue;  // never begun
    const int64_t start_ns =
        std::clamp(trace->events[call].start_ns, event.start_ns, event.finish_ns);
    event.wait_ns += start_ns - event.start_ns;
    event.start_ns = start_ns;
  }
}

/*! \brief A core that goes on with another request while one waits is not waiting itself. */
void TraceRecorder::ClipWaits(Trace* trace) const {
  std::vector<std::vector<TraceEvent*>> by_queue(parts_.size());
  for (TraceEvent& event : trace->events) {
    const auto queue = static_cast<size_t>(event.queue);
    const bool is_of_core = !program_->queues[queue].IsAsync() && event.core < 0;
    if (is_of_core) by_queue[queue].push_back(&event);
  }
  for (std::vector<TraceEvent*>& events : by_queue) {
    std::ranges::sort(events, [](const TraceEvent* one, const TraceEvent* other) {
      return std::tie(one->finish_ns, one->start_ns, one) <
             std::tie(other->finish_ns, other->start_ns, other);
    });
    int64_t last_ns = 0;
    for (TraceEvent* event : events) {
      if (!event->is_done) event->start_ns = std::clamp(last_ns, event->start_ns, event->finish_ns);
      event->wait_ns = std::min(event->wait_ns, std::max<int64_t>(0, event->start_ns - last_ns));
      last_ns = event->finish_ns;
    }
  }
}

}  // namespace heteroplace::exec
