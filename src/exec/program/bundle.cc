// The text of a bundle -> the texts of its programs.
#include "exec/program/bundle.h"

#include <algorithm>
#include <string>

#include "exec/program/line_reader.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief The first word of a line; "" of a blank one or a comment. */
std::string_view FirstWordOf(std::string_view line) {
  constexpr const char* kBlanks = " \t\r";
  const size_t begin = line.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos || line[begin] == '#') return {};
  return line.substr(begin, line.find_first_of(kBlanks, begin) - begin);
}

/*! \brief Cuts a bundle after the last line of each program. */
class Splitter : private LineReader {
 public:
  explicit Splitter(std::string_view text) : LineReader(1), text_(text) {}

  std::vector<ProgramText> Split() {
    std::string_view line;
    do {
      if (!NextLine(&line)) return {{text_, 1}};
    } while (FirstWordOf(line).empty());
    if (FirstWordOf(line) != "heteroplace-programs") return {{text_, 1}};
    --line_;
    SetLine(line);
    const auto num_hosts = static_cast<size_t>(ParseHeader());
    std::vector<ProgramText> programs;
    size_t begin = at_;
    int first_line = line_ + 1;
    bool is_open = false;
    while (NextLine(&line)) {
      if (FirstWordOf(line).empty()) continue;
      is_open = FirstWordOf(line) != "end";
      if (programs.size() == num_hosts) Fail("text after the last of the bundle's programs");
      if (is_open) continue;
      programs.push_back({text_.substr(begin, at_ - begin), first_line});
      begin = at_;
      first_line = line_ + 1;
    }
    if (programs.size() != num_hosts) {
      Fail("the bundle has " + std::to_string(programs.size()) + " programs of the " +
           std::to_string(num_hosts) + " that it says" + (is_open ? "; it is truncated" : ""));
    }
    return programs;
  }

 private:
  bool NextLine(std::string_view* line) {
    if (at_ >= text_.size()) return false;
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    *line = text_.substr(at_, end - at_);
    at_ = std::min(end + 1, text_.size());
    ++line_;
    return true;
  }

  /*! \brief The number of hosts. */
  int64_t ParseHeader() const {
    ExpectFields(3, "heteroplace-programs <version> <number of hosts>");
    if (fields_[1] != std::to_string(kBundleVersion)) {
      Fail("the programs have format version " + fields_[1] + ", this library reads version " +
           std::to_string(kBundleVersion) + "; build the artefact again");
    }
    return Number(2, "number of hosts", 2, kMaxHosts);
  }

  std::string_view text_;
  /*! \brief Where the next line begins. */
  size_t at_ = 0;
};

}  // namespace

std::vector<ProgramText> SplitPrograms(std::string_view text) { return Splitter(text).Split(); }

std::vector<Program> ParsePrograms(std::string_view text) {
  std::vector<Program> programs;
  for (const ProgramText& each : SplitPrograms(text)) {
    programs.push_back(ParseProgram(each.text, each.first_line));
  }
  CheckBundle(programs);
  return programs;
}

int FeedingHost(const std::vector<Program>& programs) {
  const auto feeds = [](const Program& program) {
    const auto is_other = [&](const Port& port) { return !program.IsState(port); };
    return std::ranges::any_of(program.inputs, is_other) ||
           std::ranges::any_of(program.outputs, is_other);
  };
  const auto found = std::ranges::find_if(programs, feeds);
  return found == programs.end() ? 0 : static_cast<int>(found - programs.begin());
}

}  // namespace heteroplace::exec
