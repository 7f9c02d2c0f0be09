#include "exec/file/weights_map.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "support/error.h"
#include "support/jobs.h"

namespace heteroplace::exec {

namespace {

/*! \brief Read at once: it stays in a core's cache from the copy to the digest. */
constexpr uint64_t kReadBytes = uint64_t{256} << 10;
/*! \brief Disks and memory do not serve more. */
constexpr int kMaxThreads = 8;

int NumAllowedCores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return CPU_COUNT(&cores);
}

void CheckChunk(const OpenFile& file, const FilePart& weights, uint64_t chunk,
                const std::string& digests) {
  std::vector<char> buffer(kReadBytes);
  const uint64_t begin = chunk * kWeightChunkBytes;
  const uint64_t end = std::min(begin + kWeightChunkBytes, weights.bytes);
  Sha256 hash;
  for (uint64_t at = begin; at < end; at += kReadBytes) {
    const uint64_t count = std::min(kReadBytes, end - at);
    file.Read(weights.offset + at, buffer.data(), count);
    hash.Update(buffer.data(), count);
  }
  const Digest digest = hash.Finish();
  const char* expected = digests.data() + chunk * sizeof(Digest);
  if (!std::equal(digest.begin(), digest.end(), reinterpret_cast<const uint8_t*>(expected))) {
    file.Fail("the SHA-256 of bytes " + std::to_string(begin) + " to " + std::to_string(end) +
              " of its weights differs from the file's list; the file was changed or damaged, "
              "copy or compile it again");
  }
}

}  // namespace

void CheckWeights(const OpenFile& file, const FileParts& parts) {
  const std::string digests = ReadPart(file, parts, kChunkDigests);
  const int num_chunks = static_cast<int>(digests.size() / sizeof(Digest));
  const int num_threads = std::min({NumAllowedCores(), kMaxThreads, num_chunks});
  const auto check = [&](int chunk) {
    CheckChunk(file, parts[kWeights], static_cast<uint64_t>(chunk), digests);
  };
  RunJobs(num_chunks, num_threads, check);
}

WeightsMap::WeightsMap(const OpenFile& file, const FilePart& weights)
    : bytes_(static_cast<int64_t>(weights.bytes)) {
  if (bytes_ == 0) return;
  void* mapped = mmap(nullptr, weights.bytes, PROT_READ, MAP_PRIVATE, file.descriptor(),
                      static_cast<off_t>(weights.offset));
  if (mapped == MAP_FAILED) {
    throw Error(ErrorKind::kExecution, file.path() + ": its " + std::to_string(weights.bytes) +
                                           " bytes of weights cannot be mapped (" +
                                           std::generic_category().message(errno) +
                                           "); allow more virtual memory");
  }
  data_ = mapped;
}

WeightsMap::~WeightsMap() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace heteroplace::exec
