// What requests of an engine decide and move: predictions, recordings, bytes of copies.
#include "exec/engine/engine.h"
#include "support/error.h"

namespace heteroplace::exec {

Decisions* Engine::RoutedDecisions() const {
  if (decisions_ != nullptr) return decisions_.get();
  throw Error(ErrorKind::kExecution,
              "the program has no routers; only networks with routers have route decisions");
}

void Engine::Predict(const std::vector<PredictedBranches>& all) {
  Decisions* decisions = RoutedDecisions();
  std::scoped_lock lock(mutex_);
  decisions->Predict(all);
}

std::vector<std::pair<std::string, PredictionCounts>> Engine::PredictionsOf() {
  const Decisions* decisions = RoutedDecisions();
  std::scoped_lock lock(mutex_);
  return decisions->counts();
}

void Engine::StartDecisions(DecisionLevel level) {
  Decisions* decisions = RoutedDecisions();
  std::scoped_lock lock(mutex_);
  decisions->Start(level);
}

RecordedDecisions Engine::TakeDecisions(bool ends) {
  Decisions* decisions = RoutedDecisions();
  Decisions::Words taken;
  {
    std::scoped_lock lock(mutex_);
    taken = decisions->Take(ends);
  }
  const auto give_back = [&] {
    std::scoped_lock lock(mutex_);
    decisions->GiveBack(&taken);
  };
  try {
    // Workers write into the other buffer meanwhile.
    RecordedDecisions recorded{Decisions::LinesOf(image_.program(), taken), taken.num_dropped};
    give_back();
    return recorded;
  } catch (...) {
    give_back();
    throw;
  }
}

std::vector<std::pair<int64_t, int64_t>> Engine::CopiedBytes() const {
  std::vector<std::pair<int64_t, int64_t>> found;
  for (const auto& worker : workers_) {
    const std::vector<int64_t> bytes = worker->CopiedBytes();
    const std::vector<Instruction>& instructions = worker->queue().instructions;
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (instructions[i].IsCopy()) found.emplace_back(instructions[i].step, bytes[i]);
    }
  }
  return found;
}

/*! \brief The last worker of a request: what is measured of a kernel alone has no decisions. */
void Engine::EndDecisions(Slot* slot) {
  const bool has_run = slot->kind == RequestKind::kRun || slot->kind == RequestKind::kCpuTimed;
  if (!has_run || !slot->has_outputs) return;
  std::scoped_lock lock(mutex_);
  decisions_->End(slot);
}

}  // namespace heteroplace::exec
