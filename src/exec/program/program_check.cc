// Synchronisation of a program: waits that exist, teams that are complete, no deadlock.
#include <string>

#include "exec/program/program.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

[[noreturn]] void Fail(const Instruction& at, const std::string& what) {
  throw Error(ErrorKind::kArtifact, "program line " + std::to_string(at.line) + ": " + what);
}

void CheckWaits(Program* program, size_t queue, const Instruction& instruction) {
  for (const Wait& wait : instruction.waits) {
    Queue& other = program->queues[static_cast<size_t>(wait.queue)];
    if (static_cast<size_t>(wait.queue) == queue) {
      Fail(instruction, "queue '" + other.name + "' waits for itself; its order is enough");
    }
    if (static_cast<size_t>(wait.count) > other.instructions.size()) {
      Fail(instruction, "a wait for the first " + std::to_string(wait.count) +
                            " instructions of queue '" + other.name + "', which has " +
                            std::to_string(other.instructions.size()));
    }
    Instruction& awaited = other.instructions[static_cast<size_t>(wait.count - 1)];
    awaited.is_awaited = true;
    const bool is_stream = program->queues[queue].IsAsync() && !instruction.ReadsLoad();
    (is_stream ? awaited.is_awaited_by_stream : awaited.is_awaited_by_host) = true;
    if (program->queues[queue].HasMessages()) awaited.is_awaited_by_message = true;
  }
}

void CheckJoin(Program* program, size_t queue, const Instruction& join) {
  Queue& leader = program->queues[static_cast<size_t>(join.leader_queue)];
  if (static_cast<size_t>(join.leader_queue) == queue) Fail(join, "a queue joins itself");
  if (static_cast<size_t>(join.leader_index) >= leader.instructions.size()) {
    Fail(join, "a join of instruction " + std::to_string(join.leader_index) + " of queue '" +
                   leader.name + "', which has " + std::to_string(leader.instructions.size()));
  }
  Instruction& call = leader.instructions[static_cast<size_t>(join.leader_index)];
  if (!call.LeadsTeam() || call.threads < 2) {
    Fail(join, "a join of line " + std::to_string(call.line) +
                   ", which is no call or group with several threads");
  }
  call.is_awaited = true;
}

/*! \brief Checks that a team of n is its leader and n - 1 joins of different queues; ranks them. */
void FormTeams(Program* program) {
  // Members of every call by queue, as the outer loop goes by queue. [num_queues][instructions]
  struct Member {
    size_t queue;
    Instruction* instruction;
  };
  std::vector<std::vector<std::vector<Member>>> teams(program->queues.size());
  for (size_t q = 0; q < teams.size(); ++q) teams[q].resize(program->queues[q].instructions.size());
  for (size_t q = 0; q < program->queues.size(); ++q) {
    for (size_t i = 0; i < program->queues[q].instructions.size(); ++i) {
      Instruction& at = program->queues[q].instructions[i];
      if (at.LeadsTeam()) teams[q][i].push_back({q, &at});
      if (at.opcode != Opcode::kJoin) continue;
      const size_t leader = static_cast<size_t>(at.leader_queue);
      std::vector<Member>& team = teams[leader][static_cast<size_t>(at.leader_index)];
      if (!team.empty() && team.back().queue == q) {
        Fail(at, "queue '" + program->queues[q].name + "' joins one call twice");
      }
      team.push_back({q, &at});
    }
  }
  for (size_t q = 0; q < teams.size(); ++q) {
    for (size_t i = 0; i < teams[q].size(); ++i) {
      const Instruction& call = program->queues[q].instructions[i];
      if (!call.LeadsTeam()) continue;
      const std::vector<Member>& team = teams[q][i];
      if (team.size() != static_cast<size_t>(call.threads)) {
        Fail(call, "the call has " + std::to_string(call.threads) + " threads and " +
                       std::to_string(team.size() - 1) + " joins; a team of n has n - 1 joins");
      }
      for (size_t rank = 0; rank < team.size(); ++rank) {
        team[rank].instruction->threads = call.threads;
        team[rank].instruction->rank = static_cast<int32_t>(rank);
      }
    }
  }
}

/*!
 * \brief Advances every queue as far as its waits allow, until all are done or none moves.
 *
 * An instruction needs its predecessor in the queue and its waits to have finished, and a join
 * also its leader's call; a leader never needs its joiners. These needs do not depend on timing,
 * so a program that completes here completes in any order of execution. Messages are taken to come
 * (`CheckBundle`). Every queue is looked at
 * again only when a queue it was blocked on has moved: linear in instructions and waits.
 */
void CheckNoDeadlock(const Program& program) {
  const size_t num_queues = program.queues.size();
  std::vector<size_t> done(num_queues, 0);
  std::vector<std::vector<size_t>> blocked(num_queues);  // [num_queues] queues that wait for it
  std::vector<size_t> ready(num_queues);
  for (size_t q = 0; q < num_queues; ++q) ready[q] = num_queues - 1 - q;
  auto blocker = [&](const Instruction& instruction) -> int32_t {
    for (const Wait& wait : instruction.waits) {
      if (done[static_cast<size_t>(wait.queue)] < static_cast<size_t>(wait.count)) {
        return wait.queue;
      }
    }
    if (instruction.opcode == Opcode::kJoin &&
        done[static_cast<size_t>(instruction.leader_queue)] <=
            static_cast<size_t>(instruction.leader_index)) {
      return instruction.leader_queue;
    }
    return -1;
  };
  while (!ready.empty()) {
    size_t q = ready.back();
    ready.pop_back();
    const std::vector<Instruction>& instructions = program.queues[q].instructions;
    bool moved = false;
    while (done[q] < instructions.size()) {
      int32_t other = blocker(instructions[done[q]]);
      if (other >= 0) {
        blocked[static_cast<size_t>(other)].push_back(q);
        break;
      }
      ++done[q];
      moved = true;
    }
    if (!moved) continue;
    ready.insert(ready.end(), blocked[q].begin(), blocked[q].end());
    blocked[q].clear();
  }
  std::string stuck;
  const Instruction* first = nullptr;
  for (size_t q = 0; q < num_queues; ++q) {
    const Queue& queue = program.queues[q];
    if (done[q] == queue.instructions.size()) continue;
    const Instruction& at = queue.instructions[done[q]];
    if (first == nullptr) first = &at;
    stuck += (stuck.empty() ? "" : "; ") + ("queue '" + queue.name + "' at line ") +
             std::to_string(at.line) + " waits for queue '" +
             program.queues[static_cast<size_t>(blocker(at))].name + "'";
  }
  if (first != nullptr) Fail(*first, "the program would deadlock: " + stuck);
}

}  // namespace

void CheckSynchronisation(Program* program) {
  for (size_t q = 0; q < program->queues.size(); ++q) {
    for (const Instruction& instruction : program->queues[q].instructions) {
      CheckWaits(program, q, instruction);
      if (instruction.opcode == Opcode::kJoin) CheckJoin(program, q, instruction);
    }
  }
  FormTeams(program);
  CheckNoDeadlock(*program);
}

}  // namespace heteroplace::exec
