// Lines of routers, and of what is done only where a branch has cells.
#include <algorithm>
#include <memory>
#include <utility>

#include "exec/devices/device.h"
#include "exec/program/program_parser.h"

namespace heteroplace::exec {

namespace {

/*! \brief What a product of two numbers leaves when divided by the alignment of kernels' tensors.
 */
int64_t Misalignment(int64_t count, int64_t row_bytes) {
  return (count % kTensorAlignmentBytes) * (row_bytes % kTensorAlignmentBytes) %
         kTensorAlignmentBytes;
}

}  // namespace

void ProgramParser::ParseRouter() {
  ExpectFields(12,
               "router <id> <name> <loads> <offsets> <seats> <overflow> <cells> <rows> <quantum> "
               "<capacities> <there>");
  ExpectNextId("router", program_.routers.size());
  Router router;
  router.name = fields_[2];
  router.line = line_;
  router.overflow = ParseOverflow();
  router.num_cells = Number(7, "cells", 1, kMaxCount);
  router.rows = Number(8, "rows", 0, kMaxBytes);
  router.quantum = Number(9, "quantum", 1, kMaxCount);
  ParseCapacities(&router);
  router.loads = ParseDecision(3, "loads", {router.num_branches()});
  if (fields_[4] != "-") router.offsets = ParseDecision(4, "offsets", {router.num_branches()});
  if (fields_[5] != "-") {
    router.seats = ParseDecision(5, "seats", {router.num_cells, router.num_branches()});
  }
  CheckRouterRows(router);
  router.there = ParseWaits(11);
  program_.routers.push_back(std::move(router));
}

void ProgramParser::ParsePrediction() {
  ExpectFields(4, "predict <router> <branches> <least hits of 1000>");
  RouterPrediction prediction;
  prediction.router = Id(1, "router", program_.routers.size());
  const Router& router = program_.routers[static_cast<size_t>(prediction.router)];
  for (const RouterPrediction& other : program_.predictions) {
    if (program_.routers[static_cast<size_t>(other.router)].name != router.name) continue;
    Fail("router '" + router.name + "' is predicted twice");
  }
  if (fields_[2] != "-") {
    for (std::string_view item : Split(fields_[2], ',')) {
      const int64_t least = prediction.branches.empty() ? 0 : prediction.branches.back() + 1;
      prediction.branches.push_back(
          Integer(item, "branch (they are ascending)", least, router.num_branches() - 1));
    }
  }
  prediction.least_hits = static_cast<int32_t>(Number(3, "least hits", 0, 1000));
  program_.predictions.push_back(std::move(prediction));
}

Overflow ProgramParser::ParseOverflow() const {
  const std::string& word = fields_[6];
  if (word == "rounds") return Overflow::kRounds;
  if (word == "drop") return Overflow::kDrop;
  if (word == "error") return Overflow::kError;
  Fail("overflow '" + word + "'; expected rounds, drop or error");
}

void ProgramParser::ParseCapacities(Router* router) const {
  for (std::string_view branch : Split(fields_[10], ';')) {
    std::vector<int64_t>& capacities = router->capacities.emplace_back();
    for (std::string_view item : Split(branch, ',')) {
      const int64_t least = capacities.empty() ? 1 : capacities.back() + 1;
      capacities.push_back(Integer(item, "capacity (they are ascending)", least, kMaxCount));
    }
  }
}

/*! \brief A tensor in which a part of a decision is. */
int32_t ProgramParser::ParseDecision(size_t field, const char* what,
                                     const std::vector<int64_t>& shape) const {
  const int32_t id = Id(field, what, program_.tensors.size());
  const Tensor& tensor = program_.tensors[static_cast<size_t>(id)];
  const DLDataType dtype{kDLInt, 32, 1};
  const bool is_form = tensor.dtype.code == dtype.code && tensor.dtype.bits == dtype.bits;
  if (!is_form || tensor.shape != shape) {
    Fail(std::string(what) + " of router '" + fields_[2] + "' are tensor " + fields_[field] + ", " +
         DescribeTensor(tensor.dtype, tensor.shape) + "; expected " + DescribeTensor(dtype, shape));
  }
  const Space& space = program_.spaces[static_cast<size_t>(tensor.space)];
  if (!IsHost(space.device)) {
    Fail(std::string(what) + " of router '" + fields_[2] + "' are on " + DeviceName(space.device) +
         " (space '" + space.name + "'), and guards are read by the host: copy them there");
  }
  if (tensor.storage == Storage::kConstant) {
    Fail(std::string(what) + " of router '" + fields_[2] + "' are a constant");
  }
  return id;
}

/*! \brief A routed buffer holds the rows of one branch at least, whatever its load. */
void ProgramParser::CheckRouterRows(const Router& router) const {
  if (router.offsets < 0 && router.rows != 0) {
    Fail("router '" + router.name + "' has no offsets, and buffers of " + fields_[8] +
         " rows; expected 0");
  }
  for (int32_t b = 0; router.offsets >= 0 && b < router.num_branches(); ++b) {
    const int64_t needed = router.PaddedLoad(b, router.num_cells);
    if (router.rows >= needed) continue;
    Fail(router.Describe(b) + " may need " + std::to_string(needed) + " rows, its buffers have " +
         fields_[8]);
  }
}

void ProgramParser::ParseBranchCall() {
  ExpectFields(9, "branch_call <queue> <step> <router> <branch> <when> <threads> <calls> <waits>");
  Instruction call = ParseInstruction(Opcode::kBranchCall, 8);
  Queue& queue = program_.queues[static_cast<size_t>(Id(1, "queue", program_.queues.size()))];
  BranchWork work = ParseGuard();
  const Router& router = program_.routers[static_cast<size_t>(work.router)];
  call.threads = static_cast<int32_t>(Number(6, "threads", 1, 1024));
  ExpectRunsKernels(queue, call.threads);
  for (std::string_view text : Split(fields_[7], ';')) {
    CapacityCall each = ParseCapacityCall(text, router, work);
    for (const Operand& operand : each.operands) {
      ExpectKernelTensor(queue, operand.tensor);
      if (std::ranges::find(call.tensors, operand.tensor) == call.tensors.end()) {
        call.tensors.push_back(operand.tensor);
      }
    }
    CheckCallRows(each, router, work.branch);
    call.kernel = each.kernel;
    work.calls.push_back(std::move(each));
  }
  call.work = std::make_shared<const BranchWork>(std::move(work));
  queue.instructions.push_back(std::move(call));
}

/*! \brief The router, the branch and when, of a guarded instruction. */
BranchWork ProgramParser::ParseGuard() const {
  BranchWork work;
  work.router = Id(3, "router", program_.routers.size());
  const Router& router = program_.routers[static_cast<size_t>(work.router)];
  work.branch = static_cast<int32_t>(Number(4, "branch", 0, router.num_branches() - 1));
  const std::string& word = fields_[5];
  if (word == "predicted") {
    work.when = When::kPredicted;
  } else if (word == "missed") {
    work.when = When::kMissed;
  } else if (word != "active") {
    Fail("a guard '" + word + "'; expected active, predicted or missed");
  }
  return work;
}

/*! \brief "4=7(1,2@)". */
CapacityCall ProgramParser::ParseCapacityCall(std::string_view text, const Router& router,
                                              const BranchWork& work) const {
  const size_t equal = text.find('='), open = text.find('(');
  if (equal == std::string_view::npos || open == std::string_view::npos || open < equal ||
      text.back() != ')') {
    Fail("call '" + std::string(text) + "'; expected <capacity>=<kernel>(<tensor>[@],...)");
  }
  CapacityCall call;
  call.capacity = Integer(text.substr(0, equal), "capacity", 0, kMaxCount);
  const std::vector<int64_t>& known = router.CapacitiesOf(work.branch);
  if (call.capacity != 0 && std::ranges::find(known, call.capacity) == known.end()) {
    Fail("capacity " + std::to_string(call.capacity) + " is none of " +
         router.Describe(work.branch));
  }
  if (call.capacity != 0 && work.when == When::kPredicted) {
    Fail("a predicted call at capacity " + std::to_string(call.capacity) +
         "; where rows are is not known before the router's decision: expected capacity 0");
  }
  if (!work.calls.empty() &&
      (work.calls.back().capacity == 0 || call.capacity <= work.calls.back().capacity)) {
    Fail("capacity " + std::to_string(call.capacity) + " after " +
         std::to_string(work.calls.back().capacity) + "; they are ascending, and 0 stands alone");
  }
  call.kernel = static_cast<int32_t>(Integer(text.substr(equal + 1, open - equal - 1), "kernel", 0,
                                             LastId(program_.kernels.size())));
  if (const auto& kernel = program_.library_kernels[static_cast<size_t>(call.kernel)]) {
    Fail("kernel " + std::to_string(call.kernel) + " is a " + kernel->Kind() +
         ", which no branch can call: its rows are fixed");
  }
  const std::string_view operands = text.substr(open + 1, text.size() - open - 2);
  if (operands.empty()) return call;
  for (std::string_view operand : Split(operands, ',')) {
    call.operands.push_back(ParseOperand(operand));
  }
  return call;
}

Operand ProgramParser::ParseOperand(std::string_view text) const {
  Operand operand;
  operand.is_rows = !text.empty() && text.back() == '@';
  if (operand.is_rows) text.remove_suffix(1);
  operand.tensor =
      static_cast<int32_t>(Integer(text, "tensor", 0, LastId(program_.tensors.size())));
  return operand;
}

/*! \brief A tensor begins where a routed buffer does that has all of its rows. */
void ProgramParser::CheckRows(int32_t id, int64_t row_bytes, const Router& router) const {
  if (router.offsets < 0) {
    Fail("tensor " + std::to_string(id) + " is rows of router '" + router.name +
         "', which has no offsets");
  }
  const Tensor& tensor = program_.tensors[static_cast<size_t>(id)];
  int64_t available = tensor.bytes;
  if (tensor.storage == Storage::kArena) {
    available = program_.spaces[static_cast<size_t>(tensor.space)].arena_bytes - tensor.place;
  } else if (tensor.storage == Storage::kConstant) {
    available = program_.constants[static_cast<size_t>(tensor.place)].bytes;
  }
  if (row_bytes == 0 || router.rows <= available / row_bytes) return;
  Fail("tensor " + std::to_string(id) + " begins a buffer of " + std::to_string(router.rows) +
       " rows of " + std::to_string(row_bytes) + " bytes, and there are " +
       std::to_string(available) + " bytes");
}

/*! \brief Rows of a call are in their buffers, and begin where kernels take them. */
void ProgramParser::CheckCallRows(const CapacityCall& call, const Router& router,
                                  int32_t branch) const {
  for (const Operand& operand : call.operands) {
    if (!operand.is_rows) continue;
    const std::string name = "tensor " + std::to_string(operand.tensor);
    if (call.capacity == 0) Fail(name + " is rows, and capacity 0 has none");
    const int64_t bytes = program_.tensors[static_cast<size_t>(operand.tensor)].bytes;
    if (bytes % call.capacity != 0) {
      Fail(name + " has " + std::to_string(bytes) + " bytes, which are no " +
           std::to_string(call.capacity) + " rows");
    }
    const int64_t row_bytes = bytes / call.capacity;
    CheckRows(operand.tensor, row_bytes, router);
    const int64_t most = router.CapacitiesOf(branch).back();
    const bool is_late = router.HasRounds(branch) && Misalignment(most, row_bytes) != 0;
    if (Misalignment(router.quantum, row_bytes) == 0 && !is_late) continue;
    Fail("rows of " + name + " have " + std::to_string(row_bytes) +
         " bytes: " + std::to_string(is_late ? most : router.quantum) +
         (is_late ? " of them, the largest capacity," : " of them, the router's quantum,") +
         " are no multiple of " + std::to_string(kTensorAlignmentBytes) + " bytes");
  }
}

void ProgramParser::ParseGroup() {
  ExpectFields(6, "group <queue> <step> <threads> <calls> <waits>");
  Instruction group = ParseInstruction(Opcode::kGroup, 5);
  Queue& queue = program_.queues[static_cast<size_t>(Id(1, "queue", program_.queues.size()))];
  group.threads = static_cast<int32_t>(Number(3, "threads", 1, 1024));
  ExpectRunsKernels(queue, group.threads);
  group.num_grouped = static_cast<int32_t>(Number(4, "calls", 1, kMaxCount));
  queue.instructions.push_back(std::move(group));
}

void ProgramParser::ParseBranchCopy() {
  ExpectFields(9,
               "branch_copy <queue> <step> <router> <branch> <when> <source> <destination> "
               "<waits>");
  Instruction copy = ParseInstruction(Opcode::kBranchCopy, 8);
  Queue& queue = program_.queues[static_cast<size_t>(Id(1, "queue", program_.queues.size()))];
  ExpectComputes(queue);
  BranchWork work = ParseGuard();
  const Router& router = program_.routers[static_cast<size_t>(work.router)];
  const Operand src = ParseOperand(fields_[6]), dst = ParseOperand(fields_[7]);
  if (src.is_rows != dst.is_rows) Fail("a copy of rows has two marks '@', or none");
  work.copies_rows = src.is_rows;
  if (work.copies_rows && work.when == When::kPredicted) {
    Fail("a predicted copy of rows, which are not known before the router's decision");
  }
  copy.tensors = {src.tensor, dst.tensor};
  std::vector<int64_t> bytes;  // of all, or of a row
  for (int32_t id : copy.tensors) {
    const Tensor& tensor = program_.tensors[static_cast<size_t>(id)];
    ExpectCopyable(queue, id);
    bytes.push_back(tensor.bytes);
    if (!work.copies_rows) continue;
    if (tensor.shape.empty() || tensor.shape[0] < 1) {
      Fail("tensor " + std::to_string(id) + " is rows, and its shape does not begin with them");
    }
    bytes.back() /= tensor.shape[0];
    CheckRows(id, bytes.back(), router);
  }
  if (bytes[0] != bytes[1]) {
    Fail(std::string("a copy from ") + (work.copies_rows ? "rows of " : "") +
         std::to_string(bytes[0]) + " bytes to " + (work.copies_rows ? "rows of " : "") +
         std::to_string(bytes[1]) + " bytes");
  }
  if (program_.tensors[static_cast<size_t>(dst.tensor)].storage == Storage::kConstant) {
    Fail("a copy overwrites a constant");
  }
  copy.work = std::make_shared<const BranchWork>(std::move(work));
  queue.instructions.push_back(std::move(copy));
}

}  // namespace heteroplace::exec
