// Text -> Program: the header, and which line is what.
#include <algorithm>
#include <utility>

#include "exec/program/program_parser.h"

namespace heteroplace::exec {

Program ProgramParser::Parse(std::string_view text) {
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
  CheckGroups(&program_);
  CheckPorts(program_);
  CheckSynchronisation(&program_);
  CheckRouters(&program_);
  return std::move(program_);
}

/*! \brief Reads a line that is no blank; whether it was the last one. */
bool ProgramParser::ParseLine() {
  const std::string& word = fields_[0];
  if (!has_header_) {
    ParseHeader();
  } else if (ParseInstructionLine()) {
    return false;
  } else if (word == "tensor") {
    ParseTensor();
  } else if (word == "constant") {
    ParseConstant();
  } else if (word == "kernel") {
    ParseKernel();
  } else if (word == "step") {
    ExpectFields(3, "step <id> <name>");
    ExpectNextId("step", program_.step_names.size());
    program_.step_names.push_back(fields_[2]);
  } else if (word == "input" || word == "output") {
    ParsePort(word == "input");
  } else if (word == "state") {
    ParseKeptState();
  } else if (word == "queue") {
    ParseQueue();
  } else if (word == "workspace") {
    ParseWorkspace();
  } else if (word == "space") {
    ParseSpace();
  } else if (has_routers_ && word == "router") {
    ParseRouter();
  } else if (has_routers_ && word == "predict") {
    ParsePrediction();
  } else if (word == "end") {
    ExpectFields(1, "end");
    return true;
  } else {
    Fail("unknown word '" + word + "'; expected space, queue, workspace, constant, tensor, " +
         "input, output, state, kernel, step, call, join, copy" +
         (has_peers_ ? ", send, recv" : "") +
         (has_routers_ ? ", router, predict, branch_call, branch_copy, group" : "") + " or end");
  }
  return false;
}

/*! \brief Reads an instruction; false if the line is of another kind. */
bool ProgramParser::ParseInstructionLine() {
  const std::string& word = fields_[0];
  if (word == "call") {
    ParseCall();
  } else if (word == "join") {
    ParseJoin();
  } else if (word == "copy") {
    ParseCopy();
  } else if (has_peers_ && (word == "send" || word == "recv")) {
    ParseMessage(word == "send");
  } else if (has_routers_ && word == "branch_call") {
    ParseBranchCall();
  } else if (has_routers_ && word == "branch_copy") {
    ParseBranchCopy();
  } else if (has_routers_ && word == "group") {
    ParseGroup();
  } else {
    return false;
  }
  return true;
}

void ProgramParser::ParseHeader() {
  const std::string one = std::to_string(kProgramVersion), several = std::to_string(kBundleVersion),
                    routed = std::to_string(kRouterVersion);
  if (fields_[0] != "heteroplace-program") {
    Fail("expected 'heteroplace-program " + one + "', got '" + fields_[0] +
         "'; this is no program of heteroplace");
  }
  has_header_ = true;
  has_routers_ = fields_.size() > 1 && fields_[1] == routed;
  has_peers_ =
      fields_.size() > 1 && (fields_[1] == several || (has_routers_ && fields_.size() > 2));
  if (has_peers_) return ParseHost();
  ExpectFields(2, "heteroplace-program <version>");
  if (fields_[1] != one && !has_routers_) {
    Fail("the program has format version " + fields_[1] + ", this library reads version " + one +
         ", for one of several hosts " + several + " and, for one with routers, " + routed +
         "; build the artefact again");
  }
}

void ProgramParser::ParseHost() {
  ExpectFields(5, "heteroplace-program <version> <rank> <number of hosts> <host>");
  program_.num_hosts = static_cast<int32_t>(Number(3, "number of hosts", 1, kMaxHosts));
  program_.rank = static_cast<int32_t>(Number(2, "rank", 0, program_.num_hosts - 1));
  program_.host = fields_[4];
}

Program ParseProgram(std::string_view text, int first_line) {
  return ProgramParser(first_line).Parse(text);
}

}  // namespace heteroplace::exec
