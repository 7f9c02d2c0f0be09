// PieceEvaluator and Arrangement: what changes keep equals what is made anew.
#include <algorithm>
#include <set>
#include <tuple>

#include "check.h"
#include "decompose/module.h"
#include "random_problem.h"
#include "search/arrangement.h"
#include "search/branches.h"
#include "search/module_evaluator.h"
#include "search/moves.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

/*! \brief How often a replay ended before the end of the order, and with changed times before. */
int64_t num_converged = 0, num_converged_with_changes = 0;
/*! \brief Tries that a limit cut short, and those that kept it. */
int64_t num_late = 0, num_in_time = 0;

/*! \brief Memory by the static rule and load, by looking at all tasks and tensors. */
void CheckSums(const Problem& problem, const Piece& piece, const Arrangement& arrangement) {
  std::vector<int64_t> used(piece.num_memories, 0), load(problem.num_units, 0);
  std::vector<int64_t> workspace(piece.num_devices, 0);
  std::set<std::pair<int, int>> places;  // (tensor, memory)
  for (int task = 0; task < piece.num_tasks; ++task) {
    const int device = arrangement.device()[task];
    const int memory = problem.device_memory[device];
    used[memory] += piece.weight_bytes[task];
    workspace[device] = std::max(workspace[device], piece.workspace_bytes[task]);
    for (int unit : problem.device_units[device]) load[unit] += piece.Run(task, device);
    for (int tensor : piece.makes[task]) places.emplace(tensor, memory);
    for (int tensor : piece.reads[task]) {
      const int source =
          piece.source[tensor] == kEntry ? arrangement.entry() : piece.source[tensor];
      // What no task of the piece makes is charged elsewhere where it is.
      if (piece.producer[tensor] < 0 && (source == kEverywhere || source == memory)) continue;
      places.emplace(tensor, memory);
    }
  }
  for (const auto& [tensor, memory] : places) {
    if (memory == problem.host && piece.is_free_at_host[tensor] != 0) continue;
    used[memory] += piece.tensor_bytes[tensor];
  }
  for (int device = 0; device < problem.num_devices; ++device) {
    used[problem.device_memory[device]] += workspace[device];
  }
  CHECK_EQ(arrangement.used(), used);
  CHECK_EQ(arrangement.load_ns(), load);
}

void CheckOrder(const Piece& piece, const Arrangement& arrangement) {
  for (int task = 0; task < piece.num_tasks; ++task) {
    CHECK_EQ(arrangement.order()[arrangement.position()[task]], task);
    for (int after : piece.successors[task]) {
      CHECK(arrangement.position()[task] < arrangement.position()[after]);
    }
    for (int other :
         piece.group[task] < 0 ? std::span<const int>() : piece.group_tasks[piece.group[task]]) {
      CHECK_EQ(arrangement.device()[task], arrangement.device()[other]);
    }
  }
}

/*! \brief The range of a task is as far as its neighbours in the graph allow. */
void CheckRange(const Piece& piece, const Arrangement& arrangement, int task) {
  const auto [low, high] = arrangement.Range(task);
  CHECK(low <= arrangement.position()[task] && arrangement.position()[task] <= high);
  const auto blocks = [&](int position, const Csr& neighbours) {
    const auto row = neighbours[task];
    return std::find(row.begin(), row.end(), arrangement.order()[position]) != row.end();
  };
  CHECK(low == 0 || blocks(low - 1, piece.predecessors));
  CHECK(high == piece.num_tasks - 1 || blocks(high + 1, piece.successors));
}

/*! \brief Random single changes, as tests choose them: near in the order, to have small effects. */
void ChangeALittle(const Piece& piece, Arrangement& arrangement, Random& random) {
  for (int changes = 1 + random.Below(2); changes > 0; --changes) {
    const int task = random.Below(piece.num_tasks);
    if (random.Below(3) == 0) {
      const auto allowed = piece.allowed[task];
      const int choice = random.Below(static_cast<int>(allowed.size()));
      arrangement.SetDevice(task, allowed[static_cast<size_t>(choice)]);
      continue;
    }
    const auto [low, high] = arrangement.Range(task);
    const int from = arrangement.position()[task];
    const int to = std::clamp(from + random.Below(9) - 4, low, high);
    if (to != from) arrangement.Rotate(from, to);
  }
}

auto CopyKey(const ScheduledCopy& copy) {
  return std::tuple(copy.tensor, copy.src, copy.dst, copy.start_ns, copy.finish_ns);
}

/*! \brief The kept result equals that of a new evaluator; returns the latter's makespan. */
void CheckKept(const Problem& problem, const Piece& piece, const Arrangement& arrangement,
               const PieceEvaluator& evaluator) {
  Arrangement again(problem, piece);
  again.Load(arrangement.device(), arrangement.order(), arrangement.entry());
  PieceEvaluator fresh(problem, piece, again);
  CHECK_EQ(fresh.Evaluate(), evaluator.makespan_ns());
  CHECK_EQ(fresh.num_unreachable(), evaluator.num_unreachable());
  for (int task = 0; task < piece.num_tasks; ++task) {
    CHECK_EQ(evaluator.finish_ns(task), fresh.finish_ns(task));
  }
  CHECK_EQ(again.used(), arrangement.used());
  CHECK_EQ(again.load_ns(), arrangement.load_ns());
}

int64_t TrueMakespan(const Problem& problem, const Piece& piece, const Arrangement& arrangement) {
  Arrangement again(problem, piece);
  again.Load(arrangement.device(), arrangement.order(), arrangement.entry());
  return PieceEvaluator(problem, piece, again).Evaluate();
}

std::vector<int64_t> Finishes(const Piece& piece, const PieceEvaluator& evaluator) {
  std::vector<int64_t> finishes;
  for (int task = 0; task < piece.num_tasks; ++task) finishes.push_back(evaluator.finish_ns(task));
  return finishes;
}

/*! \brief Tries one change under a limit around the truth, and keeps it or not. */
void TryOne(const Problem& problem, const Piece& piece, Arrangement& arrangement,
            PieceEvaluator& evaluator, Random& random) {
  const Arrangement before = arrangement;
  const std::vector<int64_t> finishes = Finishes(piece, evaluator);
  const int64_t truth = TrueMakespan(problem, piece, arrangement);
  const int64_t limit = random.Below(2) == 0 ? kNever : truth + random.Below(7) - 3;
  const int64_t steps = evaluator.num_steps();
  const int64_t result = evaluator.Try(limit);
  CHECK_EQ(result, truth <= limit ? truth : kNever);
  if (limit != kNever) ++(result == kNever ? num_late : num_in_time);
  const int rest = piece.num_tasks - arrangement.first_changed();
  // Fewer tasks were run than there are behind the change: it met the state that was kept.
  if (result != kNever && evaluator.num_steps() - steps < rest) {
    ++num_converged;
    if (Finishes(piece, evaluator) != finishes) ++num_converged_with_changes;
  }
  if (result == kNever || random.Below(3) == 0) {
    evaluator.Reject();
    CHECK_EQ(Finishes(piece, evaluator), finishes);
    return;
  }
  evaluator.Accept();
  CheckKept(problem, piece, arrangement, evaluator);
  arrangement.Keep();
}

/*! \brief A walk over a piece; every step is checked against a new evaluation. */
void Walk(const Problem& problem, const Chain& chain, int index, int steps, Random& random) {
  const Piece& piece = chain.classes[chain.piece_class[index]];
  const Branches branches = FindBranches(piece);
  const PieceStart start = RandomStart(problem, chain, index, random);
  Arrangement arrangement(problem, piece);
  arrangement.Load(start.device, start.order, start.entry);
  PieceEvaluator evaluator(problem, piece, arrangement);
  evaluator.Evaluate();
  Moves moves(problem, piece, branches, arrangement, random);
  for (int step = 0; step < steps; ++step) {
    const std::vector<int> device = arrangement.device(), order = arrangement.order();
    if (random.Below(2) == 0) {
      moves.Propose();
    } else {
      ChangeALittle(piece, arrangement, random);
    }
    CheckOrder(piece, arrangement);
    CheckSums(problem, piece, arrangement);
    CheckRange(piece, arrangement, random.Below(piece.num_tasks));
    TryOne(problem, piece, arrangement, evaluator, random);
    if (!arrangement.is_changed()) continue;
    arrangement.Undo();
    CHECK(arrangement.device() == device && arrangement.order() == order);
    CheckOrder(piece, arrangement);
    CheckSums(problem, piece, arrangement);
  }
  CheckKept(problem, piece, arrangement, evaluator);
  Arrangement again(problem, piece);
  again.Load(arrangement.device(), arrangement.order(), arrangement.entry());
  PieceEvaluator fresh(problem, piece, again);
  const auto left = evaluator.Copies(), right = fresh.Copies();
  CHECK(std::equal(left.begin(), left.end(), right.begin(), right.end(),
                   [](const auto& a, const auto& b) { return CopyKey(a) == CopyKey(b); }));
}

void WalkOverSmallProblem(Random& random) {
  Shape shape;
  shape.is_chain = random.Below(2) == 0;
  shape.max_tasks = 40;
  shape.may_lack_routes = random.Below(4) == 0;
  const Problem problem = MakeProblem(shape, random);
  const Chain chain = Decompose(problem);
  Walk(problem, chain, random.Below(chain.num_pieces()), 20, random);
}

void WalkOverLargePiece(Random& random) {
  Shape shape;
  shape.min_tasks = 260;
  shape.max_tasks = 500;
  shape.reach = 4 + random.Below(30);
  shape.max_run_ns = random.Below(2) == 0 ? 2 : 9;
  shape.output_percent = random.Below(2) == 0 ? 1 : 50;
  const Problem problem = MakeProblem(shape, random);
  const Chain chain = Decompose(problem);
  Walk(problem, chain, LargestPiece(chain), 40, random);
}

}  // namespace

int main() {
  ForSeeds("small pieces", 1500, WalkOverSmallProblem);
  ForSeeds("large pieces", 200, WalkOverLargePiece);
  std::printf("converged %ld, with changed times %ld; late %ld, in time %ld\n", long{num_converged},
              long{num_converged_with_changes}, long{num_late}, long{num_in_time});
  current_case = "all cases together";
  CHECK(num_converged > 200 && num_converged_with_changes > 50);
  CHECK(num_late > 1000 && num_in_time > 1000);
  return 0;
}
