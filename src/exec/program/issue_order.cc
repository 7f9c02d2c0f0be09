#include "exec/program/issue_order.h"

#include <functional>
#include <queue>
#include <tuple>

namespace heteroplace::exec {

namespace {

/*! \brief Step, line, queue, index: the earliest step first, and always the same order. */
using Key = std::tuple<int64_t, int32_t, int32_t, int32_t>;

/*! \brief The queues as far as they are ordered, and who waits for what. */
class OrderFinder {
 public:
  explicit OrderFinder(const Program& program) : program_(program), done_(program.queues.size()) {
    for (const Queue& queue : program.queues) {
      followers_.emplace_back(queue.instructions.size() + 1);
    }
  }

  std::vector<InstructionId> Make() {
    for (size_t q = 0; q < done_.size(); ++q) Offer(static_cast<int32_t>(q));
    std::vector<InstructionId> order;
    while (!ready_.empty()) {
      const auto [step, line, queue, index] = ready_.top();
      ready_.pop();
      order.push_back({queue, index});
      const size_t count = ++done_[static_cast<size_t>(queue)];
      Offer(queue);
      for (int32_t follower : followers_[static_cast<size_t>(queue)][count]) Offer(follower);
    }
    return order;
  }

 private:
  /*! \brief Puts the next instruction of a queue among those that may come, or where it waits. */
  void Offer(int32_t queue) {
    const auto q = static_cast<size_t>(queue);
    const std::vector<Instruction>& instructions = program_.queues[q].instructions;
    if (done_[q] == instructions.size()) return;
    const Instruction& at = instructions[done_[q]];
    for (const Wait& wait : at.waits) {
      if (IsHeldBack(queue, wait.queue, wait.count)) return;
    }
    if (at.opcode == Opcode::kJoin && IsHeldBack(queue, at.leader_queue, at.leader_index + 1)) {
      return;
    }
    ready_.emplace(at.step, at.line, queue, static_cast<int32_t>(done_[q]));
  }

  bool IsHeldBack(int32_t queue, int32_t other, int32_t count) {
    if (done_[static_cast<size_t>(other)] >= static_cast<size_t>(count)) return false;
    followers_[static_cast<size_t>(other)][static_cast<size_t>(count)].push_back(queue);
    return true;
  }

  const Program& program_;
  std::vector<size_t> done_;  // [num_queues]
  /*! \brief Queues to look at again when a queue has come so far. [num_queues][instructions + 1] */
  std::vector<std::vector<std::vector<int32_t>>> followers_;
  std::priority_queue<Key, std::vector<Key>, std::greater<>> ready_;
};

}  // namespace

std::vector<InstructionId> IssueOrder(const Program& program) {
  return OrderFinder(program).Make();
}

}  // namespace heteroplace::exec
