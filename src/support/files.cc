#include "support/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "support/error.h"

namespace heteroplace {

namespace {

[[noreturn]] void Fail(const std::string& path, const char* what, int code) {
  throw Error(ErrorKind::kExecution,
              path + ": " + what + ": " + std::generic_category().message(code));
}

/*! \brief An open file, closed at the end of its scope. */
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, const char* what)
      : number_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (number_ < 0) Fail(path, what, errno);
  }
  ~Descriptor() { close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int number() const { return number_; }

 private:
  int number_;
};

void WriteAll(const std::string& path, int flags, std::string_view bytes) {
  const Descriptor file(path, O_WRONLY | flags, "cannot be written");
  while (!bytes.empty()) {
    const ssize_t count = write(file.number(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) Fail(path, "cannot be written", errno);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace

std::string ReadWhole(const std::string& path) {
  const Descriptor file(path, O_RDONLY, "cannot be read");
  struct stat status{};
  if (fstat(file.number(), &status) != 0) Fail(path, "cannot be read", errno);
  constexpr size_t kMinBytes = 1 << 16;
  // One byte more than it has tells the end without another turn; a pipe has no size.
  std::string bytes(std::max(static_cast<size_t>(status.st_size) + 1, kMinBytes), '\0');
  size_t end = 0;
  for (;;) {
    if (end == bytes.size()) bytes.resize(2 * bytes.size());
    const ssize_t count = read(file.number(), bytes.data() + end, bytes.size() - end);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) Fail(path, "cannot be read", errno);
    if (count == 0) break;
    end += static_cast<size_t>(count);
  }
  bytes.resize(end);
  return bytes;
}

void CheckWritable(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    if (S_ISDIR(status.st_mode)) Fail(path, "cannot be written", EISDIR);
    if (access(path.c_str(), W_OK) != 0) Fail(path, "cannot be written", errno);
    return;
  }
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (access(folder.c_str(), W_OK | X_OK) != 0) Fail(path, "cannot be written", errno);
}

void WriteWhole(const std::string& path, std::string_view bytes) {
  struct stat status{};
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    return WriteAll(path, 0, bytes);
  }
  const std::string part = path + "." + std::to_string(getpid()) + ".part";
  try {
    WriteAll(part, O_CREAT | O_TRUNC, bytes);
    if (rename(part.c_str(), path.c_str()) != 0) Fail(path, "cannot be written", errno);
  } catch (const Error&) {
    unlink(part.c_str());
    throw;
  }
}

}  // namespace heteroplace
