// Lines that say what is done: calls, joins, copies and messages.
#include <utility>

#include "exec/program/program_parser.h"
#include "support/error.h"

namespace heteroplace::exec {

void ProgramParser::ParseCall() {
  ExpectFields(7, "call <queue> <step> <kernel> <threads> <tensors> <waits>");
  Instruction call = ParseInstruction(Opcode::kCall, 6);
  Queue& queue = program_.queues[static_cast<size_t>(Id(1, "queue", program_.queues.size()))];
  call.kernel = Id(3, "kernel", program_.kernels.size());
  call.threads = static_cast<int32_t>(Number(4, "threads", 1, 1024));
  ExpectRunsKernels(queue, call.threads);
  for (int64_t id : List(5, "tensor id", 0, LastId(program_.tensors.size()))) {
    ExpectKernelTensor(queue, static_cast<int32_t>(id));
    call.tensors.push_back(static_cast<int32_t>(id));
  }
  CheckLibraryKernel(queue, call);
  queue.instructions.push_back(std::move(call));
}

/*! \brief Of a call of a kernel that has no code. */
void ProgramParser::CheckLibraryKernel(const Queue& queue, const Instruction& call) const {
  const auto* kernel = program_.library_kernels[static_cast<size_t>(call.kernel)].get();
  if (kernel == nullptr) return;
  if (queue.kind != QueueKind::kCuda) {
    Fail("queue '" + queue.name + "' is of no GPU, and kernel " + std::to_string(call.kernel) +
         " is a " + kernel->Kind() + ", which runs on GPUs alone");
  }
  std::vector<LibraryArgument> arguments;
  for (int32_t id : call.tensors) {
    const Tensor& tensor = program_.tensors[static_cast<size_t>(id)];
    arguments.push_back({tensor.dtype, tensor.bytes});
  }
  try {
    kernel->CheckCall(arguments);
  } catch (const Error& fault) {
    Fail(fault.what());
  }
}

/*! \brief Of the queue of a call. */
void ProgramParser::ExpectRunsKernels(const Queue& queue, int32_t threads) const {
  ExpectComputes(queue);
  if (queue.kind == QueueKind::kCopy) Fail("copy queue '" + queue.name + "' runs no kernels");
  if (threads > 1 && queue.kind != QueueKind::kCpu) {
    Fail("a call on queue '" + queue.name + "' has " + std::to_string(threads) +
         " threads; only cpu queues have teams");
  }
}

/*! \brief Of what a call on a queue takes. */
void ProgramParser::ExpectKernelTensor(const Queue& queue, int32_t id) const {
  const Tensor& tensor = program_.tensors[static_cast<size_t>(id)];
  const Space& space = program_.spaces[static_cast<size_t>(tensor.space)];
  if (!(space.device == queue.device)) {
    Fail("tensor " + std::to_string(id) + " is on " + DeviceName(space.device) + " (space '" +
         space.name + "'), the call's queue '" + queue.name + "' on " + DeviceName(queue.device) +
         "; copy the tensor first");
  }
  ExpectAlignedTensor(id);
}

void ProgramParser::ParseJoin() {
  ExpectFields(6, "join <queue> <step> <leader queue> <leader instruction> <waits>");
  Instruction join = ParseInstruction(Opcode::kJoin, 5);
  join.leader_queue = Id(3, "leader queue", program_.queues.size());
  join.leader_index = static_cast<int32_t>(Number(4, "leader instruction", 0, kMaxCount));
  Queue& queue = program_.queues[static_cast<size_t>(Id(1, "queue", program_.queues.size()))];
  if (queue.kind != QueueKind::kCpu) Fail("queue '" + queue.name + "' is no cpu: cannot join");
  queue.instructions.push_back(std::move(join));
}

void ProgramParser::ParseCopy() {
  ExpectFields(6, "copy <queue> <step> <source tensor> <destination tensor> <waits>");
  Instruction copy = ParseInstruction(Opcode::kCopy, 5);
  copy.tensors = {Id(3, "tensor", program_.tensors.size()),
                  Id(4, "tensor", program_.tensors.size())};
  Queue& queue = program_.queues[static_cast<size_t>(Id(1, "queue", program_.queues.size()))];
  ExpectComputes(queue);
  const Tensor& src = program_.tensors[static_cast<size_t>(copy.tensors[0])];
  const Tensor& dst = program_.tensors[static_cast<size_t>(copy.tensors[1])];
  if (src.bytes != dst.bytes) {
    Fail("a copy from " + std::to_string(src.bytes) + " bytes to " + std::to_string(dst.bytes) +
         " bytes");
  }
  if (dst.storage == Storage::kConstant) Fail("a copy overwrites a constant");
  for (int32_t id : copy.tensors) ExpectCopyable(queue, id);
  queue.instructions.push_back(std::move(copy));
}

/*! \brief Of what a queue copies. */
void ProgramParser::ExpectCopyable(const Queue& queue, int32_t id) const {
  const Tensor& tensor = program_.tensors[static_cast<size_t>(id)];
  const Space& space = program_.spaces[static_cast<size_t>(tensor.space)];
  if (space.device.device_type != kDLCPU && queue.device.device_type == kDLCPU) {
    Fail("queue '" + queue.name + "' is on cpu:0 and cannot copy a tensor of space '" + space.name +
         "' on " + DeviceName(space.device));
  }
}

void ProgramParser::ParseMessage(bool is_send) {
  ExpectFields(6, fields_[0] + " <queue> <step> <tag> <tensor> <waits>");
  Instruction message = ParseInstruction(is_send ? Opcode::kSend : Opcode::kReceive, 5);
  Queue& queue = program_.queues[static_cast<size_t>(Id(1, "queue", program_.queues.size()))];
  message.tag = Number(3, "tag", 0, kMaxBytes);
  message.tensors = {Id(4, "tensor", program_.tensors.size())};
  if (queue.kind != (is_send ? QueueKind::kSend : QueueKind::kReceive)) {
    Fail("queue '" + queue.name + "' is not of kind " + fields_[0] + ", the instruction is");
  }
  const Tensor& tensor = program_.tensors[static_cast<size_t>(message.tensors[0])];
  const Space& space = program_.spaces[static_cast<size_t>(tensor.space)];
  if (space.device.device_type != kDLCPU) {
    Fail("tensor " + fields_[4] + " is on " + DeviceName(space.device) + " (space '" + space.name +
         "'); messages are between memories of hosts: copy the tensor first");
  }
  if (!is_send && tensor.storage == Storage::kConstant) Fail("a message overwrites a constant");
  queue.instructions.push_back(std::move(message));
}

/*! \brief Of what queues of messages do not do. */
void ProgramParser::ExpectComputes(const Queue& queue) const {
  if (!queue.HasMessages()) return;
  Fail("queue '" + queue.name + "' has messages alone, got a " + fields_[0]);
}

/*! \brief What all instructions share: queue, step and waits. */
Instruction ProgramParser::ParseInstruction(Opcode opcode, size_t waits_field) {
  Instruction instruction;
  instruction.opcode = opcode;
  instruction.step = Number(2, "step", 0, kMaxBytes);
  instruction.line = line_;
  instruction.waits = ParseWaits(waits_field);
  return instruction;
}

std::vector<Wait> ProgramParser::ParseWaits(size_t field) const {
  std::vector<Wait> waits;
  if (fields_[field] == "-") return waits;
  for (std::string_view item : Split(fields_[field], ',')) {
    size_t colon = item.find(':');
    if (colon == std::string_view::npos) {
      Fail("wait '" + std::string(item) + "'; expected <queue>:<count>");
    }
    Wait wait;
    wait.queue = static_cast<int32_t>(
        Integer(item.substr(0, colon), "queue of a wait", 0, LastId(program_.queues.size())));
    wait.count =
        static_cast<int32_t>(Integer(item.substr(colon + 1), "count of a wait", 1, kMaxCount));
    waits.push_back(wait);
  }
  return waits;
}

}  // namespace heteroplace::exec
