// Inputs, outputs and sizes of a program as a whole.
#include <algorithm>
#include <string>
#include <vector>

#include "exec/devices/device.h"
#include "exec/program/program.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Whether two tensors share bytes, or are the same one. */
bool Overlap(const Program& program, int32_t one, int32_t other) {
  if (one == other) return true;
  const Tensor& a = program.tensors[static_cast<size_t>(one)];
  const Tensor& b = program.tensors[static_cast<size_t>(other)];
  if (a.space != b.space || a.storage != b.storage) return false;
  switch (a.storage) {
    case Storage::kArena:
    case Storage::kSession:
      return a.place < b.place + b.bytes && b.place < a.place + a.bytes;
    case Storage::kConstant:
      return a.place == b.place;
    case Storage::kExternal:
      return false;
  }
  return false;
}

/*! \brief Tensors that an input or an instruction may give a value. */
std::vector<int32_t> WrittenTensors(const Program& program) {
  std::vector<int32_t> written;
  written.reserve(program.inputs.size());
  for (const Port& port : program.inputs) written.push_back(port.tensor);
  for (const Queue& queue : program.queues) {
    for (const Instruction& at : queue.instructions) {
      // Which arguments a kernel writes is known to the kernel alone.
      if (at.IsCall()) {
        written.insert(written.end(), at.tensors.begin(), at.tensors.end());
      } else if (at.IsCopy()) {
        written.push_back(at.tensors[1]);
      } else if (at.opcode == Opcode::kReceive) {
        written.push_back(at.tensors[0]);
      }
    }
  }
  return written;
}

/*! \brief Adds what a space must hold beside its arena; throws where that is too much. */
void CheckSizes(const Program& program) {
  for (size_t s = 0; s < program.spaces.size(); ++s) {
    int64_t bytes = program.spaces[s].arena_bytes;
    const auto add = [&](int64_t more) {
      if (more > kMaxBytes - bytes) {
        throw Error(ErrorKind::kArtifact, "space '" + program.spaces[s].name +
                                              "' would have to hold more than " +
                                              std::to_string(kMaxBytes) + " bytes");
      }
      bytes += more;
    };
    add(program.spaces[s].session_bytes);
    for (const Tensor& tensor : program.tensors) {
      const bool is_here = static_cast<size_t>(tensor.space) == s;
      if (is_here && tensor.storage == Storage::kExternal) add(AlignUp(tensor.bytes));
    }
    for (const Constant& constant : program.constants) {
      if (static_cast<size_t>(constant.space) == s) add(AlignUp(constant.bytes));
    }
  }
}

bool IsAmong(const std::vector<Port>& ports, const Port& port) {
  return std::ranges::any_of(ports, [&](const Port& other) {
    return other.tensor == port.tensor && other.name == port.name;
  });
}

}  // namespace

bool Program::IsState(const Port& port) const {
  return IsAmong(inputs, port) && IsAmong(outputs, port);
}

bool Program::HasState() const {
  return std::ranges::any_of(inputs, [this](const Port& port) { return IsAmong(outputs, port); });
}

void CheckPorts(const Program& program) {
  CheckSizes(program);
  for (const Port& port : program.inputs) {
    if (program.tensors[static_cast<size_t>(port.tensor)].storage == Storage::kConstant) {
      throw Error(ErrorKind::kArtifact, "input '" + port.name + "' is tensor " +
                                            std::to_string(port.tensor) +
                                            ", a constant, which nobody may write");
    }
  }
  const std::vector<int32_t> written = WrittenTensors(program);
  for (const Port& port : program.outputs) {
    const Tensor& tensor = program.tensors[static_cast<size_t>(port.tensor)];
    bool has_value = tensor.storage == Storage::kConstant || tensor.bytes == 0;
    for (size_t i = 0; i < written.size() && !has_value; ++i) {
      has_value = Overlap(program, port.tensor, written[i]);
    }
    if (!has_value) {
      throw Error(ErrorKind::kArtifact, "output '" + port.name + "' is tensor " +
                                            std::to_string(port.tensor) +
                                            ", which no instruction writes");
    }
  }
}

}  // namespace heteroplace::exec
