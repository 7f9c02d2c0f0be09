#include "search/assemble.h"

#include "search/arrangement.h"
#include "search/module_evaluator.h"

namespace heteroplace {

namespace {

/*! \brief Global ids of a piece's tensors, numbered as Decompose does. */
std::vector<int> TensorsOf(const Problem& problem, const Chain& chain, int index) {
  const Piece& piece = chain.classes[chain.piece_class[index]];
  std::vector<int> tensors(piece.num_tensors);
  for (int task = 0; task < piece.num_tasks; ++task) {
    const int global = chain.first_task[index] + task;
    for (size_t read = 0; read < piece.reads[task].size(); ++read) {
      tensors[piece.reads[task][read]] = problem.task_reads[global][read];
    }
    for (size_t made = 0; made < piece.makes[task].size(); ++made) {
      tensors[piece.makes[task][made]] = problem.task_makes[global][made];
    }
  }
  return tensors;
}

/*! \brief Adds a piece that is entered at `now`; returns its time. */
int64_t AppendPiece(const Problem& problem, const Chain& chain, int index, const Layout& layout,
                    int entry, int64_t now, Schedule& schedule) {
  const int piece_class = chain.piece_class[index];
  const Piece& piece = chain.classes[piece_class];
  Arrangement arrangement(problem, piece);
  arrangement.Load(layout.device, layout.order, entry);
  PieceEvaluator evaluator(problem, piece, arrangement);
  const std::vector<ScheduledCopy> copies = evaluator.Copies();
  const int first = chain.first_task[index];
  for (int task = 0; task < piece.num_tasks; ++task) {
    const int device = layout.device[task];
    schedule.device[first + task] = device;
    schedule.start_ns[first + task] = now + evaluator.finish_ns(task) - piece.Run(task, device);
  }
  const std::vector<int> tensors = TensorsOf(problem, chain, index);
  for (const ScheduledCopy& copy : copies) {
    schedule.copies.push_back(
        {tensors[copy.tensor], copy.src, copy.dst, now + copy.start_ns, now + copy.finish_ns});
  }
  return evaluator.makespan_ns();
}

}  // namespace

Schedule AssembleSchedule(const Problem& problem, const Chain& chain, const Patterns& patterns,
                          const Selection& selection) {
  Schedule schedule;
  schedule.device.resize(problem.num_tasks);
  schedule.start_ns.resize(problem.num_tasks);
  int entry = 0;
  int64_t now = 0;
  for (int index = 0; index < chain.num_pieces(); ++index) {
    const Pattern& pattern = patterns.of(chain.piece_class[index])[selection.choice[index]];
    now += AppendPiece(problem, chain, index, pattern.layout, entry, now, schedule);
    entry = pattern.exit_memory;
  }
  schedule.makespan_ns = now;
  schedule.violation = selection.violation;
  return schedule;
}

}  // namespace heteroplace
