// Workers that wait do parts of others' kernels: who does, and what becomes of failures.
// Arguments: the path of libtvm.so or "", and of the library of kernels.cc.
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include "check.h"
#include "exec/engine/executor.h"
#include "pinned.h"
#include "support/error.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

constexpr int kExtent = 64;       // elements of a vector
constexpr int kMaxTries = 2'000;  // runs until a core that waits was in time once

std::string libtvm_path, library_path;

using Vector = std::vector<float>;

/*! \brief The first two cores that this process may use; fewer if there are not so many. */
std::vector<int> TwoCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE && cores.size() < 2; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

/*! \brief A program of two cores; vectors 0 to 2 are in the arena, 3 is the input x. */
exec::ExecutorSource Source(const std::string& instructions, std::optional<bool> helping) {
  const std::vector<int> cores = TwoCores();
  exec::ExecutorSource source;
  source.libtvm_path = libtvm_path;
  source.library_path = library_path;
  source.helping = helping;
  std::string text = "heteroplace-program 1\nspace 0 ram 1 0 " + std::to_string(12 * kExtent);
  for (int q = 0; q < 2; ++q) {
    text += "\nqueue " + std::to_string(q) + " q" + std::to_string(q) + " cpu 1 0 0 " +
            std::to_string(cores[static_cast<size_t>(q)]);
  }
  for (int slot = 0; slot < 3; ++slot) {
    text += "\ntensor " + std::to_string(slot) + " 0 arena " + std::to_string(4 * kExtent * slot) +
            " 2 32 64";
  }
  text += "\ntensor 3 0 external - 2 32 64\ninput x 3\noutput y 0\noutput z 1\n";
  source.program_text = text + "kernel 0 whose_core\nkernel 1 twice\n" + instructions + "end\n";
  return source;
}

void SetInput(exec::Executor& executor, const Vector& value) {
  executor.SetInput("x", {exec::kDLFloat, 32, 1}, {kExtent}, value.data());
}

/*! \brief The cores on which the parts of the call that writes an output were done. */
std::set<int> CoresOf(exec::Executor& executor, const char* output) {
  Vector out(kExtent);
  executor.GetOutput(output, out.data());
  return {out.begin(), out.end()};
}

/*! \brief The second core waits for a call of one thread. */
const char* const kWaits = "call 0 0 0 1 3,0 -\ncopy 1 1 0 1 0:1\n";
/*! \brief It has done its part already. */
const char* const kIsDone = "copy 1 0 3 1 -\ncall 0 1 0 1 3,0 -\n";
/*! \brief It has joined a later call. */
const char* const kHasJoined = "call 0 0 0 1 3,0 -\njoin 1 1 0 1 -\ncall 0 1 1 2 3,1 -\n";
/*! \brief It has a long call of its own, which ends first or last. */
const char* const kIsAtWork = "call 0 0 0 1 3,0 -\ncall 1 1 0 1 3,1 -\n";

/*! \brief Runs until a call was shared by both cores; false if that never came to pass. */
bool IsShared(exec::Executor& executor, bool is_timed) {
  for (int run = 0; run < kMaxTries; ++run) {
    is_timed ? static_cast<void>(executor.RunTimed()) : executor.Run();
    if (CoresOf(executor, "y").size() == 2) return true;
  }
  return false;
}

void WorkersThatWaitHelp() {
  for (const char* instructions : {kWaits, kIsDone, kHasJoined, kIsAtWork}) {
    for (const bool is_timed : {false, true}) {
      exec::Executor executor(Source(instructions, true));
      CHECK(executor.is_helping());
      SetInput(executor, Vector(kExtent, 1));
      CHECK(IsShared(executor, is_timed));
    }
  }
}

void NobodyHelpsUnlessAsked() {
  const int first = TwoCores()[0];
  for (const char* instructions : {kWaits, kIsDone, kHasJoined}) {
    exec::Executor executor(Source(instructions, false));
    CHECK(!executor.is_helping());
    SetInput(executor, Vector(kExtent, 1));
    const Pinned here(first);  // where a caller does the part of a worker; else he may be moved
    for (int run = 0; run < 50; ++run) {
      executor.Run();
      CHECK(CoresOf(executor, "y") == std::set<int>{first});
    }
  }
}

void MeasuredKernelsHaveNoHelp() {
  const int first = TwoCores()[0];
  exec::Executor executor(Source(kWaits, true));
  SetInput(executor, Vector(kExtent, 1));
  for (int run = 0; run < 20; ++run) {
    executor.ProfileCpu(1);
    CHECK(CoresOf(executor, "y") == std::set<int>{first});
  }
}

/*! \brief A part that fails fails its call, whoever did it; requests after it are right. */
void FailuresOfHelpersAreTold(Random& random) {
  exec::ExecutorSource source = Source(kWaits, true);
  source.max_in_flight = 1 + random.Below(3);
  exec::Executor executor(source);
  SetInput(executor, Vector(kExtent, 1));
  for (int run = 0; run < 30; ++run) {
    const bool fails = random.Below(2) == 0;
    Vector value(kExtent, 1);
    if (fails) value[static_cast<size_t>(random.Below(kExtent))] = -1;
    const std::unique_ptr<exec::Request> request = executor.Begin();
    const std::unique_ptr<exec::Request> beside = executor.Begin(exec::Limit{}.Within(0));
    request->SetInput("x", {exec::kDLFloat, 32, 1}, {kExtent}, value.data());
    request->Submit();
    if (beside != nullptr) {
      beside->Submit();
      if (random.Below(4) == 0) beside->Cancel("cancelled");
    }
    std::string failure;
    try {
      request->Finish();
    } catch (const Error& error) {
      failure = error.what();
    }
    CHECK_EQ(failure.empty(), !fails);
    if (fails) CHECK(failure.find("step 0 failed on queue 'q0'") == 0);
  }
  // What failed parts left behind is gone: a vector of scratch for each core, in a page.
  CHECK(executor.MemoryBytes()[0].workspace <= 2 * 4096);
}

/*! \brief Of a tree as Linux has it: the last cache counts, and caches of instructions do not. */
void CachesTellTheDomain() {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("caches" + std::to_string(getpid()));
  const auto add = [&](int index, const char* level, const char* type, const char* shared) {
    const std::filesystem::path folder =
        root / "cpu5" / "cache" / ("index" + std::to_string(index));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "level") << level << "\n";
    std::ofstream(folder / "type") << type << "\n";
    std::ofstream(folder / "shared_cpu_list") << shared << "\n";
  };
  CHECK_EQ(exec::CacheDomain(5, root), -1);
  add(0, "1", "Data", "5");
  CHECK_EQ(exec::CacheDomain(5, root), 5);
  add(1, "3", "Unified", "4-7,12-15");
  add(2, "3", "Instruction", "0-99");
  add(3, "2", "Unified", "5,13");
  CHECK_EQ(exec::CacheDomain(5, root), 4);
  CHECK_EQ(exec::CacheDomain(6, root), -1);
  std::filesystem::remove_all(root);
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 3);
  libtvm_path = arguments[1];
  library_path = arguments[2];
  CachesTellTheDomain();
  if (TwoCores().size() < 2) return 0;
  WorkersThatWaitHelp();
  NobodyHelpsUnlessAsked();
  MeasuredKernelsHaveNoHelp();
  ForSeeds("failures", 80, FailuresOfHelpersAreTold);
  return 0;
}
