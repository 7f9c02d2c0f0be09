// The executor's queues and workers: random programs over cores and fake devices, with failures.
// Arguments: the path of libtvm.so or "", and of the library of kernels.cc.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <thread>

#include "exec/engine/engine.h"
#include "exec/team/threads.h"
#include "exec/trace/trace_json.h"
#include "random_program.h"
#include "support/error.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

exec::SerialRule AnyRule(Random& random) {
  constexpr exec::SerialRule kRules[] = {exec::SerialRule::kNever, exec::SerialRule::kWhereFaster,
                                         exec::SerialRule::kAlways};
  return kRules[random.Below(3)];
}

void RunSomehow(exec::Executor& executor, int way) {
  if (way == 0) executor.Run();
  if (way == 1) executor.RunTimed();
  if (way == 2) executor.Benchmark(5);
  if (way == 3) executor.Profile(3);
}

/*! \brief A program gives the values of its order however it is run, also after failed runs. */
void EqualsProgramOrder(Random& random) {
  std::vector<Sample> samples(1);
  const int num_steps = 10 + random.Below(30);
  exec::ExecutorSource source = SourceOf(RandomProgram(random, num_steps, &samples));
  source.helping = random.Below(4) != 0;
  source.serial = AnyRule(random);
  exec::Executor executor(source);
  for (int run = 0; run < 8; ++run) {
    const bool fails = run % 3 == 1;
    SetInputs(executor, samples[0], fails);
    bool has_failed = false;
    try {
      RunSomehow(executor, random.Below(4));
    } catch (const Error& error) {
      has_failed = error.kind() == ErrorKind::kExecution;
    }
    CHECK_EQ(has_failed, fails);
    // One vector for `twice` itself and two for a part of its loop, on two workers and the caller.
    const int64_t scratch = executor.MemoryBytes()[0].workspace;
    CHECK(scratch <= 3 * 4096);
    if (!fails) CheckOutputs(executor, samples[0]);
  }
}

/*! \brief One call from its inputs to its outputs, that may fail or be cancelled. */
void CallOnce(exec::Executor& executor, const Sample& sample, bool fails, bool is_cancelled) {
  const std::unique_ptr<exec::Request> request = executor.Begin();
  SetInputs(*request, sample, fails);
  request->Submit();
  if (is_cancelled) request->Cancel("cancelled");
  std::string failure;
  try {
    request->Finish();
  } catch (const Error& error) {
    failure = error.what();
  }
  if (failure == "cancelled") {
    CHECK(is_cancelled);
    return;
  }
  CHECK_EQ(!failure.empty(), fails);
  if (!fails) CheckOutputs(*request, sample);
}

/*! \brief Records one call and whatever others do meanwhile, unless another caller records. */
void RecordCalls(exec::Executor& executor, const Sample& sample) {
  try {
    executor.StartTrace(1 + static_cast<int64_t>(sample.inputs.size()));
  } catch (const Error&) {
    return;
  }
  CallOnce(executor, sample, /*fails=*/false, /*is_cancelled=*/false);
  exec::Trace trace = executor.StopTrace();
  CHECK(!trace.requests.empty());
  CHECK_EQ(trace.num_unfinished, 0);
  CHECK(!exec::TraceJson(executor.program(), trace).empty());
  std::map<std::pair<int64_t, int32_t>, int64_t> num_done;
  std::map<int64_t, int64_t> last_ns;  // of a queue, which does one thing at a time
  std::set<int64_t> serial;
  for (const exec::TraceRequest& request : trace.requests) {
    if (request.is_serial) serial.insert(request.request);
  }
  std::sort(trace.events.begin(), trace.events.end(), [](const auto& one, const auto& other) {
    return std::pair(one.start_ns, one.finish_ns) < std::pair(other.start_ns, other.finish_ns);
  });
  for (const exec::TraceEvent& event : trace.events) {
    CHECK(event.start_ns <= event.finish_ns && event.wait_ns >= 0);
    // Serial requests may overlap.
    const auto row = serial.contains(event.request) ? -1 - event.request : event.queue;
    CHECK(last_ns[row] <= event.start_ns - event.wait_ns);
    last_ns[row] = event.finish_ns;
    if (event.is_done) ++num_done[{event.request, event.queue}];
  }
  const std::vector<exec::Queue>& queues = executor.program().queues;
  for (const exec::TraceRequest& request : trace.requests) {
    CHECK(request.start_ns <= request.finish_ns);
    for (size_t q = 0; q < queues.size(); ++q) {
      const int64_t length = static_cast<int64_t>(queues[q].instructions.size());
      const int64_t found = num_done[{request.request, static_cast<int32_t>(q)}];
      CHECK(request.has_failed ? found <= length : found == length);
    }
  }
}

/*! \brief Each of many callers gets its own answer, whatever becomes of the others. */
void CallersAreIndependent(Random& random) {
  std::vector<Sample> samples(4);
  const int num_steps = 10 + random.Below(20);
  const std::string text = RandomProgram(random, num_steps, &samples);
  exec::ExecutorSource source = SourceOf(text, 1 + random.Below(4));
  source.helping = random.Below(4) != 0;
  source.serial = AnyRule(random);
  exec::Executor executor(source);
  SetInputs(executor, samples[0]);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back(
        [&, mine = Random(static_cast<uint64_t>(random.Below(1 << 30)))]() mutable {
          for (int call = 0; call < 8; ++call) {
            const Sample& sample = samples[static_cast<size_t>(mine.Below(4))];
            CallOnce(executor, sample, mine.Below(4) == 0, mine.Below(4) == 0);
            if (mine.Below(8) == 0) CHECK(executor.MemoryBytes()[0].arena > 0);
            if (mine.Below(4) == 0) RecordCalls(executor, samples[0]);
          }
          // Dropped in flight: nobody waits for it.
          const std::unique_ptr<exec::Request> request = executor.Begin();
          SetInputs(*request, samples[0]);
          request->Submit();
        });
  }
  for (std::thread& caller : callers) caller.join();
}

/*! \brief Whoever has got his request back finds the engine idle, as one that forks then must. */
void EndedRequestsAreCompleted(Random& random) {
  std::vector<Sample> samples(1);
  exec::ExecutorSource source = SourceOf(RandomProgram(random, 1, &samples), 1 + random.Below(3));
  source.serial = AnyRule(random);
  exec::Engine engine(source);
  exec::Slot* slot = engine.slots().Acquire({});
  std::atomic<int64_t> number{-1};
  const int usable = exec::Cores().usable.exchange(random.Below(2) * 64);  // callers sleep, or spin
  for (int request = 0; request < 500; ++request) {
    engine.Submit(slot, {}, /*is_waited=*/false, &number);
    CHECK(engine.Await(slot, {}));
    CHECK(engine.IsIdle());
  }
  exec::Cores().usable.store(usable);
  engine.slots().Release(slot);
  CHECK(engine.Stop());
}

/*! \brief A caller whose time is up goes, and the worker that is at his sample need not know. */
void ASampleMayBeLeft(Random&) {
  const std::string text =
      "heteroplace-program 1\nspace 0 ram 1 0 256\nqueue 0 q0 fake 1 0 0 300000000\n"
      "tensor 0 0 external - 2 32 64\ntensor 1 0 arena 0 2 32 64\ninput x0 0\noutput y0 1\n"
      "kernel 0 twice\ncall 0 7 0 1 0,1 -\nend\n";
  exec::Executor executor(SourceOf(text));
  const Vector x(kExtent, 1);
  executor.SetInput("x0", {exec::kDLFloat, 32, 1}, {kExtent}, x.data());
  std::string failure;
  try {
    executor.Sample(2, 1, false, exec::Limit{}.Within(1'000'000));
  } catch (const Error& error) {
    failure = error.what();
  }
  CHECK(failure.find("cannot be used until it does") != std::string::npos);
  for (failure = "at work"; !failure.empty();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    try {
      executor.Run();
      failure.clear();
    } catch (const Error& error) {
      failure = error.what();
      CHECK(failure.find("cannot be used until this ends") != std::string::npos);
    }
  }
}

/*! \brief A thread that looks at a device now and then wakes when it says. */
void WhoWaitsForDevicesSleepsExactly(Random&) {
  int64_t exact_ns = -1;
  std::thread([&] {
    exec::AskForExactSleep();
    exact_ns = prctl(PR_GET_TIMERSLACK);
  }).join();
  const std::string core = std::to_string(Cores().front());
  exec::Executor executor(
      SourceOf("heteroplace-program 1\nspace 0 ram 1 0 512\nqueue 0 q0 cpu 1 0 0 " + core +
               "\nqueue 1 q1 fake 1 0 0 0\ntensor 0 0 external - 2 32 64\n"
               "tensor 1 0 arena 0 2 32 64\ntensor 2 0 arena 256 2 32 64\n"
               "input x0 0\noutput y0 1\noutput y1 2\nkernel 0 timer_slack\nkernel 1 twice\n"
               "call 1 0 1 1 0,2 -\ncall 0 1 0 1 2,1 1:1\nend\n"));
  const Vector x(kExtent, 1);
  executor.SetInput("x0", {exec::kDLFloat, 32, 1}, {kExtent}, x.data());
  executor.Run();
  Vector out(kExtent);
  executor.GetOutput("y0", out.data());
  CHECK_EQ(static_cast<int64_t>(out[0]), exact_ns);
}

/*! \brief A process may fork while another thread loads an executor, or ends one. */
void AForkMeetsNoHalfOfAnEngine(Random& random) {
  std::vector<Sample> samples(1);
  exec::ExecutorSource source = SourceOf(RandomProgram(random, 10, &samples), 1 + random.Below(2));
  source.serial = AnyRule(random);
  std::atomic<bool> is_over{false};
  std::thread forks([&] {
    while (!is_over.load()) {
      const pid_t child = fork();
      if (child == 0) _exit(0);
      CHECK(child > 0);
      int status = 0;
      CHECK_EQ(waitpid(child, &status, 0), child);
      CHECK_EQ(status, 0);
    }
  });
  for (int load = 0; load < 20; ++load) {
    exec::Executor executor(source);
    SetInputs(executor, samples[0]);
    executor.Run();
    CheckOutputs(executor, samples[0]);
  }
  is_over.store(true);
  forks.join();
}

/*! \brief Nobody spins where that takes a core from somebody, of whatever executor. */
void SpinnersGiveWay(Random&) {
  exec::CoreTable& table = exec::Cores();
  const int usable = table.usable.exchange(2);
  exec::CoreShare worker(0);
  CHECK(worker.MaySpin(false));
  {
    exec::CoreShare other(0);
    CHECK(!worker.MaySpin(true) && !other.MaySpin(true));
    other.Leave();  // it sleeps
    CHECK(worker.MaySpin(false));
    other.Enter();
  }
  const exec::CoreShare caller(-1);
  CHECK(worker.MaySpin(false));
  table.usable.store(1);  // a share of the processor's time, or a small set of cores
  CHECK(worker.MaySpin(true) && !worker.MaySpin(false));
  table.usable.store(usable);
}

void Write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

/*! \brief A share of the processor's time, of whatever group around the process, counts as cores.
 */
void SharesOfTimeCount(Random&) {
  exec::CoreTable table{};
  const auto root = std::filesystem::temp_directory_path() / ("cores-" + std::to_string(getpid()));
  table.Refresh(root);  // nothing is there: no limit
  const int all = table.usable.load();
  const auto usable = [&](const std::string& groups, const std::string& file,
                          const std::string& text) {
    Write(root / "proc/self/cgroup", groups);
    Write(root / "sys/fs/cgroup" / file, text);
    table.Refresh(root);
    return table.usable.load();
  };
  CHECK_EQ(usable("0::/a/b\n", "a/b/cpu.max", "max 100000\n"), all);
  CHECK_EQ(usable("0::/a/b\n", "a/cpu.max", "250000 100000\n"), std::min(all, 2));
  CHECK_EQ(usable("0::/a/b\n", "a/cpu.max", "50000 100000\n"), 1);
  Write(root / "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
  const std::string first = "2:memory:/x\n3:cpu,cpuacct:/x\n";
  CHECK_EQ(usable(first, "cpu,cpuacct/x/cpu.cfs_quota_us", "100000\n"), 1);
  CHECK_EQ(usable(first, "cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n"), all);
  std::filesystem::remove_all(root);
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 3);
  libtvm_path = arguments[1];
  library_path = arguments[2];
  ForSeeds("spinners", Stride(), SpinnersGiveWay);
  ForSeeds("completed", 4 * Stride(), EndedRequestsAreCompleted);
  ForSeeds("samples that are left", Stride(), ASampleMayBeLeft);
  ForSeeds("shares of time", Stride(), SharesOfTimeCount);
  ForSeeds("exact sleep", Stride(), WhoWaitsForDevicesSleepsExactly);
  ForSeeds("forks", 16, AForkMeetsNoHalfOfAnEngine);
  ForSeeds("programs", 300, EqualsProgramOrder);
  ForSeeds("callers", 300, CallersAreIndependent);
  return 0;
}
