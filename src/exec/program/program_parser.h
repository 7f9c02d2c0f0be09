// The state of reading one program's text, line by line; the form of each line is in README.md and
// routers.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "exec/program/line_reader.h"
#include "exec/program/program.h"

namespace heteroplace::exec {

/*! \brief Text -> Program. Each function reads the present line; all throw Error kArtifact. */
class ProgramParser : private LineReader {
 public:
  /*! \param first_line number of the text's first line, for messages. */
  explicit ProgramParser(int first_line) : LineReader(first_line) {}

  Program Parse(std::string_view text);

 private:
  bool ParseLine();
  bool ParseInstructionLine();
  void ParseHeader();
  void ParseHost();

  // What there is; parse_declarations.cc.
  void ParseSpace();
  void ParseQueue();
  QueueKind ParseQueueKind() const;
  void ParseQueueCore(Queue* queue);
  void ParseQueuePeer(Queue* queue);
  void CheckQueueDevice(const Queue& queue) const;
  void CheckQueueSpace(const Queue& queue) const;
  void ParseWorkspace();
  void ParseConstant();
  void ParseTensor();
  void ParseKernel();
  void ParseTensorPlace(Tensor* tensor);
  void ExpectAlignedTensor(int32_t id) const;
  void ParsePort(bool is_input);
  void ParseKeptState();
  DLDevice ParseDevice(size_t field) const;
  DLDataType ParseType() const;

  // What is done; parse_instructions.cc.
  void ParseCall();
  void ParseJoin();
  void ParseCopy();
  void ParseMessage(bool is_send);
  void ExpectComputes(const Queue& queue) const;
  void ExpectRunsKernels(const Queue& queue, int32_t threads) const;
  void ExpectKernelTensor(const Queue& queue, int32_t id) const;
  void CheckLibraryKernel(const Queue& queue, const Instruction& call) const;
  void ExpectCopyable(const Queue& queue, int32_t id) const;
  Instruction ParseInstruction(Opcode opcode, size_t waits_field);
  std::vector<Wait> ParseWaits(size_t field) const;

  // Routers, and what they guard; parse_branches.cc.
  void ParseRouter();
  void ParsePrediction();
  int32_t ParseDecision(size_t field, const char* what, const std::vector<int64_t>& shape) const;
  Overflow ParseOverflow() const;
  void ParseCapacities(Router* router) const;
  void CheckRouterRows(const Router& router) const;
  void ParseBranchCall();
  void ParseBranchCopy();
  void ParseGroup();
  BranchWork ParseGuard() const;
  CapacityCall ParseCapacityCall(std::string_view text, const Router& router,
                                 const BranchWork& work) const;
  Operand ParseOperand(std::string_view text) const;
  void CheckRows(int32_t tensor, int64_t row_bytes, const Router& router) const;
  void CheckCallRows(const CapacityCall& call, const Router& router, int32_t branch) const;

  Program program_;
  bool has_header_ = false;
  bool has_peers_ = false;
  bool has_routers_ = false;
};

}  // namespace heteroplace::exec
