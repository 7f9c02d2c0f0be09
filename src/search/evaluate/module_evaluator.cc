#include "search/evaluate/module_evaluator.h"

#include <algorithm>

#include "list/engine/copies.h"

namespace heteroplace::search {

namespace {

constexpr int kMinSpacing = 8;
constexpr int kMaxSpacing = 64;
constexpr int kCheckpoints = 48;          // aimed at, within the limits of the spacing
constexpr int kMinTasksToConverge = 256;  // in smaller modules a change reaches the end anyway
constexpr int kMaxTables = 1 << 17;       // in all checkpoints together, of half a KiB each

/*! \brief Tasks between checkpoints, each of which has a table for each resource of copies. */
int Spacing(int num_tasks, int num_tables) {
  const int count = std::max(1, kMaxTables / std::max(1, num_tables));
  return std::max(std::clamp(num_tasks / kCheckpoints, kMinSpacing, kMaxSpacing),
                  num_tasks / count);
}

}  // namespace

ModuleEvaluator::ModuleEvaluator(const model::Problem& problem, const decompose::Module& module,
                                 const Arrangement& arrangement, bool keeps_checkpoints)
    : problem_(problem),
      module_(module),
      arrangement_(arrangement),
      spacing_(keeps_checkpoints
                   ? Spacing(module.num_tasks, problem.num_resources - problem.num_units)
                   : std::max(1, module.num_tasks)),
      may_converge_(module.num_tasks >= kMinTasksToConverge),
      finish_ns_(module.num_tasks, 0),
      arrivals_(module.num_tensors, module.num_memories),
      unit_free_ns_(problem.num_units, 0),
      load_ns_(problem.num_units, 0),
      tables_(problem.num_resources - problem.num_units) {
  const size_t count = static_cast<size_t>((module.num_tasks + spacing_ - 1) / spacing_);
  checkpoints_.resize(count);
  trial_checkpoints_.resize(count);
  segment_makespan_.assign(count, 0);
  trial_segments_.assign(count, 0);
  suffix_makespan_.assign(count + 1, 0);
  suffix_ready_.assign(count + 1, list::kNever);
}

int64_t ModuleEvaluator::Evaluate() {
  horizon_ = nullptr;
  arrivals_.Clear();
  made_.clear();
  std::ranges::fill(unit_free_ns_, 0);
  std::ranges::fill(load_ns_, 0);
  for (list::BoundedReservationTable& table : tables_) table.Clear();
  trial_makespan_ns_ = 0;
  trial_unreachable_ = 0;
  trial_made_.clear();
  if (!checkpoints_.empty()) Save(checkpoints_[0]);
  limit_ns_ = list::kNever;
  Replay(0, Mode::kAll);
  KeepReplay();
  return makespan_ns_;
}

int64_t ModuleEvaluator::Try(int64_t limit_ns) {
  const int first = arrangement_.first_changed();
  if (first >= module_.num_tasks) {  // Nothing changed.
    begin_ = module_.num_tasks;
    end_checkpoint_ = static_cast<int>(checkpoints_.size());
    trial_makespan_ns_ = makespan_ns_;
    trial_unreachable_ = num_unreachable_;
    return makespan_ns_ <= limit_ns ? makespan_ns_ : list::kNever;
  }
  const int index = first / spacing_;
  limit_ns_ = limit_ns;
  Restore(checkpoints_[index]);
  return Replay(index * spacing_, Mode::kTrial);
}

int64_t ModuleEvaluator::Replay(int begin, Mode mode) {
  ++evaluation_;
  begin_ = begin;
  dirty_until_ = -1;
  trial_made_.clear();
  finish_undo_.clear();
  arrival_undo_.clear();
  trial_segment_ns_ = 0;
  const int count = module_.num_tasks;
  if (IsLate()) return list::kNever;
  int index = begin / spacing_;
  for (int position = begin; position < count; ++position) {
    if (position == (index + 1) * spacing_) {
      trial_segments_[index] = trial_segment_ns_;
      trial_segment_ns_ = 0;
      ++index;
      if (IsEnd(index, position, mode)) {
        end_checkpoint_ = index;
        if (horizon_ != nullptr) {
          RunBehind(*horizon_);
        } else {
          trial_makespan_ns_ = std::max(trial_makespan_ns_, suffix_makespan_[index]);
          trial_unreachable_ += num_unreachable_ - checkpoints_[index].num_unreachable;
        }
        return trial_makespan_ns_ <= limit_ns_ ? trial_makespan_ns_ : list::kNever;
      }
      if (mode != Mode::kTrial) Save(trial_checkpoints_[index]);
    }
    if (!RunTask(arrangement_.order()[position], position)) return list::kNever;
  }
  end_checkpoint_ = static_cast<int>(checkpoints_.size());
  CopyOutputs();
  if (count > 0) trial_segments_[index] = trial_segment_ns_;
  return trial_makespan_ns_ <= limit_ns_ ? trial_makespan_ns_ : list::kNever;
}

/*! \brief Whether a replay need not go on from a checkpoint. */
bool ModuleEvaluator::IsEnd(int index, int position, Mode mode) const {
  if (mode == Mode::kAll) return false;
  if (horizon_ != nullptr) return position == horizon_->position;
  if (mode == Mode::kAgain) return index == end_checkpoint_;
  return may_converge_ && position > arrangement_.last_changed() && dirty_until_ < position &&
         HasConverged(index);
}

bool ModuleEvaluator::IsLate() const {
  for (size_t unit = 0; unit < unit_free_ns_.size(); ++unit) {
    if (unit_free_ns_[unit] + arrangement_.load_ns()[unit] - load_ns_[unit] > limit_ns_)
      return true;
  }
  return false;
}

/*! \brief Runs the next task of the order; false if the limit cannot be kept any more. */
bool ModuleEvaluator::RunTask(int task, int position) {
  ++num_steps_;
  const int device = arrangement_.device()[task];
  const int memory = problem_.device_memory[device];
  int64_t start = 0;
  for (int tensor : module_.reads[task]) start = std::max(start, Arrive(tensor, memory, position));
  const auto units = problem_.device_units[device];
  for (int unit : units) start = std::max(start, unit_free_ns_[unit]);
  const int64_t run = module_.Run(task, device);
  const int64_t finish = start + run;
  bool is_late = finish > limit_ns_ - module_.tail_ns[task];
  for (int unit : units) {
    unit_free_ns_[unit] = finish;
    load_ns_[unit] += run;
    is_late = is_late || finish > limit_ns_ - (arrangement_.load_ns()[unit] - load_ns_[unit]);
  }
  if (finish != finish_ns_[task]) {
    finish_undo_.emplace_back(task, finish_ns_[task]);
    finish_ns_[task] = finish;
    if (may_converge_ && horizon_ == nullptr) {
      for (int tensor : module_.makes[task]) NoteChange(tensor, -1);
    }
  }
  trial_segment_ns_ = std::max(trial_segment_ns_, finish);
  trial_makespan_ns_ = std::max(trial_makespan_ns_, finish);
  return !is_late;
}

int64_t ModuleEvaluator::Arrive(int tensor, int memory, int position) {
  const int home = arrangement_.Home(tensor);
  const int producer = module_.producer[tensor];
  const int64_t made = producer < 0 ? 0 : finish_ns_[producer];
  if (home < 0 || home == memory) return made;
  const size_t row = arrivals_.Row(tensor, memory);
  const Arrival& arrival = arrivals_[row];
  if (arrival.evaluation == evaluation_ || arrival.position < begin_) return arrival.time_ns;
  const int64_t time = MakeCopy(tensor, row, home, memory, made);
  const bool is_changed = arrival.time_ns != time;
  arrival_undo_.emplace_back(row, arrival);
  arrivals_[row] = {time, position, evaluation_};
  if (may_converge_ && horizon_ == nullptr && is_changed) NoteChange(tensor, memory);
  return time;
}

int64_t ModuleEvaluator::MakeCopy(int tensor, size_t row, int src, int dst, int64_t ready) {
  // Those that cannot be made too: Accept must forget that they were counted.
  trial_made_.push_back({row, ready});
  const int64_t duration = module_.Transfer(tensor, src, dst);
  if (duration == model::kImpossible) {
    ++trial_unreachable_;
    return ready;
  }
  const auto resources = problem_.route_resources[problem_.Pair(src, dst)];
  const int64_t start = list::ReserveCopy(resources, ready, duration, unit_free_ns_, tables_);
  const int64_t finish = start + duration;
  if (record_ != nullptr) record_->push_back({tensor, src, dst, start, finish});
  trial_segment_ns_ = std::max(trial_segment_ns_, finish);
  trial_makespan_ns_ = std::max(trial_makespan_ns_, finish);
  return finish;
}

void ModuleEvaluator::CopyOutputs() {
  if (module_.host_outputs.empty()) return;
  std::vector<int> waiting = module_.host_outputs;
  list::SortByMade(waiting, [this](int tensor) { return finish_ns_[module_.producer[tensor]]; });
  for (int tensor : waiting) Arrive(tensor, problem_.host, module_.num_tasks);
}

void ModuleEvaluator::Save(Checkpoint& checkpoint) const {
  checkpoint.unit_free_ns = unit_free_ns_;
  checkpoint.load_ns = load_ns_;
  checkpoint.tables = tables_;
  checkpoint.makespan_ns = trial_makespan_ns_;
  checkpoint.num_unreachable = trial_unreachable_;
  checkpoint.num_made = trial_made_.size();
}

void ModuleEvaluator::Restore(const Checkpoint& checkpoint) {
  unit_free_ns_ = checkpoint.unit_free_ns;
  load_ns_ = checkpoint.load_ns;
  tables_ = checkpoint.tables;
  trial_makespan_ns_ = checkpoint.makespan_ns;
  trial_unreachable_ = checkpoint.num_unreachable;
}

bool ModuleEvaluator::HasConverged(int index) const {
  const Checkpoint& kept = checkpoints_[index];
  if (unit_free_ns_ != kept.unit_free_ns) return false;
  for (size_t table = 0; table < tables_.size(); ++table) {
    if (!tables_[table].IsSameFrom(kept.tables[table], suffix_ready_[index])) return false;
  }
  return true;
}

void ModuleEvaluator::NoteChange(int tensor, int memory) {
  for (int reader : module_.readers[tensor]) {
    const int place = arrangement_.device()[reader];
    if (memory < 0 || problem_.device_memory[place] == memory) {
      dirty_until_ = std::max(dirty_until_, arrangement_.position()[reader]);
    }
  }
  if (memory < 0 && !module_.host_outputs.empty() &&
      std::ranges::find(module_.host_outputs, tensor) != module_.host_outputs.end()) {
    dirty_until_ = module_.num_tasks;
  }
}

void ModuleEvaluator::Accept() {
  if (begin_ < module_.num_tasks) {
    // Few trials are accepted: only they pay for saving checkpoints, by replaying once more.
    limit_ns_ = list::kNever;
    Restore(checkpoints_[begin_ / spacing_]);
    Replay(begin_, Mode::kAgain);
  }
  KeepReplay();
}

void ModuleEvaluator::KeepReplay() {
  const int64_t more_unreachable = trial_unreachable_ - num_unreachable_;
  makespan_ns_ = trial_makespan_ns_;
  num_unreachable_ = trial_unreachable_;
  // A Reject after a Try of no change must not take these back.
  finish_undo_.clear();
  arrival_undo_.clear();
  if (begin_ >= module_.num_tasks) return;
  const int first = begin_ / spacing_;
  const size_t kept_count = checkpoints_.size();
  const size_t made_begin = checkpoints_[first].num_made;
  const bool is_to_end = horizon_ != nullptr || end_checkpoint_ == static_cast<int>(kept_count);
  const size_t made_end = is_to_end ? made_.size() : checkpoints_[end_checkpoint_].num_made;
  for (int index = first + 1; index < end_checkpoint_; ++index) {
    std::swap(checkpoints_[index], trial_checkpoints_[index]);
    checkpoints_[index].num_made += made_begin;
  }
  for (int index = first; index < end_checkpoint_; ++index) {
    segment_makespan_[index] = trial_segments_[index];
  }
  const int64_t grown =
      static_cast<int64_t>(trial_made_.size()) - static_cast<int64_t>(made_end - made_begin);
  KeepCopies(made_begin, made_end);
  if (horizon_ != nullptr) return;
  // Where the replay met the kept state again, units had run other tasks for other times.
  std::vector<int64_t>& more_load_ns = load_ns_;
  for (size_t unit = 0; unit < more_load_ns.size() && !is_to_end; ++unit) {
    more_load_ns[unit] -= checkpoints_[end_checkpoint_].load_ns[unit];
  }
  for (size_t index = static_cast<size_t>(end_checkpoint_); index < kept_count; ++index) {
    for (size_t unit = 0; unit < more_load_ns.size(); ++unit) {
      checkpoints_[index].load_ns[unit] += more_load_ns[unit];
    }
    checkpoints_[index].num_made =
        static_cast<size_t>(static_cast<int64_t>(checkpoints_[index].num_made) + grown);
    checkpoints_[index].num_unreachable += more_unreachable;
  }
  KeepSuffixes();
}

/*! \brief Puts the copies of the replay in place of those in [made_begin, made_end). */
void ModuleEvaluator::KeepCopies(size_t made_begin, size_t made_end) {
  // Those that are no longer made are not there any more.
  for (size_t index = made_begin; index < made_end; ++index) {
    Arrival& arrival = arrivals_[made_[index].row];
    if (arrival.evaluation != evaluation_) arrival = Arrival();
  }
  const auto from = made_.begin() + static_cast<std::ptrdiff_t>(made_begin);
  const auto to = made_.begin() + static_cast<std::ptrdiff_t>(made_end);
  made_.insert(made_.erase(from, to), trial_made_.begin(), trial_made_.end());
}

void ModuleEvaluator::KeepSuffixes() {
  const size_t count = checkpoints_.size();
  size_t copy = made_.size();
  int64_t ready = list::kNever;
  for (size_t index = count; index-- > 0;) {
    suffix_makespan_[index] = std::max(suffix_makespan_[index + 1], segment_makespan_[index]);
    for (; copy > checkpoints_[index].num_made; --copy) {
      ready = std::min(ready, made_[copy - 1].ready_ns);
    }
    suffix_ready_[index] = ready;
  }
  int64_t prefix = 0;
  for (size_t index = 0; index < count; ++index) {
    checkpoints_[index].makespan_ns = prefix;
    prefix = std::max(prefix, segment_makespan_[index]);
  }
}

void ModuleEvaluator::Reject() {
  for (size_t index = finish_undo_.size(); index-- > 0;) {
    finish_ns_[finish_undo_[index].first] = finish_undo_[index].second;
  }
  for (size_t index = arrival_undo_.size(); index-- > 0;) {
    arrivals_[arrival_undo_[index].first] = arrival_undo_[index].second;
  }
  finish_undo_.clear();
  arrival_undo_.clear();
}

std::vector<model::ScheduledCopy> ModuleEvaluator::Copies() {
  std::vector<model::ScheduledCopy> copies;
  record_ = &copies;
  Evaluate();
  record_ = nullptr;
  return copies;
}

}  // namespace heteroplace::search
