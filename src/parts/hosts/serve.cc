// The ranks that do not feed the model: they do what the feeding one says, until it closes.
#include <algorithm>
#include <utility>

#include "parts/hosts/packed.h"
#include "parts/hosts/patience.h"
#include "parts/hosts/ranked_executor.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief How long after the last order the next one is awaited without sleep, if there is a core
 * to spare. */
constexpr int64_t kOrderSpinNs = 10'000'000;

/*! \brief Between two looks for an order while requests are at work here. */
constexpr int64_t kOrderLookNs = 100'000;

}  // namespace

void RankedExecutor::Serve(const Limit& limit) {
  group_->CheckAlive();
  if (is_feeding()) {
    throw Error(ErrorKind::kExecution,
                "serve is for the other ranks; this is " + group_->NameOf(group_->rank()) +
                    ", which feeds the model: call run here, and close at the end");
  }
  if (is_closed_.load()) {
    throw Error(ErrorKind::kExecution, "the job was closed; load the file again on all ranks");
  }
  if (is_serving_.exchange(true)) {
    throw Error(ErrorKind::kExecution, "another thread serves already; one does it all");
  }
  try {
    Order order;
    do {
      AwaitOrder(&order, limit);
    } while (Follow(order, limit));
  } catch (const Error&) {
    group_->FailAsThrown();
    group_->CheckAlive();  // of the first failure, wherever it was
    throw;
  } catch (...) {
    group_->FailAsThrown();
    throw;
  }
}

void RankedExecutor::AwaitOrder(Order* order, const Limit& limit) {
  HookTurn hook(limit);
  Patience patience(0);
  while (!in_flight_.empty()) {
    if (receiver_->Take(order)) return;
    // Where no core is to spare the workers have them all; else its end wakes this thread.
    const Limit look = may_spin_ ? Limit{}.Within(kOrderLookNs) : Limit{0, {}};
    if (in_flight_.front()->Wait(look)) {
      FinishOldest(limit);
    } else if (!may_spin_) {
      patience.Rest();
    }
    hook.Look(NowNs());
  }
  LookUntil(limit, may_spin_ ? kOrderSpinNs : 0, [&] { return receiver_->Take(order); });
}

void RankedExecutor::FinishOldest(const Limit& limit) {
  in_flight_.front()->Finish(limit);
  in_flight_.pop_front();
}

void RankedExecutor::FinishAll(const Limit& limit) {
  while (!in_flight_.empty()) FinishOldest(limit);
}

/*! \brief False: that was the last order. */
bool RankedExecutor::Follow(const Order& order, const Limit& limit) {
  if (order.kind == Order::kRun) {
    if (static_cast<int>(in_flight_.size()) == executor_->max_in_flight()) FinishOldest(limit);
    in_flight_.push_back(executor_->Begin(limit));
    in_flight_.back()->Submit(limit);
    return true;
  }
  // A recording begins between two requests; all else has the executor alone.
  if (order.kind == Order::kStartTrace) {
    executor_->StartTrace(order.count == 0 ? std::nullopt : std::optional(order.count));
    return true;
  }
  FinishAll(limit);
  switch (order.kind) {
    case Order::kBenchmark:
      executor_->Benchmark(order.count, limit);
      return true;
    case Order::kProfile:
      Reply(Packed(executor_->Profile(order.count, limit)), limit);
      return true;
    case Order::kProfileCpu:
      Reply(Packed(executor_->ProfileCpu(order.count, limit)), limit);
      return true;
    case Order::kStopTrace:
      Reply(Packed(executor_->StopTrace(limit)), limit);
      return true;
    case Order::kClock:
      AnswerClock(group_.get(), feeding_rank_, limit);
      return true;
    case Order::kMemory:
      ReplyMemory(limit);
      return true;
    default:
      is_closed_.store(true);
      group_->End();
      return false;
  }
}

void RankedExecutor::ReplyMemory(const Limit& limit) {
  std::vector<int64_t> numbers;
  for (const SpaceBytes& bytes : executor_->MemoryBytes(limit)) {
    numbers.insert(numbers.end(), {bytes.arena, bytes.weights, bytes.workspace});
  }
  Reply(Packed(numbers), limit);
}

void RankedExecutor::Reply(const std::string& bytes, const Limit& limit) {
  group_->Send(feeding_rank_, ControlTag::kReply, bytes, limit);
}

}  // namespace heteroplace::exec
