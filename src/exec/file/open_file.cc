#include "exec/file/open_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

std::string MessageOf(int code) { return std::generic_category().message(code); }

}  // namespace

OpenFile::OpenFile(const std::string& path) : path_(path) {
  const size_t null = path.find('\0');
  if (null != std::string::npos) {
    // The system would open what the part before it names.
    path_[null] = '?';
    Fail("the path holds a zero byte after " + std::to_string(null) + " bytes; no file has that");
  }
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) Fail("cannot be read: " + MessageOf(errno));
  std::string fault;
  if (fstat(descriptor_, &status_) != 0) {
    fault = "cannot be read: " + MessageOf(errno);
  } else if (S_ISDIR(status_.st_mode)) {
    fault = "cannot be read: " + MessageOf(EISDIR);
  } else if (!S_ISREG(status_.st_mode)) {
    fault = "is no regular file; a compiled file is mapped, so copy it to one";
  }
  if (fault.empty()) return;
  close(descriptor_);
  Fail(fault);
}

OpenFile::~OpenFile() { close(descriptor_); }

void OpenFile::Read(uint64_t offset, void* data, uint64_t bytes) const {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t count = pread(descriptor_, to, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) Fail("cannot be read: " + MessageOf(errno));
    if (count == 0) Fail("has become shorter while it was read; load it again");
    to += count;
    offset += static_cast<uint64_t>(count);
    bytes -= static_cast<uint64_t>(count);
  }
}

std::string OpenFile::ReadText(uint64_t offset, uint64_t bytes) const {
  std::string text(bytes, '\0');
  Read(offset, text.data(), bytes);
  return text;
}

void OpenFile::ExpectUnchanged() const {
  struct stat now;
  if (fstat(descriptor_, &now) != 0) Fail("cannot be read: " + MessageOf(errno));
  const bool is_same = now.st_size == status_.st_size &&
                       now.st_mtim.tv_sec == status_.st_mtim.tv_sec &&
                       now.st_mtim.tv_nsec == status_.st_mtim.tv_nsec;
  if (!is_same) {
    Fail(
        "was written to while it was loaded; write a new file and rename it to this name (as "
        "export_library does), then load it again");
  }
}

void OpenFile::Fail(const std::string& what) const {
  throw Error(ErrorKind::kArtifact, path_ + ": " + what);
}

}  // namespace heteroplace::exec
