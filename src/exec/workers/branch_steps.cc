#include "exec/workers/branch_steps.h"

#include <algorithm>

namespace heteroplace::exec {

namespace {

/*! \brief How often the largest capacity fits into the cells, and the rest. */
size_t MostRounds(const Router& router, int32_t branch) {
  if (!router.HasRounds(branch)) return 1;
  return static_cast<size_t>(router.num_cells / router.CapacitiesOf(branch).back()) + 1;
}

/*! \brief Makes the steps of one queue. */
class StepMaker {
 public:
  StepMaker(const Program& program, size_t queue)
      : program_(program), queue_(program.queues[queue]), id_(static_cast<int32_t>(queue)) {}

  std::vector<BranchStep> Make() {
    std::vector<BranchStep> steps;
    for (size_t i = 0; i < queue_.instructions.size(); ++i) {
      const Instruction& at = queue_.instructions[i];
      if (at.work != nullptr) steps.push_back(StepOf(at, static_cast<int32_t>(i) + 1));
    }
    return steps;
  }

 private:
  BranchStep StepOf(const Instruction& at, int32_t count) {
    const BranchWork& work = *at.work;
    const Router& router = RouterAt(work.router);
    BranchStep step{};
    step.guard = {&router, work.branch};
    step.when = work.when;
    step.flag = static_cast<size_t>(router.first_branch + work.branch);
    step.num_rounds = queue_.IsAsync() ? MostRounds(router, work.branch) : 1;
    for (const CapacityCall& call : work.calls) {
      step.calls.push_back(CallOf(call));
      num_arguments_ += step.num_rounds * call.operands.size();
      num_views_ += step.num_rounds * step.calls.back().rows.size();
    }
    for (int64_t capacity : router.CapacitiesOf(work.branch)) {
      const auto is_it = [&](const CapacityStep& call) { return call.capacity == capacity; };
      const auto found = std::ranges::find_if(step.calls, is_it);
      step.call_of.push_back(
          found == step.calls.end() ? -1 : static_cast<int32_t>(found - step.calls.begin()));
    }
    step.copies_rows = work.copies_rows;
    if (work.copies_rows) {
      const Tensor& rows = program_.tensors[static_cast<size_t>(at.tensors[0])];
      step.copied_row_bytes = rows.bytes / rows.shape[0];
    }
    step.nested_loads = LoadsAfter(at, count);
    if (work.when == When::kPredicted) step.doubts = DoubtsOf(step.guard);
    return step;
  }

  CapacityStep CallOf(const CapacityCall& from) {
    CapacityStep call{from.capacity, from.kernel, {}, {}, num_calls_++, num_arguments_, num_views_};
    for (const Operand& operand : from.operands) {
      if (operand.is_rows) {
        const int64_t bytes = program_.tensors[static_cast<size_t>(operand.tensor)].bytes;
        call.rows.push_back({call.tensors.size(), operand.tensor, bytes / from.capacity});
      }
      call.tensors.push_back(operand.tensor);
    }
    return call;
  }

  /*! \brief Loads that an instruction of this queue writes. */
  std::vector<int32_t> LoadsAfter(const Instruction& at, int32_t count) const {
    std::vector<int32_t> loads;
    const bool is_copy = at.IsCopy();
    for (const Router& router : program_.routers) {
      const bool is_there = std::ranges::any_of(
          router.there, [&](const Wait& wait) { return wait.queue == id_ && wait.count == count; });
      const auto written = at.tensors.begin() + (is_copy ? 1 : 0);
      if (is_there && std::find(written, at.tensors.end(), router.loads) != at.tensors.end()) {
        loads.push_back(router.loads);
      }
    }
    return loads;
  }

  std::vector<GuardedBranch> DoubtsOf(GuardedBranch guard) const {
    std::vector<GuardedBranch> doubts{guard};
    for (;;) {
      const Router& router = *doubts.back().router;
      const Router& nested = router.outer >= 0 ? router : RouterAt(router.decision);
      if (nested.outer < 0) return doubts;
      doubts.push_back({&RouterAt(nested.outer), nested.outer_branch});
    }
  }

  const Router& RouterAt(int32_t id) const { return program_.routers[static_cast<size_t>(id)]; }

  const Program& program_;
  const Queue& queue_;
  const int32_t id_;
  size_t num_calls_ = 0;
  size_t num_arguments_ = 0;
  size_t num_views_ = 0;
};

}  // namespace

std::vector<std::vector<BranchStep>> MakeBranchSteps(const Program& program) {
  std::vector<std::vector<BranchStep>> steps;
  steps.reserve(program.queues.size());
  for (size_t q = 0; q < program.queues.size(); ++q) {
    steps.push_back(StepMaker(program, q).Make());
  }
  return steps;
}

BranchArguments::BranchArguments(const std::vector<BranchStep>& steps,
                                 std::vector<DLTensor>* tensors)
    : tensors_(*tensors) {
  size_t num_views = 0;
  for (const BranchStep& step : steps) {
    for (const CapacityStep& call : step.calls) num_views += step.num_rounds * call.rows.size();
  }
  views_.reserve(num_views);  // arguments point to them
  for (const BranchStep& step : steps) {
    for (const CapacityStep& call : step.calls) {
      for (size_t round = 0; round < step.num_rounds; ++round) {
        const size_t first = arguments_.size();
        for (int32_t id : call.tensors) {
          arguments_.emplace_back().v_handle = &(*tensors)[static_cast<size_t>(id)];
        }
        for (const RowArgument& row : call.rows) {
          views_.push_back(tensors_[static_cast<size_t>(row.tensor)]);
          arguments_[first + row.argument].v_handle = &views_.back();
        }
      }
    }
  }
}

TVMValue* BranchArguments::At(const CapacityStep& call, size_t round, int64_t first_row) {
  DLTensor* view = views_.data() + call.first_view + round * call.rows.size();
  for (const RowArgument& row : call.rows) {
    char* begin = static_cast<char*>(tensors_[static_cast<size_t>(row.tensor)].data);
    view->data = begin + first_row * row.row_bytes;
    ++view;
  }
  return arguments_.data() + call.first_argument + round * call.tensors.size();
}

}  // namespace heteroplace::exec
