// Lines that say what there is: spaces, queues, constants, tensors, inputs and outputs.
#include <algorithm>
#include <utility>

#include "exec/devices/device.h"
#include "exec/program/program_parser.h"
#include "support/error.h"

namespace heteroplace::exec {

void ProgramParser::ParseSpace() {
  ExpectFields(6, "space <id> <name> <device type> <device id> <arena bytes>");
  ExpectNextId("space", program_.spaces.size());
  Space space;
  space.name = fields_[2];
  space.device = ParseDevice(3);
  space.arena_bytes = Number(5, "arena bytes", 0, kMaxBytes);
  program_.spaces.push_back(space);
}

void ProgramParser::ParseQueue() {
  ExpectFields(8,
               "queue <id> <name> <kind> <device type> <device id> <space> "
               "<core, delay or peer>");
  ExpectNextId("queue", program_.queues.size());
  Queue queue;
  queue.name = fields_[2];
  queue.kind = ParseQueueKind();
  queue.device = ParseDevice(4);
  CheckQueueDevice(queue);
  queue.space = static_cast<int32_t>(
      Number(6, "space of a queue", -1, static_cast<int64_t>(program_.spaces.size()) - 1));
  queue.core = -1;
  queue.delay_ns = 0;
  queue.HasMessages() ? ParseQueuePeer(&queue) : ParseQueueCore(&queue);
  CheckQueueSpace(queue);
  program_.queues.push_back(std::move(queue));
}

QueueKind ProgramParser::ParseQueueKind() const {
  const std::string& kind = fields_[3];
  if (kind == "cpu") return QueueKind::kCpu;
  if (kind == "cuda") return QueueKind::kCuda;
  if (kind == "copy") return QueueKind::kCopy;
  if (kind == "fake") return QueueKind::kFake;
  if (has_peers_ && kind == "send") return QueueKind::kSend;
  if (has_peers_ && kind == "recv") return QueueKind::kReceive;
  Fail("queue kind '" + kind + "'; expected cpu, cuda, copy" +
       (has_peers_ ? ", fake, send or recv" : " or fake"));
}

/*! \brief The last field: a fake queue's delay, or the core of any other. */
void ProgramParser::ParseQueueCore(Queue* queue) {
  if (queue->kind == QueueKind::kFake) {
    if (fields_[7] != "-") queue->delay_ns = Number(7, "delay in ns", 0, 1'000'000'000);
    return;
  }
  if (fields_[7] != "-") {
    queue->core = static_cast<int32_t>(Number(7, "core", 0, 1023));
  } else if (queue->kind == QueueKind::kCpu) {
    Fail("queue '" + queue->name + "' of kind cpu has no core; it needs exactly one");
  }
  for (const Queue& other : program_.queues) {
    if (queue->kind == QueueKind::kCpu && other.kind == QueueKind::kCpu &&
        other.core == queue->core) {
      Fail("queues '" + other.name + "' and '" + queue->name + "' share core " +
           std::to_string(queue->core) + "; workers that spin need a core each");
    }
  }
}

/*! \brief The last field of a queue of messages: the rank at their other end. */
void ProgramParser::ParseQueuePeer(Queue* queue) {
  queue->peer = static_cast<int32_t>(Number(7, "peer", 0, program_.num_hosts - 1));
  if (queue->peer == program_.rank) {
    Fail("queue '" + queue->name + "' has messages with rank " + fields_[7] +
         ", its own; a copy needs none");
  }
  for (const Queue& other : program_.queues) {
    if (other.kind == queue->kind && other.peer == queue->peer) {
      Fail("queues '" + other.name + "' and '" + queue->name + "' both " + fields_[3] + " " +
           (queue->kind == QueueKind::kSend ? "to" : "from") + " rank " + fields_[7] +
           "; all messages of one direction are in one queue");
    }
  }
}

void ProgramParser::CheckQueueDevice(const Queue& queue) const {
  const int32_t type = queue.device.device_type;
  const bool is_host =
      queue.kind == QueueKind::kCpu || queue.kind == QueueKind::kFake || queue.HasMessages();
  if (is_host && type != kDLCPU) {
    Fail("queue '" + queue.name + "' of kind " + fields_[3] + " is on " + DeviceName(queue.device) +
         "; expected cpu:0");
  }
  if (queue.kind == QueueKind::kCuda && type != kDLCUDA) {
    Fail("queue '" + queue.name + "' of kind cuda is on " + DeviceName(queue.device));
  }
}

void ProgramParser::CheckQueueSpace(const Queue& queue) const {
  if (queue.HasMessages() && queue.space >= 0) {
    Fail("queue '" + queue.name + "' of messages has a space; expected -1");
  }
  if (queue.space < 0) {
    if (queue.kind != QueueKind::kCopy && !queue.HasMessages()) {
      Fail("queue '" + queue.name + "' runs kernels and has no space; only copy queues may");
    }
    return;
  }
  const Space& space = program_.spaces[static_cast<size_t>(queue.space)];
  if (!(space.device == queue.device)) {
    Fail("queue '" + queue.name + "' is on " + DeviceName(queue.device) + ", its space '" +
         space.name + "' on " + DeviceName(space.device));
  }
}

void ProgramParser::ParseWorkspace() {
  ExpectFields(3, "workspace <queue> <bytes>");
  Queue& queue = program_.queues[static_cast<size_t>(Id(1, "queue", program_.queues.size()))];
  if (queue.kind != QueueKind::kCpu && queue.kind != QueueKind::kCuda) {
    Fail("queue '" + queue.name + "' is of neither a core nor a GPU; only those have workspace");
  }
  queue.workspace_bytes = Number(2, "bytes", 0, kMaxBytes);
}

void ProgramParser::ParseConstant() {
  ExpectFields(5, "constant <id> <space> <blob offset> <bytes>");
  ExpectNextId("constant", program_.constants.size());
  Constant constant;
  constant.space = Id(2, "space", program_.spaces.size());
  constant.blob_offset = Number(3, "blob offset", 0, kMaxBytes);
  constant.bytes = Number(4, "bytes", 0, kMaxBytes);
  ExpectAligned(constant.blob_offset, "blob offset");
  program_.constants.push_back(constant);
}

void ProgramParser::ParseTensor() {
  ExpectFields(8, "tensor <id> <space> <storage> <place> <code> <bits> <shape>");
  ExpectNextId("tensor", program_.tensors.size());
  Tensor tensor;
  tensor.space = Id(2, "space", program_.spaces.size());
  tensor.dtype = ParseType();
  tensor.bytes = (tensor.dtype.bits + 7) / 8;
  for (int64_t extent : List(7, "extent", 0, kMaxBytes)) {
    tensor.shape.push_back(extent);
    if (extent != 0 && tensor.bytes > kMaxBytes / extent) Fail("the tensor is too large");
    tensor.bytes *= extent;
  }
  ParseTensorPlace(&tensor);
  program_.tensors.push_back(std::move(tensor));
}

void ProgramParser::ParseTensorPlace(Tensor* tensor) {
  const std::string id = fields_[1];
  const Space& space = program_.spaces[static_cast<size_t>(tensor->space)];
  tensor->place = 0;
  if (fields_[3] == "arena") {
    tensor->storage = Storage::kArena;
    tensor->place = Number(4, "offset", 0, kMaxBytes);
    if (tensor->place + tensor->bytes > space.arena_bytes) {
      Fail("tensor " + id + " ends at byte " + std::to_string(tensor->place + tensor->bytes) +
           " of space '" + space.name + "', whose arena has " + std::to_string(space.arena_bytes) +
           " bytes");
    }
  } else if (fields_[3] == "constant") {
    tensor->storage = Storage::kConstant;
    tensor->place = Id(4, "constant", program_.constants.size());
    const Constant& constant = program_.constants[static_cast<size_t>(tensor->place)];
    if (constant.space != tensor->space) {
      Fail("tensor " + id + " is in space " + std::to_string(tensor->space) +
           ", its constant in space " + std::to_string(constant.space));
    }
    if (constant.bytes < tensor->bytes) {
      Fail("tensor " + id + " needs " + std::to_string(tensor->bytes) + " bytes, constant " +
           fields_[4] + " has " + std::to_string(constant.bytes));
    }
  } else if (fields_[3] == "session") {
    tensor->storage = Storage::kSession;
    tensor->place = Number(4, "offset", 0, kMaxBytes);
    Space* own = &program_.spaces[static_cast<size_t>(tensor->space)];
    own->session_bytes = std::max(own->session_bytes, tensor->place + AlignUp(tensor->bytes));
  } else if (fields_[3] == "external") {
    tensor->storage = Storage::kExternal;
    if (fields_[4] != "-") Fail("an external tensor has place '-', got '" + fields_[4] + "'");
  } else {
    Fail("storage '" + fields_[3] + "'; expected arena, constant, session or external");
  }
}

void ProgramParser::ParseKernel() {
  ExpectFields(3, "kernel <id> <symbol>");
  ExpectNextId("kernel", program_.kernels.size());
  program_.kernels.push_back(fields_[2]);
  try {
    program_.library_kernels.push_back(ReadLibraryKernel(fields_[2]));
  } catch (const Error& fault) {
    Fail(fault.what());
  }
}

/*! \brief Of what kernels and callers take: only copies may begin anywhere. */
void ProgramParser::ExpectAlignedTensor(int32_t id) const {
  const Tensor& tensor = program_.tensors[static_cast<size_t>(id)];
  if (tensor.storage != Storage::kArena && tensor.storage != Storage::kSession) return;
  ExpectAligned(tensor.place, ("tensor " + std::to_string(id) + " starts at byte").c_str());
}

void ProgramParser::ParsePort(bool is_input) {
  const char* word = is_input ? "input" : "output";
  ExpectFields(3, std::string(word) + " <name> <tensor>");
  Port port;
  port.name = fields_[1];
  port.tensor = Id(2, "tensor", program_.tensors.size());
  ExpectAlignedTensor(port.tensor);
  std::vector<Port>& ports = is_input ? program_.inputs : program_.outputs;
  for (const Port& other : ports) {
    if (other.name == port.name) Fail(std::string(word) + " '" + port.name + "' appears twice");
  }
  ports.push_back(std::move(port));
}

void ProgramParser::ParseKeptState() {
  ExpectFields(3, "state <input> <output>");
  const auto place_of = [&](const std::vector<Port>& ports, const char* kind, size_t field) {
    const auto at = std::ranges::find(ports, fields_[field], &Port::name);
    if (at == ports.end()) Fail(std::string("state of no ") + kind + " '" + fields_[field] + "'");
    return static_cast<size_t>(at - ports.begin());
  };
  KeptState state{place_of(program_.inputs, "input", 1), place_of(program_.outputs, "output", 2)};
  program_.is_kept_input.resize(program_.inputs.size());
  for (const KeptState& other : program_.kept_states) {
    if (other.input == state.input || other.output == state.output) {
      Fail("'" + fields_[other.input == state.input ? 1 : 2] + "' is state twice");
    }
  }
  const int32_t input = program_.inputs[state.input].tensor;
  const int32_t output = program_.outputs[state.output].tensor;
  const Tensor& from = program_.tensors[static_cast<size_t>(output)];
  const Tensor& to = program_.tensors[static_cast<size_t>(input)];
  if (to.storage != Storage::kSession) {
    Fail("input '" + fields_[1] + "' is state, and its tensor is not in storage session");
  }
  if (DescribeTensor(from.dtype, from.shape) != DescribeTensor(to.dtype, to.shape)) {
    Fail("input '" + fields_[1] + "' is " + DescribeTensor(to.dtype, to.shape) + ", and output '" +
         fields_[2] + "' " + DescribeTensor(from.dtype, from.shape));
  }
  state.is_in_place = input == output || (from.storage == to.storage && from.space == to.space &&
                                          from.place == to.place);
  program_.is_kept_input[state.input] = true;
  program_.kept_states.push_back(state);
}

DLDevice ProgramParser::ParseDevice(size_t field) const {
  DLDevice device;
  device.device_type = static_cast<int32_t>(Number(field, "device type", 1, 64));
  device.device_id = static_cast<int32_t>(Number(field + 1, "device id", 0, 1023));
  if (device.device_type != kDLCPU && device.device_type != kDLCUDA) {
    Fail("device type " + fields_[field] + "; expected 1 (cpu) or 2 (cuda)");
  }
  if (device.device_type == kDLCPU && device.device_id != 0) {
    Fail("device " + DeviceName(device) + "; kernels know the one host memory as cpu:0");
  }
  return device;
}

DLDataType ProgramParser::ParseType() const {
  int64_t code = Number(5, "type code", 0, 6);
  int64_t bits = Number(6, "bits", 1, 64);
  // TVM's kernels expect a bool as an unsigned integer of one bit.
  if (code == kDLBool) return DLDataType{kDLUInt, 1, 1};
  const bool is_sized = bits == 8 || bits == 16 || bits == 32 || bits == 64;
  const bool is_known = (code == kDLInt && is_sized) || (code == kDLUInt && is_sized) ||
                        (code == kDLUInt && bits == 1) ||
                        (code == kDLFloat && is_sized && bits != 8) ||
                        (code == kDLBfloat && bits == 16);
  if (!is_known) Fail("no type has code " + fields_[5] + " and " + fields_[6] + " bits");
  return DLDataType{static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
}

}  // namespace heteroplace::exec
