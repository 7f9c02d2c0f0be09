#include "parts/hosts/ranked_executor.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "exec/program/bundle.h"
#include "parts/hosts/merged.h"
#include "parts/hosts/packed.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief What the feeding rank waits for its last order to go. */
constexpr int64_t kCloseNs = 1'000'000'000;

[[noreturn]] void RefuseClosed() {
  throw Error(ErrorKind::kExecution,
              "the executor was closed, on all ranks; load the file again to run it");
}

}  // namespace

RankedExecutor::RankedExecutor(std::shared_ptr<Group> group, ExecutorSource source,
                               const std::function<void(int)>& check, const Limit& limit)
    : group_(std::move(group)) {
  std::string fault;
  std::exception_ptr thrown;
  try {
    programs_ = ParsePrograms(source.program_text);
    merged_ = MergedPrograms(programs_);
    check(group_->host());
    feeding_rank_ = group_->RankOf(FeedingHost(programs_));
    source.transport = group_->HostTransport();
    if (is_feeding()) {
      sender_ = std::make_unique<OrderSender>(group_.get());
      source.on_order = [this](const Order& order) { Announce(order); };
    } else {
      receiver_ = std::make_unique<OrderReceiver>(group_.get(), feeding_rank_);
    }
    executor_ = std::make_unique<Executor>(source);
  } catch (const std::exception& error) {
    thrown = std::current_exception();
    fault = CauseOf(error);
  }
  try {
    group_->Agree({}, fault, limit);
  } catch (const Error&) {
    if (thrown != nullptr) std::rethrow_exception(thrown);
    throw;
  }
  CountThreads(limit);
  // The last that may throw is over: the group, which lives on then, would call what is gone.
  group_->SetStatus([this] { return executor_->Reached(); });
}

/*! \brief Ranks of one machine that have a core for each worker have one for who waits as well: he
 * waits while no worker does anything. */
void RankedExecutor::CountThreads(const Limit& limit) {
  const auto own = static_cast<int64_t>(executor_->program().queues.size());
  const std::vector<std::string> counts =
      group_->Exchange(Packed(std::vector<int64_t>{own}), limit);
  int64_t num_here = 0;
  for (int rank = 0; rank < group_->num_ranks(); ++rank) {
    if (group_->IsHere(rank)) num_here += UnpackedNumbers(counts[static_cast<size_t>(rank)]).at(0);
  }
  may_spin_ = num_here <= Cores().usable.load();
}

RankedExecutor::~RankedExecutor() {
  Close();
  if (!group_->IsForked()) group_->SetStatus(nullptr);  // a lock that the watching thread takes
}

void RankedExecutor::CheckFeeding(const char* function) const {
  group_->CheckAlive();
  if (!is_feeding()) {
    throw Error(ErrorKind::kExecution, std::string(function) +
                                           " is for the rank that feeds the model, " +
                                           group_->NameOf(feeding_rank_) + "; this is " +
                                           group_->NameOf(group_->rank()) + ": call serve here");
  }
  if (is_closed_.load()) RefuseClosed();
}

void RankedExecutor::Announce(const Order& order) {
  const std::scoped_lock lock(orders_mutex_);
  if (is_closed_.load()) RefuseClosed();
  if (order.IsAnswered()) are_answers_due_.store(true);
  sender_->Send(order);
}

/*! \brief Does what others answer, for one caller at a time. What it throws ends the job while
 * answers are due: the next question would get them for its own. */
template <typename Ask>
auto RankedExecutor::Asking(const Ask& ask) {
  const std::scoped_lock lock(asking_mutex_);
  are_answers_due_.store(false);
  try {
    return ask();
  } catch (...) {
    if (are_answers_due_.load()) group_->FailAsThrown();
    throw;
  }
}

void RankedExecutor::Close() {
  if (group_->IsForked()) return;
  if (is_closed_.exchange(true) || !is_feeding() || group_->HasFailed()) return;
  try {
    const std::scoped_lock lock(orders_mutex_);
    sender_->Send({Order::kStop, 0});
    sender_->Flush(NowNs() + kCloseNs);
    group_->End();
  } catch (const Error&) {
    // The job has failed meanwhile, which has been told.
  } catch (const std::bad_alloc&) {
    group_->FailAsThrown();  // others would wait for that order for ever
  }
}

void RankedExecutor::StartTrace(std::optional<int64_t> max_requests) {
  Asking([&] {
    std::vector<ClockTie> ties = TieClocks({});
    executor_->StartTrace(max_requests);  // which orders it
    first_ties_ = std::move(ties);
  });
}

std::vector<ClockTie> RankedExecutor::TieClocks(const Limit& limit) {
  Announce({Order::kClock, 0});
  const Limit patient{kNever, limit.hook};
  std::vector<ClockTie> ties(programs_.size());
  for (int host = 0; host < static_cast<int>(programs_.size()); ++host) {
    const int rank = group_->RankOf(host);
    if (rank != group_->rank())
      ties[static_cast<size_t>(host)] = TieClock(group_.get(), rank, patient);
  }
  are_answers_due_.store(false);
  return ties;
}

std::vector<std::string> RankedExecutor::Answers(const Limit& limit) {
  const Limit patient{kNever, limit.hook};
  std::vector<std::string> answers(programs_.size());
  for (int host = 0; host < static_cast<int>(programs_.size()); ++host) {
    const int rank = group_->RankOf(host);
    if (rank == group_->rank()) continue;
    answers[static_cast<size_t>(host)] = group_->Receive(rank, ControlTag::kReply, patient);
  }
  are_answers_due_.store(false);
  return answers;
}

std::vector<RankTrace> RankedExecutor::StopTrace(const Limit& limit) {
  return Asking([&] {
    const auto own = static_cast<size_t>(group_->host());
    std::vector<RankTrace> traces(programs_.size());
    traces[own].trace = executor_->StopTrace(limit);  // which orders it
    const std::vector<std::string> answers = Answers(limit);
    const std::vector<ClockTie> last_ties = TieClocks(limit);
    for (size_t host = 0; host < traces.size(); ++host) {
      traces[host].first = first_ties_[host];
      traces[host].last = last_ties[host];
      if (host != own) traces[host].trace = UnpackedTrace(answers[host]);
    }
    return traces;
  });
}

Trace RankedExecutor::MergedTrace(const Limit& limit) {
  return MergedTraces(programs_, merged_, StopTrace(limit), group_->host());
}

std::vector<Executor::Span> RankedExecutor::RunTimed(const Limit& limit) {
  const std::unique_ptr<Request> request = executor_->Begin(limit);
  StartTrace({});
  std::exception_ptr fault;
  try {
    request->Submit(limit);
    request->Finish(limit);
  } catch (...) {
    fault = std::current_exception();
  }
  const Trace recorded = MergedTrace(limit);
  if (fault != nullptr) std::rethrow_exception(fault);
  const int64_t number = request->trace_number();
  const auto own = std::ranges::find(recorded.requests, number, &TraceRequest::request);
  if (own == recorded.requests.end()) {
    throw Error(ErrorKind::kExecution,
                "calls of other threads have taken the place of the timed one in the recording; "
                "make fewer of them meanwhile");
  }
  std::vector<Executor::Span> spans;
  for (const TraceEvent& at : recorded.events) {
    if (at.request != number) continue;
    spans.push_back({at.start_ns - own->start_ns, at.finish_ns - own->start_ns});
  }
  return spans;
}

std::vector<std::vector<SpaceBytes>> RankedExecutor::MemoryBytes(const Limit& limit) {
  return Asking([&] {
    const auto own = static_cast<size_t>(group_->host());
    std::vector<std::vector<SpaceBytes>> all(programs_.size());
    all[own] = executor_->MemoryBytes(limit);  // first: it may fail, and others need not know
    Announce({Order::kMemory, 0});
    const std::vector<std::string> answers = Answers(limit);
    for (size_t host = 0; host < all.size(); ++host) {
      const std::vector<int64_t> numbers = UnpackedNumbers(answers[host]);
      for (size_t i = 0; i + 2 < numbers.size(); i += 3) {
        all[host].push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
      }
    }
    return all;
  });
}

std::vector<int64_t> RankedExecutor::Gather(const std::vector<int64_t>& own, const Limit& limit) {
  std::vector<std::string> answers = Answers(limit);
  answers[static_cast<size_t>(group_->host())] = Packed(own);
  std::vector<int64_t> all;
  for (const std::string& answer : answers) {
    const std::vector<int64_t> numbers = UnpackedNumbers(answer);
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  return all;
}

std::vector<int64_t> RankedExecutor::Profile(int64_t num_runs, const Limit& limit) {
  return Asking([&] { return Gather(executor_->Profile(num_runs, limit), limit); });
}

std::vector<int64_t> RankedExecutor::ProfileCpu(int64_t num_runs, const Limit& limit) {
  return Asking([&] { return Gather(executor_->ProfileCpu(num_runs, limit), limit); });
}

}  // namespace heteroplace::exec
