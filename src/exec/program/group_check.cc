// Groups of guarded calls, whose branches are done side by side.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "exec/program/program.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief What a call is that stands in a group, or "" where it is as it has to be. */
std::string FaultOf(const Instruction& at, const Instruction& first) {
  if (at.opcode != Opcode::kBranchCall) return "is no branch_call";
  if (at.work->when != When::kActive) return "is not done where its branch is active alone";
  if (at.work->router != first.work->router) return "is of another router";
  if (at.threads != 1) return "has several threads";
  if (!at.waits.empty()) return "has waits, which are the group's";
  return "";
}

void CheckGroup(Queue* queue, size_t index) {
  Instruction& group = queue->instructions[index];
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::kArtifact, "program line " + std::to_string(group.line) + ": " + what);
  };
  const auto count = static_cast<size_t>(group.num_grouped);
  if (count > queue->instructions.size() - index - 1) {
    fail("a group of " + std::to_string(count) + " calls, and queue '" + queue->name + "' has " +
         std::to_string(queue->instructions.size() - index - 1) + " instructions behind it");
  }
  std::set<int32_t> branches;
  for (size_t i = index + 1; i <= index + count; ++i) {
    Instruction& at = queue->instructions[i];
    const std::string fault = FaultOf(at, queue->instructions[index + 1]);
    if (!fault.empty()) {
      fail("a group holds line " + std::to_string(at.line) + ", which " + fault);
    }
    const int32_t branch = at.work->branch;
    const bool goes_on = i != index + 1 && queue->instructions[i - 1].work->branch == branch;
    if (!goes_on && !branches.insert(branch).second) {
      fail("a group holds line " + std::to_string(at.line) + " of branch " +
           std::to_string(branch) + ", apart from the other calls of that branch");
    }
    at.is_grouped = true;
  }
  if (branches.size() > static_cast<size_t>(kMaxLanes)) {
    fail("a group of " + std::to_string(branches.size()) + " branches; at most " +
         std::to_string(kMaxLanes) + " stand in one");
  }
}

}  // namespace

bool Program::RunsOnCoresAlone() const {
  return std::ranges::none_of(
      queues, [](const Queue& queue) { return queue.IsAsync() || queue.HasMessages(); });
}

std::vector<int32_t> Program::FirstSides() const {
  std::vector<int32_t> firsts;
  auto next = static_cast<int32_t>(queues.size());
  for (const Queue& queue : queues) {
    firsts.push_back(next);
    if (queue.HasSideStreams()) next += kSideStreams;
  }
  return firsts;
}

void CheckGroups(Program* program) {
  for (Queue& queue : program->queues) {
    for (size_t i = 0; i < queue.instructions.size(); ++i) {
      if (queue.instructions[i].opcode == Opcode::kGroup) CheckGroup(&queue, i);
    }
  }
}

}  // namespace heteroplace::exec
