// Host memory in pages, huge ones where the size is worth it. Fresh memory is zero.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "exec/devices/device.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

constexpr int64_t kPageBytes = 4096;

/*! \brief Where a block may begin; a small block at a huge page would waste addresses. */
int64_t Alignment(int64_t bytes) { return bytes < kHugePageBytes ? kPageBytes : kHugePageBytes; }

/*! \brief Bytes of a block in whole small pages: the rest of a huge one would be wasted. */
size_t MappedBytes(int64_t bytes) {
  return static_cast<size_t>((bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
}

class CpuDevice : public Device {
 public:
  void* Allocate(int64_t bytes) override {
    if (bytes == 0) return nullptr;
    // More than needed; what lies outside the aligned part is given back.
    const size_t size = MappedBytes(bytes);
    const size_t slack = static_cast<size_t>(Alignment(bytes));
    void* raw =
        mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
      throw Error(ErrorKind::kExecution, "cannot allocate " + std::to_string(bytes) +
                                             " bytes of host memory: " + std::strerror(errno) +
                                             "; free memory, or plan for a smaller one");
    }
    const size_t over = reinterpret_cast<uintptr_t>(raw) % slack;
    const size_t before = over == 0 ? 0 : slack - over;
    char* data = static_cast<char*>(raw) + before;
    if (before != 0) munmap(raw, before);
    if (before != slack) munmap(data + size, slack - before);
    // Advice only: without huge pages the program is slower, not wrong.
    if (slack == static_cast<size_t>(kHugePageBytes)) madvise(data, size, MADV_HUGEPAGE);
    return data;
  }

  void Free(void* data, int64_t bytes) override {
    if (data != nullptr) munmap(data, MappedBytes(bytes));
  }

  int64_t HeldBytes(int64_t bytes) const override {
    return static_cast<int64_t>(MappedBytes(bytes));
  }

  void Upload(void* dst, const void* src, int64_t bytes) override { Copy(dst, src, bytes); }
  void Download(void* dst, const void* src, int64_t bytes) override { Copy(dst, src, bytes); }
  void CopyWithin(const std::vector<MovedBytes>& all) override {
    for (const MovedBytes& each : all) Copy(each.dst, each.src, each.bytes);
  }

  std::unique_ptr<Stream> MakeStream() override {
    throw Error(ErrorKind::kExecution, "cpu:0 has no streams; its kernels are called directly");
  }

 private:
  static void Copy(void* dst, const void* src, int64_t bytes) {
    if (bytes != 0) std::memcpy(dst, src, static_cast<size_t>(bytes));
  }
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice() { return std::make_unique<CpuDevice>(); }

}  // namespace heteroplace::exec
