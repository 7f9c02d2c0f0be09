// A compiled file -> what an executor is made from, after all checks. One reader for all callers.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "exec/file/elf_image.h"
#include "exec/file/needs.h"
#include "exec/file/parts.h"
#include "exec/file/sealed_code.h"
#include "exec/file/weights_map.h"

namespace heteroplace::exec {

/*!
 * \brief An open compiled file. Any thread may call any function.
 *
 * The constructor reads the texts alone, and maps nothing. `Load` is what an executor needs; the
 * object must outlive the executors that are made of it.
 */
class CompiledFile {
 public:
  /*! \throws Error kArtifact: the file is missing, truncated, damaged, foreign or older. */
  explicit CompiledFile(const std::string& path);

  /*! \brief The program's text; see src/exec/README.md. */
  const std::string& program_text() const { return program_; }
  /*! \brief The JSON of the manifest; `heteroplace/files/manifest.py` reads it. */
  const std::string& manifest() const { return manifest_; }
  const Needs& needs() const { return needs_; }

  /*!
   * \brief Checks the code and all weights against their digests and against the program.
   *
   * Nothing is put into memory that could be run.
   * \throws Error kArtifact.
   */
  void Check();

  /*!
   * \brief Does what `Check` does, makes the private copy of the code, and maps the weights; once.
   * \throws Error kArtifact; kExecution: this machine cannot run the code.
   */
  void Load();

  /*! \brief Checks that the GPUs can run their code. \throws Error kExecution. */
  void CheckGpus(const TvmAbi& abi) const { exec::CheckGpus(file_, needs_, abi); }

  /*! \brief What loaders take, and the weights, which may outlive the file. \throws Error
   * kExecution before `Load`. */
  const std::string& code_path() const;
  const std::shared_ptr<const WeightsMap>& weights() const;

 private:
  ElfImage CheckedCode() const;
  void ExpectLoaded() const;
  void CheckProgram(const std::vector<std::string>& functions) const;

  OpenFile file_;
  FileParts parts_;
  Needs needs_;
  std::string program_;
  std::string manifest_;
  /*! \brief Held while loading. */
  std::mutex mutex_;
  std::unique_ptr<SealedCode> code_;           // guarded by mutex_ until it is made
  std::shared_ptr<const WeightsMap> weights_;  // guarded by mutex_ until it is made
};

}  // namespace heteroplace::exec
