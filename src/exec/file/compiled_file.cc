#include "exec/file/compiled_file.h"

#include <algorithm>

#include "exec/program/program.h"
#include "support/error.h"

namespace heteroplace::exec {

CompiledFile::CompiledFile(const std::string& path)
    : file_(path),
      parts_(ReadParts(file_)),
      needs_(ParseNeeds(file_, ReadPart(file_, parts_, kNeeds))) {
  CheckTogether(file_, needs_, parts_);
  program_ = ReadPart(file_, parts_, kProgram);
  manifest_ = ReadPart(file_, parts_, kManifest);
}

ElfImage CompiledFile::CheckedCode() const {
  ElfImage elf(file_.path(), ReadPart(file_, parts_, kCode));
  elf.Check();
  CheckProgram(elf.functions());
  CheckWeights(file_, parts_);
  file_.ExpectUnchanged();
  return elf;
}

void CompiledFile::CheckProgram(const std::vector<std::string>& functions) const {
  Program program;
  try {
    program = ParseProgram(program_);
  } catch (const Error& error) {
    throw Error(error.kind(), file_.path() + ": " + error.what());
  }
  for (const std::string& kernel : program.kernels) {
    if (std::find(functions.begin(), functions.end(), kernel) == functions.end()) {
      file_.Fail("does not have kernel '" + kernel +
                 "'; build the program and its kernels together");
    }
  }
  for (size_t c = 0; c < program.constants.size(); ++c) {
    const Constant& constant = program.constants[c];
    const uint64_t end = static_cast<uint64_t>(constant.blob_offset + constant.bytes);
    if (end > parts_[kWeights].bytes) {
      file_.Fail("constant " + std::to_string(c) + " ends at byte " + std::to_string(end) +
                 " of the weights, which have " + std::to_string(parts_[kWeights].bytes));
    }
  }
}

void CompiledFile::Check() { CheckedCode(); }

void CompiledFile::Load() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (code_ != nullptr) return;
  CheckProcessor(file_, needs_);
  ElfImage image = CheckedCode();
  weights_ = std::make_shared<const WeightsMap>(file_, parts_[kWeights]);
  code_ = std::make_unique<SealedCode>(std::move(image));
}

const std::string& CompiledFile::code_path() const {
  ExpectLoaded();
  return code_->path();
}

const std::shared_ptr<const WeightsMap>& CompiledFile::weights() const {
  ExpectLoaded();
  return weights_;
}

void CompiledFile::ExpectLoaded() const {
  if (code_ != nullptr) return;
  throw Error(ErrorKind::kExecution, file_.path() + ": its code and weights are not loaded");
}

}  // namespace heteroplace::exec
