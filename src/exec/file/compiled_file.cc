#include "exec/file/compiled_file.h"

#include <new>
#include <utility>

#include "exec/program/bundle.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

[[noreturn]] void FailMemory(const std::string& path) {
  throw Error(ErrorKind::kExecution,
              path + ": memory is short while it is read; free some, then load it again");
}

}  // namespace

CompiledFile::CompiledFile(const std::string& path, const FileOptions& options) try
    : file_(path), end_(ReadEnd(file_)) {
  if (options.trusted_keys.has_value()) {
    CheckTrust(file_, end_.signature, end_.tail, *options.trusted_keys);
  }
  needs_ = ParseNeeds(file_, ReadPart(file_, end_.parts, kNeeds));
  CheckTogether(file_, needs_, end_.parts);
  program_ = ReadPart(file_, end_.parts, kProgram);
  manifest_ = ReadPart(file_, end_.parts, kManifest);
} catch (const std::bad_alloc&) {
  FailMemory(path);
}

std::string CompiledFile::Source() const try {
  return ReadPart(file_, end_.parts, kSource);
} catch (const std::bad_alloc&) {
  FailMemory(file_.path());
}

void CompiledFile::CheckSignature() const {
  if (!end_.signature.empty()) exec::CheckSignature(file_, end_.signature, end_.tail);
}

std::vector<std::string> CompiledFile::Missing(int host) const {
  if (host < 0 || static_cast<size_t>(host) >= needs_.hosts.size()) {
    file_.Fail("is for " + std::to_string(needs_.hosts.size()) + " hosts, and has none of rank " +
               std::to_string(host));
  }
  const size_t rank = static_cast<size_t>(host);
  std::vector<std::string> missing = MissingOfProcessor(needs_, rank);
  for (std::string& what : MissingOfGpus(needs_, rank)) missing.push_back(std::move(what));
  return missing;
}

/*! \brief Checks every part, and returns the library of kernels. */
std::string CompiledFile::CheckedCode() const {
  std::string code = ReadPart(file_, end_.parts, kCode);
  CheckPrograms();
  CheckWeights(file_, end_.parts);
  ReadPart(file_, end_.parts, kSource);
  file_.ExpectUnchanged();
  return code;
}

void CompiledFile::CheckPrograms() const {
  std::vector<Program> programs;
  try {
    programs = ParsePrograms(program_);
  } catch (const Error& error) {
    throw Error(error.kind(), file_.path() + ": " + error.what());
  }
  if (programs.size() != needs_.hosts.size()) {
    file_.Fail("has " + std::to_string(programs.size()) + " programs, and says what " +
               std::to_string(needs_.hosts.size()) +
               " hosts need; the file was changed, compile it again");
  }
  for (const Program& program : programs) CheckConstants(program);
}

/*! \brief The weights of a host's program are in the file. */
void CompiledFile::CheckConstants(const Program& program) const {
  for (size_t c = 0; c < program.constants.size(); ++c) {
    const Constant& constant = program.constants[c];
    const uint64_t end = static_cast<uint64_t>(constant.blob_offset + constant.bytes);
    if (end > end_.parts[kWeights].bytes) {
      file_.Fail("constant " + std::to_string(c) + " ends at byte " + std::to_string(end) +
                 " of the weights, which have " + std::to_string(end_.parts[kWeights].bytes));
    }
  }
}

void CompiledFile::Check() try { CheckedCode(); } catch (const std::bad_alloc&) {
  FailMemory(file_.path());
}

void CompiledFile::Load() try {
  const std::scoped_lock lock(mutex_);
  if (code_ != nullptr) return;
  if (needs_.hosts.size() == 1) ExpectNothingMissing(file_, MissingOfProcessor(needs_, 0));
  const std::string code = CheckedCode();
  weights_ = MapWeights();
  code_ = std::make_unique<SealedCode>(file_.path(), code);
} catch (const std::bad_alloc&) {
  FailMemory(file_.path());
}

std::shared_ptr<const WeightsMap> CompiledFile::MapWeights() const {
  return std::make_shared<const WeightsMap>(file_, end_.parts[kWeights]);
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
