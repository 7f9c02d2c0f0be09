// The end of a compiled file -> where its parts are, and what their digests must be.
//
//   [code: an ELF library of the kernels][zeros to a page]
//   [weights][SHA-256 of every 4 MiB of them][needs][program][manifest][source, may be empty]
//   [table: for each of the seven its kind, offset, bytes and SHA-256]
//   [signature, 96 bytes, or nothing: Ed25519 public key, signature of the tail]
//   [tail, 64 bytes: magic, format version, bytes of table and signature, bytes of file, SHA-256 of
//    the table]
//
// Numbers are little-endian. The digest of the weights is that of their list of digests, so the
// tail stands for every byte. The last 64 bytes of older formats begin with the same magic and
// their version.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "exec/file/open_file.h"
#include "exec/file/sha256.h"
#include "exec/file/signature.h"

namespace heteroplace::exec {

/*! \brief Version of the file format that this library reads. */
inline constexpr uint32_t kFileFormat = 5;

/*! \brief Bytes of weights under one digest. */
inline constexpr uint64_t kWeightChunkBytes = uint64_t{4} << 20;

/*! \brief Weights begin at a multiple of this, to be mapped. */
inline constexpr uint64_t kFilePageBytes = 4096;

/*! \brief Parts in the order of the file; the kind of a row of the table is the position + 1. */
enum Part : size_t {
  kCode,
  kWeights,
  kChunkDigests,
  kNeeds,
  kProgram,
  kManifest,
  kSource,
  kNumParts
};

struct FilePart {
  uint64_t offset;
  uint64_t bytes;
  Digest digest;
};

using FileParts = std::array<FilePart, kNumParts>;

/*! \brief What stands at the end of a file. */
struct FileEnd {
  FileParts parts;
  /*! \brief Public key and signature, `kSignatureBytes`; empty: the file is not signed. */
  std::string signature;
  /*! \brief What is signed. */
  std::string tail;
};

/*!
 * \brief Reads the table, and checks it: format, digest, sizes, no byte of the file outside a part.
 *
 * A signature is read, not checked.
 * \throws Error kArtifact.
 */
FileEnd ReadEnd(const OpenFile& file);

/*! \brief Reads a part whole. \throws Error kArtifact: its digest differs from the table's. */
std::string ReadPart(const OpenFile& file, const FileParts& parts, Part part);

}  // namespace heteroplace::exec
