#include "exec/engine/kernel_arguments.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief What kernels take, by symbol. */
using Arguments = std::unordered_map<std::string_view, std::string_view>;

Arguments ReadTable(std::string_view table) {
  Arguments takes;
  while (!table.empty()) {
    const std::string_view line = table.substr(0, table.find('\n'));
    table.remove_prefix(std::min(line.size() + 1, table.size()));
    const size_t end = std::min(line.find("; "), line.size());
    takes.emplace(line.substr(0, end), line.substr(std::min(end + 2, line.size())));
  }
  return takes;
}

/*! \brief What a call on a queue passes, as the table has it. */
std::string Passed(const Program& program, const Queue& queue,
                   const std::vector<int32_t>& tensors) {
  std::string text = IsHost(queue.device) ? "cpu" : "cuda";
  for (const int32_t id : tensors) {
    const Tensor& tensor = program.tensors[static_cast<size_t>(id)];
    text += "; " + DescribeTensor(tensor.dtype, tensor.shape);
  }
  return text;
}

}  // namespace

void CheckKernelArguments(const Program& program, std::string_view table) {
  const Arguments takes = ReadTable(table);
  const auto check = [&](const Queue& queue, int line, int32_t kernel,
                         const std::vector<int32_t>& tensors) {
    const std::string& symbol = program.kernels[static_cast<size_t>(kernel)];
    const auto entry = takes.find(symbol);
    if (entry == takes.end()) return;
    const std::string passed = Passed(program, queue, tensors);
    if (passed == entry->second) return;
    throw Error(ErrorKind::kArtifact, "program line " + std::to_string(line) + ": kernel '" +
                                          symbol + "' takes (" + std::string(entry->second) +
                                          "), got (" + passed +
                                          "); build the program and its kernels together");
  };
  for (const Queue& queue : program.queues) {
    for (const Instruction& at : queue.instructions) {
      if (at.opcode == Opcode::kCall) check(queue, at.line, at.kernel, at.tensors);
      if (at.opcode != Opcode::kBranchCall) continue;
      for (const CapacityCall& call : at.work->calls) {
        std::vector<int32_t> tensors;
        for (const Operand& operand : call.operands) tensors.push_back(operand.tensor);
        check(queue, at.line, call.kernel, tensors);
      }
    }
  }
}

}  // namespace heteroplace::exec
