#include "exec/requests/decisions.h"

#include <algorithm>
#include <new>

#include "support/error.h"
#include "support/json_text.h"

namespace heteroplace::exec {

namespace {

constexpr size_t kDecisionWords = static_cast<size_t>(kDecisionBytes) / sizeof(int32_t);

/*! \brief Seats that are looked at together: most cells go to few branches. */
constexpr int64_t kSeatsAtOnce = 16;

const int32_t* IntegersOf(Slot* slot, int32_t tensor) {
  return static_cast<const int32_t*>(slot->tensor(tensor)->data);
}

/*! \brief Sets what is predicted of a router to these branches. */
void Ask(const Router& router, const std::vector<int64_t>& branches, std::vector<uint8_t>* asked) {
  const auto first = asked->begin() + router.first_branch;
  std::fill(first, first + router.num_branches(), uint8_t{0});
  for (int64_t branch : branches) first[branch] = 1;
}

/*! \brief "[1, 2]" of `count` words. */
void AddList(const int32_t* words, int64_t count, std::string* text) {
  *text += '[';
  for (int64_t i = 0; i < count; ++i) {
    if (i != 0) *text += ',';
    *text += std::to_string(words[i]);
  }
  *text += ']';
}

}  // namespace

bool HitWindow::Pays(bool is_hit) noexcept {
  bool& oldest = is_hit_[num_requests_ % kRequests];
  if (num_requests_ >= kRequests && oldest) --num_hits_;
  oldest = is_hit;
  if (is_hit) ++num_hits_;
  ++num_requests_;
  const size_t least = static_cast<size_t>(least_hits) * kRequests;
  return num_requests_ < kRequests || least_hits == 0 || num_hits_ * 1000 > least;
}

Decisions::Decisions(const Program* program)
    : program_(program),
      is_speculated_(program->routers.size()),
      is_of_rows_(program->routers.size()),
      asked_(program->NumRoutedBranches()),
      predicted_(asked_.size()),
      counts_(program->routers.size()),
      windows_(program->routers.size()) {
  const std::vector<Router>& routers = program->routers;
  for (size_t r = 0; r < routers.size(); ++r) {
    if (routers[r].decision != static_cast<int32_t>(r)) continue;
    const auto is_whole = [&](const Router& line) {
      return line.decision == routers[r].decision && line.seats >= 0;
    };
    const auto line = std::ranges::find_if(routers, is_whole);
    routers_.push_back(line == routers.end() ? &routers[r] : &*line);
  }
  for (const Router& router : routers) {
    for (const Wait& wait : router.there) {
      const Queue& queue = program->queues[static_cast<size_t>(wait.queue)];
      const Instruction& at = queue.instructions[static_cast<size_t>(wait.count - 1)];
      if (at.opcode != Opcode::kBranchCall || at.work->calls[0].capacity == 0) continue;
      is_of_rows_[static_cast<size_t>(router.decision)] = true;
    }
  }
  for (const Queue& queue : program->queues) {
    for (const Instruction& at : queue.instructions) {
      if (at.work == nullptr || at.work->when != When::kPredicted) continue;
      const Router& router = routers[static_cast<size_t>(at.work->router)];
      is_speculated_[static_cast<size_t>(router.decision)] = true;
      asked_[static_cast<size_t>(router.first_branch + at.work->branch)] = 1;
    }
  }
  for (const RouterPrediction& each : program->predictions) {
    const Router& router = routers[static_cast<size_t>(each.router)];
    Ask(router, each.branches, &asked_);
    windows_[static_cast<size_t>(router.decision)].least_hits = each.least_hits;
  }
  Join();
}

const Router& Decisions::FindRouter(const std::string& name) const {
  std::string names;
  for (const Router* router : routers_) {
    if (router->name == name) return *router;
    names += (names.empty() ? "'" : ", '") + router->name + "'";
  }
  throw Error(ErrorKind::kExecution, "the program has no router '" + name + "'; it has " + names);
}

void Decisions::Predict(const std::vector<PredictedBranches>& all) {
  std::vector<uint8_t> asked = asked_;
  for (const PredictedBranches& each : all) {
    const Router& router = FindRouter(each.router);
    for (int64_t branch : each.branches) {
      if (branch >= 0 && branch < router.num_branches()) continue;
      throw Error(ErrorKind::kExecution, "router '" + each.router + "' has branches 0 to " +
                                             std::to_string(router.num_branches() - 1) +
                                             ", and branch " + std::to_string(branch) +
                                             " is predicted");
    }
    Ask(router, each.branches, &asked);
  }
  for (const PredictedBranches& each : all) {
    windows_[static_cast<size_t>(FindRouter(each.router).decision)].Clear();
  }
  asked_ = std::move(asked);
  Join();
}

/*! \brief What is nested is predicted where all around it is that can be. */
void Decisions::Join() {
  predicted_ = asked_;
  const std::vector<Router>& routers = program_->routers;
  for (const Router* router : routers_) {
    bool holds = true;
    const Router* inner = &routers[static_cast<size_t>(router->decision)];
    while (inner->outer >= 0) {
      const int32_t branch = inner->outer_branch;
      inner = &routers[static_cast<size_t>(routers[static_cast<size_t>(inner->outer)].decision)];
      holds = holds && (!is_speculated_[static_cast<size_t>(inner->decision)] ||
                        asked_[static_cast<size_t>(inner->first_branch + branch)] != 0);
    }
    const auto first = predicted_.begin() + router->first_branch;
    if (!holds) std::fill(first, first + router->num_branches(), uint8_t{0});
  }
  predicts_ = std::ranges::find(predicted_, 1) != predicted_.end();
}

std::vector<std::pair<std::string, PredictionCounts>> Decisions::counts() const {
  std::vector<std::pair<std::string, PredictionCounts>> counts;
  for (const Router* router : routers_) {
    auto& [_, count] =
        counts.emplace_back(router->name, counts_[static_cast<size_t>(router->decision)]);
    const auto first = predicted_.begin() + router->first_branch;
    count.is_on =
        std::find(first, first + router->num_branches(), 1) != first + router->num_branches();
  }
  return counts;
}

void Decisions::Start(DecisionLevel level) {
  if (is_recording_) {
    throw Error(ErrorKind::kExecution,
                "the executor records route decisions already; end that recording first");
  }
  for (const Router* router : routers_) {
    if (level == DecisionLevel::kLoads || router->seats >= 0 || router->num_cells == 1) continue;
    throw Error(ErrorKind::kExecution, "where the cells of router '" + router->name +
                                           "' go is not in host memory; record with level 1");
  }
  try {
    words_.reserve(kDecisionWords);
    spare_.reserve(kDecisionWords);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::kExecution, "a recording of route decisions takes " +
                                           std::to_string(2 * kDecisionBytes) +
                                           " bytes, and memory is short");
  }
  words_.clear();
  is_recording_ = true;
  level_ = level;
  num_requests_ = num_dropped_ = 0;
}

Decisions::Words Decisions::Take(bool ends) {
  if (!is_recording_) {
    throw Error(ErrorKind::kExecution, "no route decisions are recorded: start a recording first");
  }
  Words taken{std::move(words_), level_, num_dropped_};
  num_dropped_ = 0;
  words_ = std::move(spare_);
  words_.clear();
  is_recording_ = !ends;
  return taken;
}

void Decisions::GiveBack(Words* words) {
  if (!is_recording_) {
    words_ = spare_ = std::vector<int32_t>();
    return;
  }
  words->words.clear();
  // Two who take at once leave no memory to be written into.
  if (words_.capacity() == 0) {
    words_.swap(words->words);
  } else if (spare_.capacity() == 0) {
    spare_.swap(words->words);
  }
}

void Decisions::Begin(Slot* slot) const noexcept {
  std::ranges::copy(predicted_, slot->predicted.begin());
}

void Decisions::End(Slot* slot) noexcept {
  const size_t before = words_.size();
  bool has_room = true;
  for (const Router* router : routers_) {
    const bool has_turn = HasTurn(slot, *router);
    if (predicts_ && has_turn) Count(slot, *router);
    if (is_recording_ && has_turn) has_room = has_room && Record(slot, *router);
  }
  if (!is_recording_) return;
  ++num_requests_;
  if (has_room) return;
  words_.resize(before);
  ++num_dropped_;
}

/*! \brief Whether the branch around a router was active; without one it always has its turn. */
bool Decisions::HasTurn(Slot* slot, const Router& router) const {
  const Router& first = program_->routers[static_cast<size_t>(router.decision)];
  if (first.outer < 0) return true;
  const Router& outer = program_->routers[static_cast<size_t>(first.outer)];
  return IntegersOf(slot, outer.loads)[first.outer_branch] != 0;
}

void Decisions::Count(Slot* slot, const Router& router) {
  const uint8_t* predicted = slot->predicted.data() + router.first_branch;
  const int32_t* loads = IntegersOf(slot, router.loads);
  bool predicts = false, is_missed = false, is_wider = false;
  for (int64_t b = 0; b < router.num_branches(); ++b) {
    predicts = predicts || predicted[b] != 0;
    is_missed = is_missed || (loads[b] != 0 && predicted[b] == 0);
    is_wider = is_wider || (loads[b] == 0 && predicted[b] != 0);
  }
  if (!predicts) return;
  PredictionCounts& counts = counts_[static_cast<size_t>(router.decision)];
  ++counts.num_requests;
  if (!is_missed) ++(is_wider ? counts.num_wider : counts.num_exact);
  if (windows_[static_cast<size_t>(router.decision)].Pays(!is_missed)) return;
  Ask(router, {}, &asked_);
  Join();
}

bool Decisions::Add(int32_t word) {
  if (words_.size() == words_.capacity()) return false;
  words_.push_back(word);
  return true;
}

/*! \brief Keeps request, router, loads, and of each cell how many branches and which; false where
 * there is no room. */
bool Decisions::Record(Slot* slot, const Router& router) {
  bool has_room = Add(static_cast<int32_t>(num_requests_)) &&
                  Add(static_cast<int32_t>(num_requests_ >> 32)) && Add(router.decision);
  const int32_t* loads = IntegersOf(slot, router.loads);
  for (int64_t b = 0; has_room && b < router.num_branches(); ++b) {
    has_room = Add(loads[b]);
  }
  return has_room && (level_ == DecisionLevel::kLoads || RecordCells(slot, router));
}

bool Decisions::RecordCells(Slot* slot, const Router& router) {
  // The one cell of a router without seats is where loads are.
  const int32_t* seats = IntegersOf(slot, router.seats >= 0 ? router.seats : router.loads);
  const int64_t num_branches = router.num_branches();
  const int64_t num_decided = NumDecided(slot, router);
  for (int64_t cell = 0; cell < router.num_cells; ++cell, seats += num_branches) {
    const size_t count_at = words_.size();
    if (!Add(0)) return false;
    for (int64_t begin = 0; cell < num_decided && begin < num_branches; begin += kSeatsAtOnce) {
      const int64_t end = std::min(begin + kSeatsAtOnce, num_branches);
      int32_t any = 0;
      for (int64_t b = begin; b < end; ++b) any |= seats[b];
      for (int64_t b = begin; any != 0 && b < end; ++b) {
        if (seats[b] == 0) continue;
        if (!Add(static_cast<int32_t>(b))) return false;
        ++words_[count_at];
      }
    }
  }
  return true;
}

/*! \brief Cells of a router in its turn: of rows those with a cell, as others are padding. */
int64_t Decisions::NumDecided(Slot* slot, const Router& router) const {
  const std::vector<Router>& routers = program_->routers;
  const Router& first = routers[static_cast<size_t>(router.decision)];
  if (!is_of_rows_[static_cast<size_t>(router.decision)]) return router.num_cells;
  const Router& outer = routers[static_cast<size_t>(first.outer)];
  // A row of what is around may hold several cells.
  const int64_t num_rows = IntegersOf(slot, outer.loads)[first.outer_branch];
  const int64_t cells_of_row = std::max<int64_t>(1, router.num_cells / outer.num_cells);
  return std::min(router.num_cells, num_rows * cells_of_row);
}

std::string Decisions::LinesOf(const Program& program, const Words& words) {
  std::string text;
  const int32_t* at = words.words.data();
  const int32_t* const end = at + words.words.size();
  while (at != end) {
    const int64_t request = static_cast<int64_t>(at[1]) << 32 | static_cast<uint32_t>(at[0]);
    const Router& router = program.routers[static_cast<size_t>(at[2])];
    text += "{\"run\":" + std::to_string(request) + ",\"router\":" + JsonText(router.name);
    at += 3;
    text += ",\"loads\":";
    AddList(at, router.num_branches(), &text);
    text += ",\"active\":[";
    bool is_first = true;
    for (int64_t b = 0; b < router.num_branches(); ++b) {
      if (at[b] == 0) continue;
      text += (is_first ? "" : ",") + std::to_string(b);
      is_first = false;
    }
    text += ']';
    at += router.num_branches();
    if (words.level == DecisionLevel::kCells) text += ",\"cells\":[";
    for (int64_t cell = 0; words.level == DecisionLevel::kCells && cell < router.num_cells;
         ++cell) {
      if (cell != 0) text += ',';
      const int32_t count = *at++;
      if (count == 1) {
        text += std::to_string(*at);
      } else if (count == 0) {
        text += "-1";
      } else {
        AddList(at, count, &text);
      }
      at += count;
    }
    text += words.level == DecisionLevel::kCells ? "]}\n" : "}\n";
  }
  return text;
}

}  // namespace heteroplace::exec
