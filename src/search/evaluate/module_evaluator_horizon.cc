// ModuleEvaluator where all that is behind a horizon stays as it is.
#include <algorithm>

#include "search/evaluate/module_evaluator.h"

namespace heteroplace::search {

void ModuleEvaluator::FindTails(Tails& tails) {
  const std::vector<model::ScheduledCopy> copies = Copies();
  std::vector<int> position;
  position.reserve(copies.size());
  for (const model::ScheduledCopy& copy : copies) {
    position.push_back(arrivals_.Get(copy.tensor, copy.dst).position);
  }
  tails.Find(finish_ns_, copies, position);
}

/*! \brief Takes what is behind the horizon into the result, as if all of that stayed as it is. */
void ModuleEvaluator::RunBehind(const Horizon& horizon) {
  int64_t makespan = trial_makespan_ns_;
  for (int resource = 0; resource < problem_.num_resources; ++resource) {
    const int64_t tail = horizon.resource_tail_ns[resource];
    if (tail == Horizon::kUnused) continue;
    const int64_t free =
        resource < problem_.num_units ? unit_free_ns_[resource] : TableOf(resource).end_ns();
    makespan = std::max(makespan, free + tail);
  }
  for (const Horizon::Waiting& waiting : horizon.waiting) {
    const int home = arrangement_.Home(waiting.tensor);
    const int producer = module_.producer[waiting.tensor];
    const int64_t made = producer < 0 ? 0 : finish_ns_[producer];
    const Arrival arrival = arrivals_.Get(waiting.tensor, waiting.memory);
    int64_t until = made + waiting.tail_ns;
    if (home >= 0 && home != waiting.memory) {
      const int64_t duration = module_.Transfer(waiting.tensor, home, waiting.memory);
      if (arrival.evaluation == evaluation_ || arrival.position < begin_) {
        until = arrival.time_ns + waiting.tail_ns;
      } else if (duration == model::kImpossible) {
        ++trial_unreachable_;
      } else {
        // Another copy than that of the plan: nobody knows whom it keeps waiting.
        until =
            made + (home == waiting.copy_src ? waiting.copy_tail_ns : duration + waiting.tail_ns);
      }
    }
    makespan = std::max(makespan, until);
  }
  trial_makespan_ns_ = makespan;
  trial_unreachable_ += horizon.num_unreachable;
}

void ModuleEvaluator::Look(int first, const Horizon* horizon) {
  const bool is_first = horizon_ == nullptr && horizon != nullptr;
  horizon_ = horizon;
  if (module_.num_tasks == 0) return;
  const size_t end =
      horizon == nullptr ? checkpoints_.size() : static_cast<size_t>(horizon->position / spacing_);
  if (is_first) {
    // What was copied behind the horizon must be copied again, or it is not there.
    for (size_t index = checkpoints_[end].num_made; index < made_.size(); ++index) {
      arrivals_[made_[index].row] = Arrival();
    }
    made_.resize(checkpoints_[end].num_made);
  }
  end_checkpoint_ = static_cast<int>(end);
  limit_ns_ = list::kNever;
  Restore(checkpoints_[first / spacing_]);
  Replay(first / spacing_ * spacing_, Mode::kAgain);
  KeepReplay();
}

}  // namespace heteroplace::search
