// Damaged compiled files -> each is refused, or can be loaded; the digests of some are right again.
// Also: keys, and each allocation of a load failing once. Argument: file_kernels.so.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <optional>
#include <utility>

#include "compiled_files.h"
#include "exec/file/compiled_file.h"
#include "exec/file/processor.h"
#include "support/error.h"
#include "support/jobs.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

/*! \brief Allocations of this program until one fails; negative: none does. */
std::atomic<int64_t> allocations_left{-1};
std::atomic<bool> threads_are_short{false};

}  // namespace

// Replaced in the whole program; sanitizers still see malloc and free.
void* operator new(size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  void* memory = std::malloc(std::max<size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
/*! \brief Whether the system has no more threads; called by the standard library. */
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  if (threads_are_short) return EAGAIN;
  static const auto next =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return next(thread, attributes, start, argument);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

// The keys of RFC 8032, section 7.1, test 1: nobody's.
constexpr const char* kPrivateKey =
    "-----BEGIN PRIVATE KEY-----\n"
    "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n"
    "-----END PRIVATE KEY-----\n";
constexpr const char* kPublicKey =
    "-----BEGIN PUBLIC KEY-----\n"
    "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n"
    "-----END PUBLIC KEY-----\n";

constexpr uint64_t kNumbers[] = {
    0,          1,          2,          3,          7,          8,          24,         63,
    64,         4095,       4096,       0x10000,    0x7fffffff, 0x80000000, 0xffffffff, 0x100000000,
    1ULL << 60, 1ULL << 62, ~0ULL >> 1, 1ULL << 63, ~0ULL - 7,  ~0ULL};

std::string library;

std::string Program() {
  return "heteroplace-program 1\nspace 0 ram 1 0 4096\nqueue 0 a cpu 1 0 0 0\n"
         "queue 1 b cpu 1 0 0 1\nconstant 0 0 64 256\n"
         "tensor 0 0 external - 2 32 8,8\ntensor 1 0 arena 0 2 32 8,8\n"
         "tensor 2 0 arena 1024 2 32 8,8\ntensor 3 0 constant 0 2 32 8,8\n"
         "input x 0\noutput y 2\nkernel 0 first\nkernel 1 second\n"
         "call 0 0 0 1 0,3,1 -\njoin 1 1 0 1 -\ncall 0 1 1 2 1,2 -\nend\n";
}

FileContent Good() {
  FileContent content;
  content.code = library;
  content.weights.assign(3000, 'w');
  content.needs = "heteroplace-needs 1\nmachine " + exec::MachineName() + "\ncuda 0 80\n";
  content.program = Program();
  content.manifest = "{}";
  content.source = "a module";
  return content;
}

/*! \brief Opens, checks and loads a file, and looks its kernels up; false: it is refused. */
bool IsAccepted(const std::string& bytes, const exec::FileOptions& options = {}) {
  const MemoryFile memory(bytes);
  try {
    exec::CompiledFile file(memory.path(), options);
    file.Source();
    file.Load();
    const auto* weights = static_cast<const char*>(file.weights()->data());
    CHECK(std::count(weights, weights + file.weights()->bytes(), 'x') >= 0);  // all can be read
    void* code = dlopen(file.code_path().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (code == nullptr) return false;
    for (const char* name : {"first", "second", "none"}) dlsym(code, name);
    dlclose(code);
    return true;
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find(memory.path()) != std::string::npos);
    return false;
  }
}

uint64_t OtherNumber(uint64_t old, size_t size, Random& random) {
  switch (random.Below(4)) {
    case 0: {
      constexpr int64_t kNear[] = {-4096, -24, -16, -8, -1, 1, 4, 8, 16, 24, 64, 4096};
      return old + static_cast<uint64_t>(kNear[random.Below(std::size(kNear))]);
    }
    case 1:
      return old ^ (uint64_t{1} << random.Below(64));
    case 2:
      return static_cast<uint64_t>(random.Below(static_cast<int>(size)));
    default:
      return kNumbers[random.Below(std::size(kNumbers))];
  }
}

/*! \brief Changes a number of 1, 2, 4 or 8 bytes that begins in a range of bytes. */
void ChangeNumber(size_t begin, size_t end, std::string* bytes, Random& random) {
  const size_t width = size_t{1} << random.Below(4);
  end = std::min(end, bytes->size());
  if (end < begin + width) return;
  const size_t at =
      begin + static_cast<size_t>(random.Below(static_cast<int>((end - begin) / width))) * width;
  uint64_t number = 0;
  std::memcpy(&number, bytes->data() + at, width);
  number = OtherNumber(number, bytes->size(), random);
  std::memcpy(bytes->data() + at, &number, width);
}

/*! \brief Lines left out, twice there, with other words. */
void ChangeText(std::string* text, Random& random) {
  std::vector<std::string> lines;
  for (size_t begin = 0, end; begin < text->size(); begin = end + 1) {
    end = std::min(text->find('\n', begin), text->size());
    lines.push_back(text->substr(begin, end - begin));
  }
  const auto any = [&] {
    return static_cast<size_t>(random.Below(static_cast<int>(lines.size())));
  };
  const size_t at = any();
  const int kind = random.Below(6);
  if (kind == 0) {
    lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(at));
  } else if (kind == 1) {
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(any()), lines[at]);
  } else {
    const size_t blank = lines[at].find(' ', static_cast<size_t>(random.Below(30)));
    const size_t begin = blank == std::string::npos ? 0 : blank + 1;
    const size_t end = std::min(lines[at].find(' ', begin), lines[at].size());
    constexpr const char* kWords[] = {
        "-",  "",         "0:1",  "1:9", "-1",   "99999999999999999999",
        "\"", "external", "\xff", "0,0", "2,1,0"};
    const uint64_t number = kNumbers[random.Below(std::size(kNumbers))];
    lines[at].replace(begin, end - begin,
                      kind < 4 ? std::to_string(number) : kWords[random.Below(std::size(kWords))]);
  }
  text->clear();
  for (const std::string& line : lines) *text += line + "\n";
}

std::string WithTexts(Random& random) {
  FileContent content = Good();
  std::string* text = random.Below(4) == 0 ? &content.needs : &content.program;
  for (int changes = 1 + random.Below(3); changes > 0; --changes) ChangeText(text, random);
  content.is_together = random.Below(20) != 0;
  return FileBytes(content);
}

std::string WithTable(Random& random) {
  Rows rows;
  std::string body = Body(Good(), &rows);
  std::string& row = rows[static_cast<size_t>(random.Below(static_cast<int>(rows.size())))];
  ChangeNumber(0, 24, &row, random);
  if (random.Below(3) == 0) std::swap(rows[0], row);
  std::string end = TableAndTail(rows, body.size(), "");
  if (random.Below(3) == 0) ChangeNumber(end.size() - 52, end.size() - 32, &end, random);
  return body + end;
}

std::string WithBytes(Random& random) {
  std::string bytes = FileBytes(Good());
  const auto at = static_cast<size_t>(random.Below(static_cast<int>(bytes.size())));
  const int kind = random.Below(3);
  if (kind == 0) return bytes.substr(0, at);
  if (kind == 1) return bytes + bytes.substr(at);
  ChangeNumber(0, bytes.size(), &bytes, random);
  return bytes;
}

void TestDamagedFiles() {
  int num_accepted = 0, num_refused = 0;
  ForSeeds("damaged files", 10'000, [&](Random& random) {
    constexpr std::string (*kKinds[])(Random&) = {WithTexts, WithTexts, WithTable, WithBytes};
    const std::string bytes = kKinds[random.Below(std::size(kKinds))](random);
    ++(IsAccepted(bytes) ? num_accepted : num_refused);
  });
  std::printf("%d accepted, %d refused\n", num_accepted, num_refused);
  CHECK(num_accepted > num_refused / 50 && num_refused > num_accepted);
}

void TestEveryBitIsUnderADigest() {
  const std::string good = FileBytes(Good());
  ForSeeds("bits", 4000, [&](Random& random) {
    std::string bytes = good;
    const auto at = static_cast<size_t>(random.Below(static_cast<int>(bytes.size())));
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.Below(8)));
    CHECK(!IsAccepted(bytes));
    CHECK(!IsAccepted(good.substr(0, at)));
  });
}

void TestSignatures() {
  const MemoryFile private_key(kPrivateKey), public_key(kPublicKey);
  const exec::FileOptions trusting{std::vector<std::string>{public_key.path()}};
  const std::string signed_bytes = FileBytes(Good(), private_key.path());
  CHECK(IsAccepted(signed_bytes, trusting));
  CHECK(IsAccepted(signed_bytes));
  CHECK(!IsAccepted(FileBytes(Good()), trusting));
  CHECK(!IsAccepted(signed_bytes, {std::vector<std::string>{}}));
  ForSeeds("signatures", 2000, [&](Random& random) {
    // One bit of what stands behind the parts, of which some is the key and the signature.
    std::string bytes = signed_bytes;
    const size_t end = 7 * 56 + exec::kSignatureBytes + 64;
    const size_t at = bytes.size() - 1 - static_cast<size_t>(random.Below(static_cast<int>(end)));
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.Below(8)));
    CHECK(!IsAccepted(bytes, trusting));
    // Other content that is sealed anew, with the old signature.
    FileContent other = Good();
    other.weights[static_cast<size_t>(random.Below(3000))] = 'x';
    bytes = FileBytes(other, private_key.path());
    const size_t signature = bytes.size() - 64 - exec::kSignatureBytes;
    bytes.replace(signature, exec::kSignatureBytes, signed_bytes, signature, exec::kSignatureBytes);
    CHECK(!IsAccepted(bytes, trusting));
  });
  constexpr const char* kNone[] = {"libheteroplace-none.so"};
  try {
    exec::SignTail(private_key.path(), "tail", kNone);
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kExecution);
    CHECK(std::strstr(error.what(), "libheteroplace-none.so") != nullptr);
    CHECK(std::strstr(error.what(), "install it") != nullptr);
  }
}

int64_t NumDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

/*! \brief Opens and loads, as somebody does who then makes an executor; the error, if any. */
std::optional<Error> LoadOnce(const std::string& path) {
  try {
    exec::CompiledFile file(path);
    file.Load();
    allocations_left = -1;
    return std::nullopt;
  } catch (const Error& error) {
    allocations_left = -1;
    return error;
  }
}

/*! \brief A file whose weights are checked by two threads, where there are two cores. */
std::string LargeFile() {
  FileContent content = Good();
  content.weights.resize(exec::kWeightChunkBytes + 1);
  return FileBytes(content);
}

void TestThreadsAreShort() {
  const MemoryFile memory(LargeFile());
  threads_are_short = true;
  CHECK(!LoadOnce(memory.path()).has_value());
  const std::function<void(int)> nothing = [](int) {};
  RunJobs(3, 2, nothing);
  try {
    RunJobs(3, 2, nothing, [] {});  // here only other threads work
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kExecution);
    CHECK(std::strstr(error.what(), "allow more of them") != nullptr);
  }
  threads_are_short = false;
}

void TestEachAllocationFails() {
  // Descriptors of three digits, whose paths are long enough to be allocated.
  std::deque<MemoryFile> others;
  while (others.size() < 100) others.emplace_back("");
  const MemoryFile memory(LargeFile());
  CHECK(!LoadOnce(memory.path()).has_value());
  const int64_t num_descriptors = NumDescriptors();
  int64_t failing = NumberIn("TURN") % Stride();
  for (bool is_loaded = false; !is_loaded; failing += Stride()) {
    current_case = "allocation " + std::to_string(failing);
    allocations_left = failing;
    const std::optional<Error> error = LoadOnce(memory.path());
    is_loaded = !error.has_value();
    if (error.has_value()) {
      CHECK(error->kind() == ErrorKind::kExecution);
      CHECK(std::strstr(error->what(), "memory is short") != nullptr);
    }
    CHECK_EQ(NumDescriptors(), num_descriptors);
  }
  CHECK(failing > 50);
  std::printf("each of %lld allocations fails\n", static_cast<long long>(failing));
}

void TestDescriptorsAreShort() {
  const MemoryFile memory(FileBytes(Good()));
  rlimit before;
  getrlimit(RLIMIT_NOFILE, &before);
  const int64_t num_descriptors = NumDescriptors();
  int num_failed = 0;
  for (rlim_t limit = 0; limit < 64; ++limit) {
    current_case = std::to_string(limit) + " descriptors";
    const rlimit few{limit, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    const std::optional<Error> error = LoadOnce(memory.path());
    setrlimit(RLIMIT_NOFILE, &before);
    if (error.has_value()) {
      CHECK(std::strstr(error->what(), "Too many open files") != nullptr);
      ++num_failed;
    }
    CHECK_EQ(NumDescriptors(), num_descriptors);
  }
  CHECK(num_failed > 0 && num_failed < 64);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK_EQ(argc, 2);
  std::ifstream stream(argv[1], std::ios::binary);
  library.assign(std::istreambuf_iterator<char>(stream), {});
  CHECK(IsAccepted(FileBytes(Good())));
  TestDamagedFiles();
  TestEveryBitIsUnderADigest();
  TestSignatures();
  TestThreadsAreShort();
  TestEachAllocationFails();
  TestDescriptorsAreShort();
}
