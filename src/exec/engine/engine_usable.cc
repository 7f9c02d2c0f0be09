// Whether an engine can be used: not after some faults, and in the child of a fork with new
// threads.
#include <thread>
#include <utility>
#include <vector>

#include "exec/engine/engine.h"
#include "support/error.h"

namespace heteroplace::exec {

void Engine::CheckUsable() {
  std::unique_lock lock(mutex_);
  if (num_stuck_.load() != 0) {
    throw Error(ErrorKind::kExecution, "the executor cannot be used until this ends: " + stuck_);
  }
  if (!lost_.empty()) {
    throw Error(ErrorKind::kExecution,
                network_ != nullptr
                    ? "the executor cannot be used any more: " + lost_ + "; start the job again"
                    : "the executor cannot be used any more, a device is lost: " + lost_ +
                          "; CUDA takes it back only for a new process: load the model there");
  }
  if (!is_child_) return;
  const auto is_gpu = [](const Queue& queue) { return queue.device.device_type == kDLCUDA; };
  const std::vector<Queue>& queues = image_.program().queues;
  const bool has_gpu = std::ranges::any_of(queues, is_gpu);
  if (was_in_flight_ || has_gpu || network_ != nullptr) {
    throw Error(ErrorKind::kExecution,
                std::string("this process was forked from the one that loaded the executor, ") +
                    (has_gpu               ? "and GPUs do not follow into a child"
                     : network_ != nullptr ? "and other hosts do not know a child"
                                           : "while a request was in flight or held by a caller") +
                    "; load it in the child");
  }
  // What stood for the parent's threads cannot be joined here, nor destroyed.
  static_cast<void>(new std::vector<std::thread>(std::move(threads_)));
  threads_.clear();
  for (std::unique_ptr<Worker>& worker : workers_) worker->Revive();
  is_child_ = false;
  lock.unlock();
  Cores().Refresh();
  try {
    StartThreads();
  } catch (...) {
    lock.lock();
    is_child_ = was_in_flight_ = true;  // some may run, but never all of them
    throw;
  }
}

void Engine::BeforeFork() {
  mutex_.lock();
  slots_.Lock();
}

void Engine::AfterFork(bool is_child) {
  if (is_child) {
    is_child_ = true;
    was_in_flight_ = was_in_flight_ || slots_.IsInUse() || !IsIdle() || is_measuring_;
  }
  slots_.Unlock();
  mutex_.unlock();
}

}  // namespace heteroplace::exec
