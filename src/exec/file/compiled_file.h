// A compiled file -> what an executor is made from, after all checks. One reader for all callers.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "exec/file/needs.h"
#include "exec/file/parts.h"
#include "exec/file/sealed_code.h"
#include "exec/file/weights_map.h"
#include "exec/program/program.h"

namespace heteroplace::exec {

/*! \brief What a caller says of the files that he takes. */
struct FileOptions {
  /*!
   * \brief Files of public Ed25519 keys, PEM: only what one of them has signed is read. None: also
   * what is not signed, and a signature is not looked at.
   */
  std::optional<std::vector<std::string>> trusted_keys;
};

/*!
 * \brief An open compiled file. Any thread may call any function.
 *
 * The constructor reads the texts alone, and maps nothing. `Load` is what an executor needs; the
 * object must outlive the executors that are made of it.
 */
class CompiledFile {
 public:
  /*!
   * \throws Error kArtifact: the file is missing, truncated, damaged, foreign, older, or nobody
   * whom the caller trusts has signed it.
   * \throws Error kExecution: no memory, or no library for signatures.
   */
  explicit CompiledFile(const std::string& path, const FileOptions& options = {});

  /*! \brief The program's text, or those of all hosts; see src/exec/program/format.md. */
  const std::string& program_text() const { return program_; }
  /*! \brief The JSON of the manifest; `heteroplace/files/manifest.py` reads it. */
  const std::string& manifest() const { return manifest_; }
  /*! \brief The Relay module that it was made from, as `heteroplace/relay/source.py` writes it; "":
   * it has none. \throws Error kArtifact: it is damaged. */
  std::string Source() const;
  const Needs& needs() const { return needs_; }

  /*! \brief Public key of who signed it, hexadecimal; "": nobody. See `CheckSignature`. */
  std::string signer() const { return SignerOf(end_.signature); }

  /*! \brief Checks that the signature, if there is one, is of this content by `signer`.
   * \throws Error kArtifact: it is not; kExecution: no library for signatures. */
  void CheckSignature() const;

  /*! \brief What the file needs of processor and GPUs on one of its hosts, by rank, that is not
   * here; empty: nothing. \throws Error kArtifact: it has no such host. */
  std::vector<std::string> Missing(int host = 0) const;

  /*!
   * \brief Checks the code and all weights against their digests and against the program.
   *
   * Nothing is put into memory that could be run.
   * \throws Error kArtifact.
   */
  void Check();

  /*!
   * \brief Does what `Check` does, makes the private copy of the code, and maps the weights; once.
   *
   * Nothing runs yet: a rank of several calls `CheckHost` when it knows which host it is.
   * \throws Error kArtifact; kExecution: this machine cannot run the code of a file for one host.
   */
  void Load();

  /*! \brief Checks that the GPUs can run their code, of a file for one host. \throws Error
   * kExecution. */
  void CheckGpus() const { ExpectNothingMissing(file_, MissingOfGpus(needs_, 0)); }

  /*! \brief Checks that the processor and the GPUs can run the code of a host. \throws Error
   * kExecution; kArtifact: there is no such host. */
  void CheckHost(int host) const { ExpectNothingMissing(file_, Missing(host)); }

  /*! \brief Maps the weights, after `Check`, where the code is not to be run.
   * \throws Error kExecution: the system cannot map them. */
  std::shared_ptr<const WeightsMap> MapWeights() const;

  /*! \brief What loaders take, and the weights, which may outlive the file. \throws Error
   * kExecution before `Load`. */
  const std::string& code_path() const;
  const std::shared_ptr<const WeightsMap>& weights() const;

 private:
  std::string CheckedCode() const;
  void ExpectLoaded() const;
  void CheckPrograms() const;
  void CheckConstants(const Program& program) const;

  OpenFile file_;
  FileEnd end_;
  Needs needs_;
  std::string program_;
  std::string manifest_;
  /*! \brief Held while loading. */
  std::mutex mutex_;
  std::unique_ptr<SealedCode> code_;           // guarded by mutex_ until it is made
  std::shared_ptr<const WeightsMap> weights_;  // guarded by mutex_ until it is made
};

}  // namespace heteroplace::exec
