#include "exec/file/sealed_code.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

[[noreturn]] void FailBy(const std::string& name, const char* call, int code) {
  throw Error(ErrorKind::kExecution, name + ": its code cannot be put into memory (" + call + ": " +
                                         std::generic_category().message(code) +
                                         "); free memory or allow more open files");
}

}  // namespace

SealedCode::SealedCode(const std::string& name, const std::string& image) {
  path_ = "/proc/self/fd/";
  path_.reserve(path_.size() + 10);  // nothing may throw between here and the end but by FailBy
  descriptor_ = memfd_create("heteroplace-kernels", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor_ < 0) FailBy(name, "memfd_create", errno);
  const char* failed = nullptr;
  for (size_t written = 0; written < image.size() && failed == nullptr;) {
    const ssize_t count = write(descriptor_, image.data() + written, image.size() - written);
    if (count >= 0) {
      written += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      failed = "write";
    }
  }
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (failed == nullptr && fcntl(descriptor_, F_ADD_SEALS, kSeals) != 0) failed = "fcntl";
  if (failed != nullptr) {
    const int code = errno;
    close(descriptor_);
    FailBy(name, failed, code);
  }
  path_ += std::to_string(descriptor_);
}

SealedCode::~SealedCode() {
  // The loader knows libraries by their paths: while it holds this one, another copy must not get
  // the same descriptor, or it would be taken for this.
  void* loaded = dlopen(path_.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (loaded != nullptr) {
    dlclose(loaded);
    return;
  }
  close(descriptor_);
}

}  // namespace heteroplace::exec
