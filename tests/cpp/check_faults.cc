// What is left when one kernel call, or one allocation, of an executor fails: nothing. The failure
// goes to one caller, all others get their answers, and no thread, memory, file or slot is lost.
// Arguments: the path of libtvm.so, and of the library of kernels.cc.
#include <dlfcn.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <thread>

#include "random_program.h"
#include "support/error.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

/*! \brief Allocations of the process until one fails; negative: none does. */
std::atomic<int64_t> until_failure{-1};
/*! \brief Blocks of memory that nobody has freed, and bytes of pages that nobody has given back. */
std::atomic<int64_t> num_blocks{0};
std::atomic<int64_t> mapped_bytes{0};

bool Fails() {
  return until_failure.load(std::memory_order_relaxed) >= 0 && until_failure.fetch_sub(1) == 0;
}

void* Allocate(size_t bytes, size_t alignment) {
  void* data = nullptr;
  if (!Fails()) {
    data = alignment == 0
               ? std::malloc(std::max<size_t>(bytes, 1))
               : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  if (data == nullptr) throw std::bad_alloc();
  num_blocks.fetch_add(1);
  return data;
}

void Free(void* data) {
  if (data != nullptr) num_blocks.fetch_sub(1);
  std::free(data);
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* data) noexcept { Free(data); }
void operator delete(void* data, size_t) noexcept { Free(data); }
void operator delete(void* data, std::align_val_t) noexcept { Free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { Free(data); }

extern "C" {
void* __real_mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset);
int __real_munmap(void* data, size_t bytes);
void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset);
int __wrap_munmap(void* data, size_t bytes);

void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) {
  if (Fails()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  mapped_bytes.fetch_add(static_cast<int64_t>(bytes));
  return __real_mmap(at, bytes, protection, flags, file, offset);
}

int __wrap_munmap(void* data, size_t bytes) {
  mapped_bytes.fetch_sub(static_cast<int64_t>(bytes));
  return __real_munmap(data, bytes);
}
}

namespace {

int64_t Entries(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return std::distance(begin(entries), end(entries));
}

/*! \brief Texts of failures that slots and workers keep until the next one, and what TVM keeps for
 * ever for each thread that has had an error. */
int64_t NumKept(int num_failures) { return 16 + 2 * num_failures; }

/*! \brief What a process holds. */
struct Held {
  int64_t threads = Entries("/proc/self/task");
  int64_t files = Entries("/proc/self/fd");
  int64_t pages = mapped_bytes.load();
  int64_t blocks = num_blocks.load();
};

std::string ToText(const Held& held) {
  return std::to_string(held.threads) + " threads, " + std::to_string(held.files) + " files, " +
         std::to_string(held.pages) + " bytes of pages, " + std::to_string(held.blocks) + " blocks";
}

/*!
 * \brief Checks that a process holds what it held before. A thread goes a moment after its end.
 * \param num_kept blocks that it may have beside: texts of failures that will be written over.
 */
void CheckNothingIsLeft(const Held& before, int64_t num_kept) {
  Held now;
  for (int look = 0; look < 1000 && now.threads > before.threads; ++look) {
    const timespec moment{0, 1'000'000};
    nanosleep(&moment, nullptr);
    now = Held();
  }
  const bool is_same = now.threads == before.threads && now.files == before.files &&
                       now.pages == before.pages && now.blocks <= before.blocks + num_kept;
  if (!is_same) test::Fail(__FILE__, __LINE__, ToText(before) + " became " + ToText(now));
}

/*! \brief Does something that may fail of an error or of short memory; whether it has not. */
bool Succeeds(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

/*! \brief One call from its inputs to its outputs, which are right if it ends well. */
void Call(exec::Executor& executor, const Sample& sample) {
  const std::unique_ptr<exec::Request> request = executor.Begin();
  SetInputs(*request, sample);
  request->Submit();
  request->Finish();
  CheckOutputs(*request, sample);
}

/*! \brief What callers do all at once; `arm` comes before the first of it. Number of failures. */
int CallAll(exec::Executor& executor, const std::vector<Sample>& samples,
            const std::function<void()>& arm) {
  std::atomic<int> num_failures{0}, num_ready{0};
  std::atomic<bool> is_begun{false};
  const auto caller = [&](size_t mine) {
    const std::function<void()> works[] = {
        [&] { Call(executor, samples[mine]); },
        [&] { mine == 0 ? static_cast<void>(executor.MemoryBytes()) : executor.Run(); },
        [&] { Call(executor, samples[(mine + 1) % samples.size()]); },
        [&] { mine == 0 ? static_cast<void>(executor.RunTimed()) : Call(executor, samples[mine]); },
        [&] { mine == 0 ? static_cast<void>(executor.Benchmark(3)) : executor.Run(); },
    };
    num_ready.fetch_add(1);  // all that the test itself needs is there
    is_begun.wait(false);
    for (const std::function<void()>& work : works) num_failures += Succeeds(work) ? 0 : 1;
  };
  std::vector<std::thread> callers;
  for (size_t mine = 0; mine < 2; ++mine) callers.emplace_back(caller, mine);
  while (num_ready.load() != 2) std::this_thread::yield();
  arm();
  is_begun.store(true);
  is_begun.notify_all();
  for (std::thread& each : callers) each.join();
  return num_failures;
}

/*! \brief All slots are free, and all answers are right. */
void CheckUsable(exec::Executor& executor, const std::vector<Sample>& samples) {
  std::vector<std::unique_ptr<exec::Request>> requests;
  for (int slot = 0; slot < executor.max_in_flight(); ++slot) {
    requests.push_back(executor.Begin(exec::Limit{}.Within(10'000'000'000)));
    CHECK(requests.back() != nullptr);
  }
  requests.clear();
  for (const Sample& sample : samples) Call(executor, sample);
}

/*! \brief A program with samples, loaded; inputs that nobody gives have values. */
struct Loaded {
  Loaded(Random& random, int num_steps) : samples(2) {
    text = RandomProgram(random, num_steps, &samples);
    executor.emplace(SourceOf(text, 1 + random.Below(3)));
    SetInputs(*executor, samples[0]);
    for (int turn = 0; turn < 2; ++turn) CHECK_EQ(CallAll(*executor, samples, [] {}), 0);
    CheckUsable(*executor, samples);
  }

  std::vector<Sample> samples;
  std::string text;
  std::optional<exec::Executor> executor;
};

/*! \brief Of calls at once, the one fails of which a kernel, or a part of its loop, does. */
void KernelsFail(Random& random) {
  Loaded loaded(random, 4 + random.Below(12));
  void* library = dlopen(library_path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  CHECK(library != nullptr);
  auto* until = static_cast<std::atomic<int64_t>*>(dlsym(library, "until_failure"));
  const Held before;
  int sum = 0;
  for (int64_t count = random.Below(Stride());; count += Stride()) {
    const int num_failures =
        CallAll(*loaded.executor, loaded.samples, [&] { until->store(count); });
    const bool has_failed = until->exchange(-1) < 0;
    CHECK_EQ(num_failures, has_failed ? 1 : 0);
    sum += num_failures;
    CheckUsable(*loaded.executor, loaded.samples);
    if (!has_failed) break;
  }
  CheckNothingIsLeft(before, NumKept(sum));
  dlclose(library);
}

/*! \brief The same where memory is short once; the failure may be one that nobody needs to see. */
void AllocationsOfCallsFail(Random& random) {
  Loaded loaded(random, 4 + random.Below(6));
  const Held before;
  int sum = 0;
  for (int64_t count = random.Below(Stride());; count += Stride()) {
    current_case = "allocation " + std::to_string(count) + " of calls of " + loaded.text;
    const int num_failures =
        CallAll(*loaded.executor, loaded.samples, [&] { until_failure.store(count); });
    const bool has_failed = until_failure.exchange(-1) < 0;
    CHECK(num_failures <= (has_failed ? 1 : 0));
    sum += num_failures;
    CheckUsable(*loaded.executor, loaded.samples);
    if (!has_failed) break;
  }
  current_case = "calls of " + loaded.text;
  CheckNothingIsLeft(before, NumKept(sum));
}

/*! \brief An executor that cannot be loaded for want of memory leaves nothing; the next is whole.
 */
void AllocationsOfLoadingFail(Random& random) {
  Loaded loaded(random, 4);
  const auto load = [&] { const exec::Executor executor(SourceOf(loaded.text, 2)); };
  // TVM keeps a thread's last error for ever: of no other one that is as long.
  exec::LoadTvmAbi(libtvm_path).LeaveError(std::string(4096, ' ').c_str());
  // `loaded` keeps the library: TVM's own loading leaves a block behind where memory is short.
  for (int turn = 0; turn < 2; ++turn) load();
  const Held before;
  for (int64_t count = random.Below(4 * Stride());; count += 4 * Stride()) {
    current_case = "allocation " + std::to_string(count) + " of loading " + loaded.text;
    until_failure.store(count);
    const bool is_loaded = Succeeds(load);
    const bool has_failed = until_failure.exchange(-1) < 0;
    CHECK(is_loaded || has_failed);
    CheckNothingIsLeft(before, 0);
    if (!has_failed) break;
  }
}

/*! \brief A kernel that is sampled on a slow stream: what was issued before the failure still runs,
 * and marks the events between which it is timed. */
void AllocationsOfSamplesFail(Random&) {
  const std::string text =
      "heteroplace-program 1\nspace 0 ram 1 0 256\nqueue 0 q0 fake 1 0 0 200000\n"
      "tensor 0 0 external - 2 32 64\ntensor 1 0 arena 0 2 32 64\ninput x0 0\noutput y0 1\n"
      "kernel 0 twice\ncall 0 7 0 1 0,1 -\nend\n";
  exec::Executor executor(SourceOf(text));
  const Vector x(kExtent, 1);
  executor.SetInput("x0", {exec::kDLFloat, 32, 1}, {kExtent}, x.data());
  const auto sample = [&] { CHECK_EQ(executor.Sample(2, 3, false).size(), size_t{2}); };
  for (int turn = 0; turn < 2; ++turn) sample();
  const Held before;
  int sum = 0;
  for (int64_t count = 0;; ++count) {
    current_case = "allocation " + std::to_string(count) + " of samples";
    until_failure.store(count);
    const bool is_sampled = Succeeds(sample);
    const bool has_failed = until_failure.exchange(-1) < 0;
    CHECK(is_sampled || has_failed);
    sum += is_sampled ? 0 : 1;
    if (!has_failed) break;
  }
  sample();
  CheckNothingIsLeft(before, NumKept(sum));
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 3);
  libtvm_path = arguments[1];
  library_path = arguments[2];
  ForSeeds("kernels fail", 32, KernelsFail);
  ForSeeds("allocations of calls fail", 16, AllocationsOfCallsFail);
  ForSeeds("allocations of samples fail", Stride(), AllocationsOfSamplesFail);
  ForSeeds("allocations of loading fail", 8, AllocationsOfLoadingFail);
  return 0;
}
