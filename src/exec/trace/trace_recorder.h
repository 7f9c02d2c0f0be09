// Recording when each instruction of many requests ran: rings of times, written without a lock.
//
// A request has a place in every ring, by its number, so that what is kept is whole: the last
// requests, with all of their queues. Each queue's thread writes into a ring of its own, and no
// memory is taken after the recorder was made.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "exec/program/program.h"
#include "exec/trace/trace.h"
#include "exec/trace/trace_clock.h"

namespace heteroplace::exec {

/*! \brief Memory of the rings where a caller does not say how many requests he wants. */
inline constexpr int64_t kTraceBytes = int64_t{8} << 20;

/*! \brief Times of one instruction: ticks of the recorder's clock; ns of NowNs where the queue is
 * asynchronous. */
struct RecordedSpan {
  int64_t start = 0;
  int64_t finish = 0;
};

/*! \brief The same of a call in a group, and who did it, as in TraceEvent; -1: nobody. */
struct GroupedSpan {
  RecordedSpan span;
  int32_t core = -1;
};

/*! \brief One queue's part of one request, by the same clock. */
struct RecordedPart {
  int64_t begin = 0;
  /*! \brief Instructions that were done, and when the queue gave up the next one; 0: it did not. */
  int64_t num_done = 0;
  int64_t given_up = 0;
  /*! \brief Asynchronous: instructions whose times can be read when the stream has come by; -1: not
   * even the start can. */
  int64_t num_issued = -1;
};

/*! \brief What a thread of a processor calls as it goes through its part of a request. */
class PartRecorder {
 public:
  PartRecorder(const TraceClock* clock, RecordedPart* part, RecordedSpan* spans)
      : clock_(clock), part_(part), spans_(spans), now_(clock->Now()) {
    *part_ = {now_, 0, 0, 0};
  }

  void Waited() { now_ = clock_->NowAfterWait(); }
  void Start(size_t index) { spans_[index].start = now_; }
  /*! \brief The next instruction begins at this moment, unless it waits. */
  void Finish(size_t index) { spans_[index].finish = now_ = clock_->Now(); }
  void End(size_t num_done, size_t length) {
    part_->num_done = static_cast<int64_t>(num_done);
    if (num_done != length) part_->given_up = clock_->Now();
  }

 private:
  const TraceClock* clock_;
  RecordedPart* part_;
  RecordedSpan* spans_;
  int64_t now_;
};

/*! \brief The same where nothing is recorded. */
struct NoRecorder {
  void Waited() {}
  void Start(size_t) {}
  void Finish(size_t) {}
  void End(size_t, size_t) {}
};

/*! \brief A request of a recording: its number, from 0, and its place in the rings. */
struct RecordedAt {
  int64_t number;
  size_t place;
};

/*! \brief The rings of a recording. Its requests are begun one at a time, and end in any order. */
class TraceRecorder {
 public:
  /*!
   * \param max_requests that are kept; none: as many as kTraceBytes hold.
   * \param max_in_flight requests at once; so many are kept at least.
   * \throws Error kExecution if `max_requests` is out of range, or memory is short.
   */
  TraceRecorder(const Program* program, std::optional<int64_t> max_requests, int max_in_flight,
                TraceClock::Source source);
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  /*! \brief A request is submitted. */
  RecordedAt BeginRequest(int slot, bool is_serial = false);
  /*! \brief Its last queue is done. */
  void EndRequest(size_t place, bool has_failed);

  // Of the thread of a queue, while the request is in flight.

  RecordedPart* part(size_t queue, size_t place) { return &parts_[queue][place]; }
  /*! \brief [num_instructions of the queue] */
  RecordedSpan* spans(size_t queue, size_t place) {
    return spans_[queue].data() + place * program_->queues[queue].instructions.size();
  }
  PartRecorder Recorder(size_t queue, size_t place) {
    return {&clock_, part(queue, place), spans(queue, place)};
  }

  /*! \brief Calls in groups of a queue, by instruction; of whoever does them. */
  GroupedSpan* grouped_spans(size_t queue, size_t place) {
    return grouped_[queue].data() + place * program_->queues[queue].instructions.size();
  }

  /*! \brief The present moment by the clock of the spans. */
  int64_t Now() const { return clock_.Now(); }

  /*! \brief Adds what each instruction of a request took. [num_instructions], queue by queue */
  void AddDurations(size_t place, std::vector<std::vector<int64_t>>* durations);
  /*! \brief Whether the requests that are kept have ended, in whatever order. No request may begin
   * any more. */
  bool HaveAllEnded() const;
  /*! \brief What was recorded of the requests that have ended. No request may begin any more. */
  Trace Collect() const;

 private:
  struct RecordedRequest {
    int slot = 0;
    bool is_serial = false;
    bool has_failed = false;
    int64_t begin = 0;
    int64_t end = 0;
    int64_t number = -1;  // -1: the place was never used
    /*! \brief Then the recording can be read, or its place reused. */
    std::atomic<bool> has_ended{true};
  };

  /*! \brief Of those that there is room for, the first one that is kept. */
  int64_t FirstKept() const { return std::max<int64_t>(0, num_begun_ - num_kept_); }
  /*! \brief Places of the requests that are kept, by number. */
  std::vector<size_t> PlacesKept() const;
  int32_t CoreOf(size_t queue, size_t place, size_t instruction) const;
  const RecordedSpan& SpanOf(size_t queue, size_t place, size_t instruction) const;
  void CollectPart(size_t queue, size_t place, const TraceClock::ToNs& to_ns, Trace* trace) const;
  /*! \param firsts event of each queue of one request, and the end. [num_queues + 1] */
  void MoveJoins(const std::vector<size_t>& firsts, Trace* trace) const;
  void ClipWaits(Trace* trace) const;

  const Program* program_;
  int64_t num_kept_;
  /*! \brief Places: more than `num_kept_`, because one request may outlast many that come later. */
  size_t capacity_;
  TraceClock clock_;
  int64_t num_begun_ = 0;
  size_t next_place_ = 0;
  std::unique_ptr<RecordedRequest[]> requests_;   // [capacity]
  std::vector<std::vector<RecordedPart>> parts_;  // [num_queues][capacity]
  std::vector<std::vector<RecordedSpan>> spans_;  // [num_queues][capacity][num_instructions]
  /*! \brief The same of queues with groups; of others none. */
  std::vector<std::vector<GroupedSpan>> grouped_;
};

}  // namespace heteroplace::exec
