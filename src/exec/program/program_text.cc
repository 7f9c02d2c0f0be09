// Text -> Program. The form of each line is in README.md.
#include <algorithm>
#include <utility>

#include "exec/program/line_reader.h"
#include "exec/program/program.h"

namespace heteroplace::exec {

namespace {

class Parser : private LineReader {
 public:
  Program Parse(std::string_view text) {
    bool ended = false;
    size_t begin = 0;
    while (begin < text.size()) {
      size_t end = std::min(text.find('\n', begin), text.size());
      std::string_view line = text.substr(begin, end - begin);
      begin = end + 1;
      if (!SetLine(line)) continue;
      if (ended) Fail("text after 'end'");
      ended = ParseLine();
    }
    if (!has_header_) Fail("the program is empty; expected 'heteroplace-program 1'");
    if (!ended) Fail("the program is truncated: no 'end' line");
    if (program_.queues.empty()) Fail("the program has no queue");
    CheckPorts(program_);
    CheckSynchronisation(&program_);
    return std::move(program_);
  }

 private:
  bool ParseLine() {
    const std::string& word = fields_[0];
    if (!has_header_) {
      ParseHeader();
    } else if (word == "call") {
      ParseCall();
    } else if (word == "join") {
      ParseJoin();
    } else if (word == "copy") {
      ParseCopy();
    } else if (word == "tensor") {
      ParseTensor();
    } else if (word == "constant") {
      ParseConstant();
    } else if (word == "kernel") {
      ExpectFields(3, "kernel <id> <symbol>");
      ExpectNextId("kernel", program_.kernels.size());
      program_.kernels.push_back(fields_[2]);
    } else if (word == "input" || word == "output") {
      ParsePort(word == "input");
    } else if (word == "queue") {
      ParseQueue();
    } else if (word == "workspace") {
      ParseWorkspace();
    } else if (word == "space") {
      ParseSpace();
    } else if (word == "end") {
      ExpectFields(1, "end");
      return true;
    } else {
      Fail("unknown word '" + word + "'; expected space, queue, workspace, constant, tensor, " +
           "input, output, kernel, call, join, copy or end");
    }
    return false;
  }

  void ParseHeader() {
    if (fields_[0] != "heteroplace-program") {
      Fail("expected 'heteroplace-program " + std::to_string(kProgramVersion) + "', got '" +
           fields_[0] + "'; this is no program of heteroplace");
    }
    ExpectFields(2, "heteroplace-program <version>");
    if (fields_[1] != std::to_string(kProgramVersion)) {
      Fail("the program has format version " + fields_[1] + ", this library reads version " +
           std::to_string(kProgramVersion) + "; build the artefact again");
    }
    has_header_ = true;
  }

  void ParseSpace() {
    ExpectFields(6, "space <id> <name> <device type> <device id> <arena bytes>");
    ExpectNextId("space", program_.spaces.size());
    Space space;
    space.name = fields_[2];
    space.device = ParseDevice(3);
    space.arena_bytes = Number(5, "arena bytes", 0, kMaxBytes);
    program_.spaces.push_back(space);
  }

  void ParseQueue() {
    ExpectFields(8, "queue <id> <name> <kind> <device type> <device id> <space> <core or delay>");
    ExpectNextId("queue", program_.queues.size());
    Queue queue;
    queue.name = fields_[2];
    const std::string& kind = fields_[3];
    if (kind == "cpu") {
      queue.kind = QueueKind::kCpu;
    } else if (kind == "cuda") {
      queue.kind = QueueKind::kCuda;
    } else if (kind == "copy") {
      queue.kind = QueueKind::kCopy;
    } else if (kind == "fake") {
      queue.kind = QueueKind::kFake;
    } else {
      Fail("queue kind '" + kind + "'; expected cpu, cuda, copy or fake");
    }
    queue.device = ParseDevice(4);
    CheckQueueDevice(queue);
    queue.space = static_cast<int32_t>(
        Number(6, "space of a queue", -1, static_cast<int64_t>(program_.spaces.size()) - 1));
    ParseQueueCore(&queue);
    CheckQueueSpace(queue);
    program_.queues.push_back(std::move(queue));
  }

  /*! \brief The last field: a fake queue's delay, or the core of any other. */
  void ParseQueueCore(Queue* queue) {
    queue->core = -1;
    queue->delay_ns = 0;
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

  void CheckQueueDevice(const Queue& queue) const {
    const int32_t type = queue.device.device_type;
    if ((queue.kind == QueueKind::kCpu || queue.kind == QueueKind::kFake) && type != kDLCPU) {
      Fail("queue '" + queue.name + "' of kind " + fields_[3] + " is on " +
           DeviceName(queue.device) + "; expected cpu:0");
    }
    if (queue.kind == QueueKind::kCuda && type != kDLCUDA) {
      Fail("queue '" + queue.name + "' of kind cuda is on " + DeviceName(queue.device));
    }
  }

  void CheckQueueSpace(const Queue& queue) const {
    if (queue.space < 0) {
      if (queue.kind != QueueKind::kCopy) {
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

  void ParseWorkspace() {
    ExpectFields(3, "workspace <queue> <bytes>");
    Queue& queue = program_.queues[static_cast<size_t>(Id(1, "queue", program_.queues.size()))];
    if (queue.kind != QueueKind::kCpu && queue.kind != QueueKind::kCuda) {
      Fail("queue '" + queue.name + "' is of neither a core nor a GPU; only those have workspace");
    }
    queue.workspace_bytes = Number(2, "bytes", 0, kMaxBytes);
  }

  void ParseConstant() {
    ExpectFields(5, "constant <id> <space> <blob offset> <bytes>");
    ExpectNextId("constant", program_.constants.size());
    Constant constant;
    constant.space = Id(2, "space", program_.spaces.size());
    constant.blob_offset = Number(3, "blob offset", 0, kMaxBytes);
    constant.bytes = Number(4, "bytes", 0, kMaxBytes);
    ExpectAligned(constant.blob_offset, "blob offset");
    program_.constants.push_back(constant);
  }

  void ParseTensor() {
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

  void ParseTensorPlace(Tensor* tensor) {
    const std::string id = fields_[1];
    const Space& space = program_.spaces[static_cast<size_t>(tensor->space)];
    tensor->place = 0;
    if (fields_[3] == "arena") {
      tensor->storage = Storage::kArena;
      tensor->place = Number(4, "offset", 0, kMaxBytes);
      if (tensor->place + tensor->bytes > space.arena_bytes) {
        Fail("tensor " + id + " ends at byte " + std::to_string(tensor->place + tensor->bytes) +
             " of space '" + space.name + "', whose arena has " +
             std::to_string(space.arena_bytes) + " bytes");
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
    } else if (fields_[3] == "external") {
      tensor->storage = Storage::kExternal;
      if (fields_[4] != "-") Fail("an external tensor has place '-', got '" + fields_[4] + "'");
    } else {
      Fail("storage '" + fields_[3] + "'; expected arena, constant or external");
    }
  }

  /*! \brief Of what kernels and callers take: only copies may begin anywhere. */
  void ExpectAlignedTensor(int32_t id) const {
    const Tensor& tensor = program_.tensors[static_cast<size_t>(id)];
    if (tensor.storage != Storage::kArena) return;
    ExpectAligned(tensor.place, ("tensor " + std::to_string(id) + " starts at byte").c_str());
  }

  void ParsePort(bool is_input) {
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

  void ParseCall() {
    ExpectFields(7, "call <queue> <step> <kernel> <threads> <tensors> <waits>");
    Instruction call = ParseInstruction(Opcode::kCall, 6);
    Queue& queue = program_.queues[static_cast<size_t>(Id(1, "queue", program_.queues.size()))];
    call.kernel = Id(3, "kernel", program_.kernels.size());
    call.threads = static_cast<int32_t>(Number(4, "threads", 1, 1024));
    if (queue.kind == QueueKind::kCopy) Fail("copy queue '" + queue.name + "' runs no kernels");
    if (call.threads > 1 && queue.kind != QueueKind::kCpu) {
      Fail("a call on queue '" + queue.name + "' has " + fields_[4] +
           " threads; only cpu queues have teams");
    }
    for (int64_t id : List(5, "tensor id", 0, LastId(program_.tensors.size()))) {
      const Tensor& tensor = program_.tensors[static_cast<size_t>(id)];
      const Space& space = program_.spaces[static_cast<size_t>(tensor.space)];
      if (!(space.device == queue.device)) {
        Fail("tensor " + std::to_string(id) + " is on " + DeviceName(space.device) + " (space '" +
             space.name + "'), the call's queue '" + queue.name + "' on " +
             DeviceName(queue.device) + "; copy the tensor first");
      }
      ExpectAlignedTensor(static_cast<int32_t>(id));
      call.tensors.push_back(static_cast<int32_t>(id));
    }
    queue.instructions.push_back(std::move(call));
  }

  void ParseJoin() {
    ExpectFields(6, "join <queue> <step> <leader queue> <leader instruction> <waits>");
    Instruction join = ParseInstruction(Opcode::kJoin, 5);
    join.leader_queue = Id(3, "leader queue", program_.queues.size());
    join.leader_index = static_cast<int32_t>(Number(4, "leader instruction", 0, kMaxCount));
    Queue& queue = program_.queues[static_cast<size_t>(Id(1, "queue", program_.queues.size()))];
    if (queue.kind != QueueKind::kCpu) Fail("queue '" + queue.name + "' is no cpu: cannot join");
    queue.instructions.push_back(std::move(join));
  }

  void ParseCopy() {
    ExpectFields(6, "copy <queue> <step> <source tensor> <destination tensor> <waits>");
    Instruction copy = ParseInstruction(Opcode::kCopy, 5);
    copy.tensors = {Id(3, "tensor", program_.tensors.size()),
                    Id(4, "tensor", program_.tensors.size())};
    Queue& queue = program_.queues[static_cast<size_t>(Id(1, "queue", program_.queues.size()))];
    const Tensor& src = program_.tensors[static_cast<size_t>(copy.tensors[0])];
    const Tensor& dst = program_.tensors[static_cast<size_t>(copy.tensors[1])];
    if (src.bytes != dst.bytes) {
      Fail("a copy from " + std::to_string(src.bytes) + " bytes to " + std::to_string(dst.bytes) +
           " bytes");
    }
    if (dst.storage == Storage::kConstant) Fail("a copy overwrites a constant");
    for (const Tensor* tensor : {&src, &dst}) {
      const Space& space = program_.spaces[static_cast<size_t>(tensor->space)];
      if (space.device.device_type != kDLCPU && queue.device.device_type == kDLCPU) {
        Fail("queue '" + queue.name + "' is on cpu:0 and cannot copy a tensor of space '" +
             space.name + "' on " + DeviceName(space.device));
      }
    }
    queue.instructions.push_back(std::move(copy));
  }

  /*! \brief What all instructions share: queue, step and waits. */
  Instruction ParseInstruction(Opcode opcode, size_t waits_field) {
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.step = Number(2, "step", 0, kMaxBytes);
    instruction.line = line_;
    const std::string& text = fields_[waits_field];
    if (text == "-") return instruction;
    size_t begin = 0;
    while (begin <= text.size()) {
      size_t end = std::min(text.find(',', begin), text.size());
      std::string_view item = std::string_view(text).substr(begin, end - begin);
      size_t colon = item.find(':');
      if (colon == std::string_view::npos) {
        Fail("wait '" + std::string(item) + "'; expected <queue>:<count>");
      }
      Wait wait;
      wait.queue = static_cast<int32_t>(
          Integer(item.substr(0, colon), "queue of a wait", 0, LastId(program_.queues.size())));
      wait.count =
          static_cast<int32_t>(Integer(item.substr(colon + 1), "count of a wait", 1, kMaxCount));
      instruction.waits.push_back(wait);
      begin = end + 1;
    }
    return instruction;
  }

  DLDevice ParseDevice(size_t field) const {
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

  DLDataType ParseType() const {
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

  Program program_;
  bool has_header_ = false;
};

}  // namespace

Program ParseProgram(std::string_view text) { return Parser().Parse(text); }

}  // namespace heteroplace::exec
