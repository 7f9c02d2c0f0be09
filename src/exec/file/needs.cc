#include "exec/file/needs.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "exec/devices/cuda/cuda_api.h"
#include "exec/file/processor.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

constexpr std::string_view kHeader = "heteroplace-needs 1";
constexpr std::string_view kHostsHeader = "heteroplace-needs 2";
constexpr int32_t kMaxRank = 1 << 20;

class NeedsReader {
 public:
  NeedsReader(const OpenFile& file, std::string_view text) : file_(file), text_(text) {}

  Needs Read() {
    const std::string_view header = NextLine();
    has_hosts_ = header == kHostsHeader;
    if (header != kHeader && !has_hosts_) Fail("expected '" + std::string(kHeader) + "', or 2");
    Needs needs;
    if (!has_hosts_) needs.hosts.emplace_back();
    for (std::string_view line = NextLine(); line != "end"; line = NextLine()) {
      TakeLine(line, &needs);
    }
    if (begin_ != text_.size()) Fail("text after 'end'");
    if (needs.hosts.empty()) Fail("no host");
    for (const std::string* field : {&needs.machine, &needs.code, &needs.program, &needs.weights}) {
      if (field->empty()) Fail("machine, code, program and weights are not all there");
    }
    return needs;
  }

 private:
  std::string_view NextLine() {
    ++line_;
    const size_t end = text_.find('\n', begin_);
    if (end == std::string_view::npos) Fail("the text ends without a line 'end'");
    const std::string_view line = text_.substr(begin_, end - begin_);
    if (!std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; })) {
      Fail("expected printable ASCII");
    }
    begin_ = end + 1;
    return line;
  }

  void TakeLine(std::string_view line, Needs* needs) {
    const size_t blank = std::min(line.find(' '), line.size());
    const std::string_view word = line.substr(0, blank);
    const std::string_view value = line.substr(std::min(blank + 1, line.size()));
    if (value.empty()) Fail("a word without a value");
    if (word == "host" && has_hosts_) {
      if (Integer(value, kMaxRank) != static_cast<int32_t>(needs->hosts.size())) {
        Fail("hosts are not in the order of ranks");
      }
      needs->hosts.emplace_back();
    } else if (word == "feature" || word == "cuda") {
      if (needs->hosts.empty()) Fail("a need of no host");
      HostNeeds& host = needs->hosts.back();
      if (word == "feature") {
        host.features.emplace_back(value);
      } else {
        host.cuda.push_back(Cuda(value));
      }
    } else {
      std::string* field = word == "machine"   ? &needs->machine
                           : word == "code"    ? &needs->code
                           : word == "program" ? &needs->program
                           : word == "weights" ? &needs->weights
                                               : nullptr;
      if (field == nullptr || !field->empty()) {
        Fail("expected machine, code, program or weights once each, feature, cuda or end");
      }
      *field = value;
    }
  }

  CudaNeed Cuda(std::string_view value) {
    const size_t blank = value.find(' ');
    if (blank == std::string_view::npos) Fail("expected 'cuda <device id> <capability>'");
    return {Integer(value.substr(0, blank), 1023), Integer(value.substr(blank + 1), 9999)};
  }

  int32_t Integer(std::string_view text, int32_t max) {
    int32_t value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || value < 0 || value > max) {
      Fail("expected a number from 0 to " + std::to_string(max));
    }
    return value;
  }

  [[noreturn]] void Fail(const std::string& what) const {
    file_.Fail("needs line " + std::to_string(line_) + ": " + what +
               "; the file was changed, compile it again");
  }

  const OpenFile& file_;
  std::string_view text_;
  size_t begin_ = 0;
  int line_ = 0;
  bool has_hosts_ = false;
};

std::string CapabilityText(int32_t capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace

Needs ParseNeeds(const OpenFile& file, std::string_view text) {
  return NeedsReader(file, text).Read();
}

void CheckTogether(const OpenFile& file, const Needs& needs, const FileParts& parts) {
  const std::pair<Part, const std::string*> expected[] = {
      {kCode, &needs.code}, {kProgram, &needs.program}, {kWeights, &needs.weights}};
  for (const auto& [part, digest] : expected) {
    if (HexOf(parts[part].digest) == *digest) continue;
    const char* name = part == kCode ? "code" : part == kProgram ? "program" : "weights";
    file.Fail(std::string("its ") + name + " is not the one that it was written with (SHA-256 " +
              HexOf(parts[part].digest) + ", expected " + *digest +
              "): parts of several files were put together; compile the model again");
  }
}

std::vector<std::string> MissingOfProcessor(const Needs& needs, size_t host) {
  if (needs.machine != MachineName()) {
    return {"has code for " + needs.machine + ", this machine is " + MachineName()};
  }
  const std::vector<std::string> present = PresentFeatures();
  std::string absent;
  for (const std::string& feature : needs.hosts[host].features) {
    if (std::ranges::find(present, feature) != present.end()) continue;
    absent += (absent.empty() ? "" : ", ") + feature;
  }
  if (absent.empty()) return {};
  return {"its code uses " + absent + ", which this processor does not have"};
}

std::vector<std::string> MissingOfGpus(const Needs& needs, size_t host) {
  std::vector<std::string> missing;
  for (const CudaNeed& need : needs.hosts[host].cuda) {
    const std::optional<int32_t> found = FindCapability(need.device_id);
    if (!found.has_value() || *found >= need.capability) continue;
    missing.push_back("its code for cuda:" + std::to_string(need.device_id) +
                      " needs compute capability " + CapabilityText(need.capability) +
                      ", this GPU has " + CapabilityText(*found) + " (-arch=sm_" +
                      std::to_string(*found) + ")");
  }
  return missing;
}

void ExpectNothingMissing(const OpenFile& file, const std::vector<std::string>& missing) {
  if (missing.empty()) return;
  std::string text;
  for (const std::string& what : missing) text += (text.empty() ? "" : "; ") + what;
  throw Error(ErrorKind::kExecution,
              file.path() + ": " + text +
                  "; compile the model for this machine (the targets' -mcpu, -mattr and -arch), or "
                  "load it from Python with on_missing=\"replan\"");
}

}  // namespace heteroplace::exec
