// How far a program has got, for messages about a job that failed.
#include <algorithm>
#include <span>

#include "exec/engine/engine.h"

namespace heteroplace::exec {

namespace {

/*! \brief Raises a step to the highest of the first `count` instructions of a queue. */
void Raise(const Queue& queue, int64_t count, int64_t* step) {
  for (int64_t i = 0; i < count; ++i) {
    *step = std::max(*step, queue.instructions[static_cast<size_t>(i)].step);
  }
}

}  // namespace

StepReached Engine::Reached() const {
  // The first request of all is the engine's own.
  const int64_t last = num_submitted_.load() - 1;
  const int64_t number = std::min(num_completed_.load(), last);
  StepReached reached;
  if (number < 1) return reached;
  const auto num_contexts = static_cast<int64_t>(num_contexts_);
  for (const std::unique_ptr<Worker>& worker :
       WorkersOf(static_cast<size_t>(number % num_contexts))) {
    const auto length = static_cast<int64_t>(worker->queue().instructions.size());
    const int64_t before = number / num_contexts * length;
    const int64_t done = std::min(worker->progress().done.load() - before, length);
    if (done <= 0) continue;
    reached.request = number - 1;
    Raise(worker->queue(), done, &reached.step);
  }
  if (reached.step >= 0 || number == 1) return reached;
  // Nothing of it yet: of the one before, which has ended, all.
  reached.request = number - 2;
  for (const std::unique_ptr<Worker>& worker : WorkersOf(0)) {
    Raise(worker->queue(), static_cast<int64_t>(worker->queue().instructions.size()),
          &reached.step);
  }
  return reached;
}

}  // namespace heteroplace::exec
