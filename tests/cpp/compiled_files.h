// Compiled files put together byte by byte, from the description in src/exec/file/parts.h.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "check.h"
#include "exec/file/parts.h"

namespace heteroplace::test {

/*! \brief Content of the parts of a file. */
struct FileContent {
  std::string code, weights, needs, program, manifest, source;
  /*! \brief Makes the needs name the code, program and weights beside them. */
  bool is_together = true;
};

inline void PutNumber(uint64_t number, size_t bytes, std::string* to) {
  for (size_t i = 0; i < bytes; ++i) to->push_back(static_cast<char>(number >> (8 * i)));
}

inline std::string Text(const exec::Digest& digest) { return {digest.begin(), digest.end()}; }

inline exec::Digest DigestOf(const std::string& bytes) {
  return exec::Sha256Of(bytes.data(), bytes.size());
}

inline std::string ChunkDigests(const std::string& weights) {
  std::string digests;
  for (size_t at = 0; at < weights.size(); at += exec::kWeightChunkBytes) {
    digests += Text(DigestOf(weights.substr(at, exec::kWeightChunkBytes)));
  }
  return digests;
}

/*! \brief The rows of a table, each packed. */
using Rows = std::vector<std::string>;

/*! \brief All parts one after the other, and the rows that tell of them. */
inline std::string Body(const FileContent& content, Rows* rows) {
  const std::string chunks = ChunkDigests(content.weights);
  std::string needs = content.needs;
  if (content.is_together) {
    needs += "code " + exec::HexOf(DigestOf(content.code)) + "\nprogram " +
             exec::HexOf(DigestOf(content.program)) + "\nweights " + exec::HexOf(DigestOf(chunks)) +
             "\nend\n";
  }
  const std::string* parts[] = {&content.code,    &content.weights,  &chunks,        &needs,
                                &content.program, &content.manifest, &content.source};
  std::string body;
  for (size_t i = 0; i < exec::kNumParts; ++i) {
    if (i == exec::kWeights) body.resize((body.size() + 4095) / 4096 * 4096);
    std::string row;
    PutNumber(i + 1, 8, &row);
    PutNumber(body.size(), 8, &row);
    PutNumber(parts[i]->size(), 8, &row);
    rows->push_back(row + Text(DigestOf(i == exec::kWeights ? chunks : *parts[i])));
    body += *parts[i];
  }
  return body;
}

/*! \brief What stands behind the parts; signed with a key, if there is one. */
inline std::string TableAndTail(const Rows& rows, size_t body_bytes, const std::string& key_path) {
  std::string table;
  for (const std::string& row : rows) table += row;
  const size_t end_bytes = table.size() + (key_path.empty() ? 0 : exec::kSignatureBytes);
  std::string tail("HETEROPLACE\0", 12);
  PutNumber(exec::kFileFormat, 4, &tail);
  PutNumber(end_bytes, 8, &tail);
  PutNumber(body_bytes + end_bytes + 64, 8, &tail);
  tail += Text(DigestOf(table));
  return table + (key_path.empty() ? "" : exec::SignTail(key_path, tail)) + tail;
}

inline std::string FileBytes(const FileContent& content, const std::string& key_path = "") {
  Rows rows;
  const std::string body = Body(content, &rows);
  return body + TableAndTail(rows, body.size(), key_path);
}

/*! \brief A file in memory, which has a path as long as the object lives. */
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : descriptor_(memfd_create("file", MFD_CLOEXEC)) {
    CHECK(descriptor_ >= 0);
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t count = write(descriptor_, bytes.data() + at, bytes.size() - at);
      CHECK(count > 0);
      at += static_cast<size_t>(count);
    }
    path_ = "/proc/self/fd/" + std::to_string(descriptor_);
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  int descriptor_;
  std::string path_;
};

}  // namespace heteroplace::test
