#include "exec/engine/kernel_arguments.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief What kernels take, by symbol. */
std::unordered_map<std::string_view, std::string_view> ReadTable(std::string_view table) {
  std::unordered_map<std::string_view, std::string_view> takes;
  while (!table.empty()) {
    const std::string_view line = table.substr(0, table.find('\n'));
    table.remove_prefix(std::min(line.size() + 1, table.size()));
    const size_t end = std::min(line.find("; "), line.size());
    takes.emplace(line.substr(0, end), line.substr(std::min(end + 2, line.size())));
  }
  return takes;
}

/*! \brief Compares the calls of one program. */
class ArgumentCheck {
 public:
  ArgumentCheck(const Program& program, std::string_view table)
      : program_(program), takes_(ReadTable(table)) {}

  void CheckAll() const {
    for (const Queue& queue : program_.queues) {
      for (const Instruction& at : queue.instructions) {
        if (at.opcode == Opcode::kCall) Check(queue, at, at.kernel, at.tensors);
        if (at.opcode == Opcode::kBranchCall) CheckBranch(queue, at);
      }
    }
  }

 private:
  void CheckBranch(const Queue& queue, const Instruction& at) const {
    for (const CapacityCall& call : at.work->calls) {
      std::vector<int32_t> tensors;
      for (const Operand& operand : call.operands) tensors.push_back(operand.tensor);
      Check(queue, at, call.kernel, tensors);
    }
  }

  void Check(const Queue& queue, const Instruction& at, int32_t kernel,
             const std::vector<int32_t>& tensors) const {
    const std::string& symbol = program_.kernels[static_cast<size_t>(kernel)];
    const auto entry = takes_.find(symbol);
    if (entry == takes_.end()) return;
    std::string passed = IsHost(queue.device) ? "cpu" : "cuda";
    for (const int32_t id : tensors) {
      const Tensor& tensor = program_.tensors[static_cast<size_t>(id)];
      passed += "; " + DescribeTensor(tensor.dtype, tensor.shape);
    }
    if (passed == entry->second) return;
    throw Error(ErrorKind::kArtifact, "program line " + std::to_string(at.line) + ": kernel '" +
                                          symbol + "' takes (" + std::string(entry->second) +
                                          "), got (" + passed +
                                          "); build the program and its kernels together");
  }

  const Program& program_;
  const std::unordered_map<std::string_view, std::string_view> takes_;
};

}  // namespace

void CheckKernelArguments(const Program& program, std::string_view table) {
  ArgumentCheck(program, table).CheckAll();
}

}  // namespace heteroplace::exec
