// One descriptor of a regular file: all that is read of a compiled file is read through it.
//
// A file that is replaced meanwhile (as `export_library` does) is so either the old one or the new
// one as a whole. One that is written over in place is told by `ExpectUnchanged`.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace heteroplace::exec {

/*! \brief An open file, closed with the object. Any thread may read. */
class OpenFile {
 public:
  /*! \throws Error kArtifact: it cannot be read, or is no regular file. */
  explicit OpenFile(const std::string& path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }

  /*! \brief Size in bytes when it was opened. */
  uint64_t bytes() const { return static_cast<uint64_t>(status_.st_size); }

  /*! \brief Reads bytes that lie within the file. \throws Error kArtifact: they are not there. */
  void Read(uint64_t offset, void* data, uint64_t bytes) const;
  std::string ReadText(uint64_t offset, uint64_t bytes) const;

  /*! \brief Checks that nobody has written to the file since. \throws Error kArtifact. */
  void ExpectUnchanged() const;

  /*! \brief Throws kArtifact: the path, and what is wrong. */
  [[noreturn]] void Fail(const std::string& what) const;

 private:
  std::string path_;
  int descriptor_;
  struct stat status_;
};

}  // namespace heteroplace::exec
