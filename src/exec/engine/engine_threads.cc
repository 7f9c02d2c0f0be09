// The threads of an engine: which queues each of them has, which help each other, how they begin.
#include <exception>
#include <map>
#include <set>
#include <system_error>

#include "exec/engine/engine.h"
#include "exec/net/network.h"
#include "exec/program/issue_order.h"
#include "support/error.h"

namespace heteroplace::exec {

void Engine::MakeWorkers() {
  const size_t num_queues = image_.program().queues.size();
  for (size_t context = 0; context < num_contexts_ + num_serial_contexts_; ++context) {
    for (size_t q = 0; q < num_queues; ++q) {
      workers_.push_back(std::make_unique<Worker>(this, &image_, &progress_, q, context));
      workers_.back()->MakeStream();
    }
  }
  for (size_t context = 0; context < num_contexts_ + num_serial_contexts_; ++context) {
    for (const std::unique_ptr<Worker>& worker : WorkersOf(context)) {
      worker->Bind(WorkersOf(context));
      if (num_contexts_ == 1 || context >= num_contexts_) continue;
      worker->progress().all = &submitted_bell_;
      worker->team().RingAlso(&submitted_bell_);
    }
  }
}

/*!
 * \brief One thread for all streams of a GPU, one for each other queue, with all of its contexts.
 *
 * Several threads would meet in the driver, which lets one in at a time, and would issue in an
 * order that chance decides.
 */
void Engine::GroupWorkers() {
  std::map<int32_t, std::vector<Worker*>> members;  // by the thread's first queue
  std::map<int32_t, int32_t> first_of_gpu;
  const size_t num_queues = image_.program().queues.size();
  std::vector<int32_t> first_of(num_queues);
  for (size_t q = 0; q < num_queues; ++q) {
    const Queue& queue = workers_[q]->queue();
    if (queue.HasMessages()) continue;
    const auto id = static_cast<int32_t>(q);
    const bool is_gpu = queue.device.device_type == kDLCUDA;
    first_of[q] = is_gpu ? first_of_gpu.emplace(queue.device.device_id, id).first->second : id;
    for (size_t context = 0; context < num_contexts_; ++context) {
      members[first_of[q]].push_back(WorkersOf(context)[q].get());
    }
  }
  std::map<int32_t, std::vector<IssueStep>> orders;
  for (const InstructionId& at : IssueOrder(image_.program())) {
    const auto q = static_cast<size_t>(at.queue);
    if (workers_[q]->queue().HasMessages()) continue;
    orders[first_of[q]].push_back({workers_[q].get(), static_cast<size_t>(at.index)});
  }
  for (auto& [first, workers] : members) {
    leaders_.push_back(workers.front());
    leaders_.back()->Lead(std::move(workers), std::move(orders[first]));
  }
}

/*!
 * \brief Lets workers help each other: those that share a cache, as chunks of one kernel read the
 * same data, or all.
 */
void Engine::GroupHelpers(bool is_everywhere) {
  if (!image_.library().HasTeams()) return;
  std::map<int, std::vector<Worker*>> groups;  // by cache
  for (const std::unique_ptr<Worker>& worker :
       std::span(workers_).first(num_contexts_ * image_.program().queues.size())) {
    const Queue& queue = worker->queue();
    if (queue.kind != QueueKind::kCpu || queue.core < 0) continue;
    const int domain = is_everywhere ? 0 : CacheDomain(queue.core);
    if (domain >= 0) groups[domain].push_back(worker.get());
  }
  for (const auto& [domain, group] : groups) {
    for (Worker* worker : group) {
      std::vector<Team*> others;
      std::set<int> cores;
      for (Worker* other : group) {
        if (other->queue().core == worker->queue().core) continue;
        others.push_back(&other->team());
        cores.insert(other->queue().core);
      }
      if (others.empty()) continue;
      worker->HelpEachOther(std::move(others), cores.size());
      is_helping_ = true;
    }
  }
}

/*!
 * \brief The cores for which its workers take turns with those of other engines.
 *
 * Not with messages: a turn that is waited for on one rank could wait for one on another.
 */
std::vector<int> Engine::SharedCores() const {
  std::vector<int> cores;
  if (network_ != nullptr) return cores;
  for (const Worker* leader : leaders_) {
    const Queue& queue = leader->queue();
    if (queue.kind == QueueKind::kCpu && queue.core >= 0) cores.push_back(queue.core);
  }
  return cores;
}

void Engine::StartThreads() {
  num_started_.store(0);
  try {
    for (Worker* leader : leaders_) {
      threads_.emplace_back([this, leader] { ThreadMain(leader); });
    }
    if (network_ != nullptr) threads_.emplace_back([this] { network_->Work(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::kExecution, "cannot start " + std::to_string(leaders_.size()) +
                                           " worker threads: " + error.what());
  }
  Limit{}.Wait(&idle_bell_, [&] { return num_started_.load() == leaders_.size(); });
  std::scoped_lock lock(mutex_);
  if (start_failure_ != nullptr) std::rethrow_exception(start_failure_);
}

void Engine::ThreadMain(Worker* leader) {
  try {
    leader->Attach();
  } catch (const std::exception&) {
    std::scoped_lock lock(mutex_);
    if (start_failure_ == nullptr) start_failure_ = std::current_exception();
  }
  num_started_.fetch_add(1);
  idle_bell_.Ring();
  leader->Work();
}

}  // namespace heteroplace::exec
