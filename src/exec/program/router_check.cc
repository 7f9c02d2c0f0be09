// Routers of a program as a whole: who makes their loads, who reads them, and when.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exec/program/issue_order.h"
#include "exec/program/program.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

[[noreturn]] void FailLine(int32_t line, const std::string& what) {
  throw Error(ErrorKind::kArtifact, "program line " + std::to_string(line) + ": " + what);
}

/*! \brief Whether an instruction may write a tensor. */
bool MayWrite(const Instruction& at, int32_t tensor) {
  if (at.IsCopy()) return at.tensors[1] == tensor;
  return at.opcode != Opcode::kSend && std::ranges::find(at.tensors, tensor) != at.tensors.end();
}

/*!
 * \brief What each queue knows to be done: of every queue so many instructions (vector clocks), as
 * instructions are added in an order that fits all waits.
 *
 * What the thread of an asynchronous queue knows is less than what its device does in order: only
 * that for which the thread has waited itself.
 */
class KnownCounts {
 public:
  explicit KnownCounts(const Program& program)
      : program_(program),
        done_(program.queues.size(), Clock(program.queues.size())),
        seen_(done_),
        when_done_(program.queues.size()) {
    for (size_t q = 0; q < program.queues.size(); ++q) {
      when_done_[q].resize(program.queues[q].instructions.size());
    }
  }

  /*! \brief The next instruction: its waits are over. */
  void Add(const InstructionId& id) {
    const auto q = static_cast<size_t>(id.queue);
    const Instruction& at = program_.queues[q].instructions[static_cast<size_t>(id.index)];
    for (const Wait& wait : at.waits) {
      const Clock& other = ClockOf(wait.queue, wait.count - 1);
      Raise(&done_[q], other);
      if (at.ReadsLoad()) Raise(&seen_[q], other);
    }
    if (at.opcode == Opcode::kJoin) Raise(&done_[q], ClockOf(at.leader_queue, at.leader_index));
  }

  /*! \brief Whether the thread that comes to the added instruction knows of a count. */
  bool Knows(const InstructionId& id, const Wait& count) const {
    const auto q = static_cast<size_t>(id.queue);
    const Clock& clock = program_.queues[q].IsAsync() ? seen_[q] : done_[q];
    return clock[static_cast<size_t>(count.queue)] >= count.count;
  }

  /*! \brief The added instruction is done. */
  void Finish(const InstructionId& id) {
    const auto q = static_cast<size_t>(id.queue);
    const auto i = static_cast<size_t>(id.index);
    done_[q][q] = id.index + 1;
    if (program_.queues[q].instructions[i].is_awaited) when_done_[q][i] = done_[q];
  }

 private:
  using Clock = std::vector<int32_t>;  // [num_queues]

  const Clock& ClockOf(int32_t queue, int32_t index) const {
    return when_done_[static_cast<size_t>(queue)][static_cast<size_t>(index)];
  }

  static void Raise(Clock* clock, const Clock& other) {
    for (size_t q = 0; q < clock->size(); ++q) (*clock)[q] = std::max((*clock)[q], other[q]);
  }

  const Program& program_;
  std::vector<Clock> done_;  // [num_queues]
  std::vector<Clock> seen_;  // [num_queues]
  /*! \brief Of what somebody awaits; else empty. [num_queues][instructions] */
  std::vector<std::vector<Clock>> when_done_;
};

class RouterChecker {
 public:
  explicit RouterChecker(Program* program) : program_(*program), routers_(program->routers) {}

  void Check() {
    JoinNames();
    for (Router& router : routers_) CheckThere(&router);
    JoinOuters();
    for (const Router& router : routers_) CheckBytes(router);
    CheckGuards();
    CheckReads();
  }

 private:
  void JoinNames() {
    std::map<std::string, int32_t> decisions;
    int32_t num_branches = 0;
    for (size_t r = 0; r < routers_.size(); ++r) {
      Router& router = routers_[r];
      const auto [known, is_new] = decisions.emplace(router.name, static_cast<int32_t>(r));
      router.decision = known->second;
      if (is_new) {
        router.first_branch = num_branches;
        num_branches += static_cast<int32_t>(router.num_branches());
        continue;
      }
      const Router& first = DecisionOf(router);
      router.first_branch = first.first_branch;
      if (router.overflow == first.overflow && router.num_cells == first.num_cells &&
          router.rows == first.rows && router.quantum == first.quantum &&
          router.capacities == first.capacities) {
        continue;
      }
      FailLine(router.line, "router '" + router.name + "' is not as in line " +
                                std::to_string(first.line) +
                                "; lines of one name differ in tensors and waits alone");
    }
  }

  Router& DecisionOf(const Router& router) {
    return routers_[static_cast<size_t>(router.decision)];
  }

  /*! \brief Loads and offsets are written by what is waited for, once and always. */
  void CheckThere(Router* router) {
    for (const Wait& wait : router->there) {
      const Queue& queue = program_.queues[static_cast<size_t>(wait.queue)];
      if (static_cast<size_t>(wait.count) <= queue.instructions.size()) continue;
      FailLine(router->line, "router '" + router->name + "' is there after " +
                                 std::to_string(wait.count) + " instructions of queue '" +
                                 queue.name + "', which has " +
                                 std::to_string(queue.instructions.size()));
    }
    for (const auto& [what, tensor] :
         {std::pair("loads", router->loads), std::pair("offsets", router->offsets)}) {
      if (tensor >= 0) CheckWriter(router, what, tensor);
    }
  }

  void CheckWriter(Router* router, const std::string& what, int32_t tensor) {
    const auto is_it = [&](const Port& port) { return port.tensor == tensor; };
    const std::vector<Port>& inputs = program_.inputs;
    if (router->there.empty()) {
      if (std::ranges::any_of(inputs, is_it)) return;
      FailLine(router->line, what + " of router '" + router->name + "' are tensor " +
                                 std::to_string(tensor) +
                                 ", no input, and it does not say when they are there");
    }
    bool is_written = false;
    for (const Wait& wait : router->there) {
      const Queue& queue = program_.queues[static_cast<size_t>(wait.queue)];
      const Instruction& at = queue.instructions[static_cast<size_t>(wait.count - 1)];
      if (!MayWrite(at, tensor)) continue;
      is_written = true;
      if (at.work != nullptr) CheckOuter(router, at);
    }
    if (is_written) return;
    FailLine(router->line,
             what + " of router '" + router->name + "' are tensor " + std::to_string(tensor) +
                 ", which none of the instructions writes after which they are there");
  }

  /*! \brief Loads that are made in a branch: by its only round, and not of a prediction alone. */
  void CheckOuter(Router* router, const Instruction& at) {
    const BranchWork& work = *at.work;
    const Router& outer = routers_[static_cast<size_t>(work.router)];
    const std::string where = "router '" + router->name + "' is there after line " +
                              std::to_string(at.line) + " of " + outer.Describe(work.branch);
    if (work.when == When::kPredicted) {
      FailLine(router->line,
               where + ", which is predicted: its loads would not be 0 if that is wrong");
    }
    const bool has_rows = at.opcode == Opcode::kBranchCall && work.calls[0].capacity != 0;
    if (has_rows && outer.HasRounds(work.branch)) {
      FailLine(router->line,
               where +
                   ", which may be done in rounds, each with a decision of its own; it needs a "
                   "capacity of " +
                   std::to_string(outer.num_cells));
    }
    const bool is_same = router->outer < 0 || (DecisionOf(outer).name == OuterNameOf(*router) &&
                                               router->outer_branch == work.branch);
    if (!is_same) FailLine(router->line, where + ", and another part of it in another branch");
    router->outer = work.router;
    router->outer_branch = work.branch;
  }

  const std::string& OuterNameOf(const Router& router) const {
    return routers_[static_cast<size_t>(router.outer)].name;
  }

  /*! \brief Lines of one name are in one branch, and no branch is around itself. */
  void JoinOuters() {
    for (const Router& router : routers_) {
      Router& first = DecisionOf(router);
      if (router.outer < 0 || &router == &first) continue;
      if (first.outer < 0) {
        first.outer = router.outer;
        first.outer_branch = router.outer_branch;
      } else if (OuterNameOf(first) != OuterNameOf(router) ||
                 first.outer_branch != router.outer_branch) {
        FailLine(router.line, "router '" + router.name + "' is in another branch than in line " +
                                  std::to_string(first.line));
      }
    }
    for (const Router& router : routers_) {
      const Router* around = &router;
      for (size_t depth = 0; around->outer >= 0; ++depth) {
        around = &DecisionOf(routers_[static_cast<size_t>(around->outer)]);
        if (depth < routers_.size()) continue;
        FailLine(router.line, "router '" + router.name + "' is in a branch that is around itself");
      }
    }
  }

  /*! \brief Whether an instruction that makes the decision writes a tensor. */
  bool IsWrittenThere(const Router& router, int32_t tensor) const {
    return std::ranges::any_of(router.there, [&](const Wait& wait) {
      const Queue& queue = program_.queues[static_cast<size_t>(wait.queue)];
      return MayWrite(queue.instructions[static_cast<size_t>(wait.count - 1)], tensor);
    });
  }

  /*! \brief Decisions are read until the end of a request: nothing else may be in their bytes. */
  void CheckBytes(const Router& router) const {
    for (int32_t id : {router.loads, router.offsets, router.seats}) {
      if (id < 0) continue;
      const Tensor& own = program_.tensors[static_cast<size_t>(id)];
      for (size_t t = 0; t < program_.tensors.size() && own.storage == Storage::kArena; ++t) {
        const Tensor& other = program_.tensors[t];
        if (t == static_cast<size_t>(id) || other.storage != Storage::kArena ||
            other.space != own.space || other.bytes == 0) {
          continue;
        }
        // The same at another capacity of the branch around it.
        if (other.place == own.place && IsWrittenThere(router, static_cast<int32_t>(t))) continue;
        if (own.place >= other.place + other.bytes || other.place >= own.place + own.bytes) {
          continue;
        }
        FailLine(router.line, "tensor " + std::to_string(id) + " of router '" + router.name +
                                  "' shares bytes with tensor " + std::to_string(t) +
                                  "; decisions are kept to the end of a request");
      }
    }
  }

  /*! \brief What a wrong prediction has left out is done, and what is done was left out. */
  void CheckGuards() {
    if (program_.num_hosts > 1) return;  // the other one may be on another host
    std::map<std::pair<int32_t, int32_t>, const Instruction*> predicted, missed;
    for (const Queue& queue : program_.queues) {
      for (const Instruction& at : queue.instructions) {
        if (at.work == nullptr || at.work->when == When::kActive) continue;
        const Router& router = routers_[static_cast<size_t>(at.work->router)];
        (at.work->when == When::kMissed ? missed : predicted)
            .emplace(std::pair(router.decision, at.work->branch), &at);
      }
    }
    const auto expect = [&](const auto& each, const auto& others, const char* word) {
      for (const auto& [key, at] : each) {
        if (others.count(key) != 0) continue;
        FailLine(at->line, std::string("nothing is ") + word + " of " +
                               routers_[static_cast<size_t>(key.first)].Describe(key.second));
      }
    };
    expect(predicted, missed, "done where a prediction is wrong, \"missed\",");
    expect(missed, predicted, "predicted");
  }

  /*! \brief Whoever reads a load comes after it was written. */
  void CheckReads() const {
    KnownCounts known(program_);
    for (const InstructionId& id : IssueOrder(program_)) {
      known.Add(id);
      const Queue& queue = program_.queues[static_cast<size_t>(id.queue)];
      const Instruction& at = queue.instructions[static_cast<size_t>(id.index)];
      if (at.ReadsLoad() && at.work != nullptr) {
        const Router& router = routers_[static_cast<size_t>(at.work->router)];
        for (const Wait& wait : router.there) {
          if (known.Knows(id, wait)) continue;
          FailLine(at.line,
                   "queue '" + queue.name + "' reads the load of " +
                       router.Describe(at.work->branch) + ", and has not waited for queue '" +
                       program_.queues[static_cast<size_t>(wait.queue)].name + "', which " +
                       "writes it with its first " + std::to_string(wait.count) + " instructions");
        }
      }
      known.Finish(id);
    }
  }

  Program& program_;
  std::vector<Router>& routers_;
};

}  // namespace

size_t Program::NumRoutedBranches() const {
  size_t count = 0;
  for (size_t r = 0; r < routers.size(); ++r) {
    if (routers[r].decision == static_cast<int32_t>(r)) count += routers[r].capacities.size();
  }
  return count;
}

void CheckRouters(Program* program) {
  if (!program->routers.empty()) RouterChecker(program).Check();
}

}  // namespace heteroplace::exec
