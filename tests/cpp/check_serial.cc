// Requests that one thread does alone: when, which thread, and how they end.
// Arguments: the path of libtvm.so or "", and of the library of kernels.cc.
#include <unistd.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "exec/engine/executor.h"
#include "exec/engine/mode_chooser.h"
#include "interrupt.h"
#include "random_program.h"
#include "support/error.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

using exec::Mode;
using exec::ModeChooser;

constexpr int64_t kMs = 1'000'000;

/*! \brief Requests of so many ms in each mode, for `total_ms`; how many of them were serial. */
int Feed(ModeChooser* chooser, double parallel_ms, double serial_ms, double total_ms) {
  int num_serial = 0;
  while (total_ms > 0) {
    const Mode mode = chooser->next();
    const double ms = mode == Mode::kSerial ? serial_ms : parallel_ms;
    num_serial += mode == Mode::kSerial ? 1 : 0;
    chooser->Record(mode, static_cast<int64_t>(ms * kMs));
    total_ms -= ms;
  }
  return num_serial;
}

void TheFasterModeIsChosen() {
  for (const double scale : {0.01, 1.0, 30.0}) {
    ModeChooser chooser;
    // As planned: after one trial, the other mode is not even tried.
    Feed(&chooser, scale, 2 * scale, 10'000);
    CHECK(chooser.chosen() == Mode::kParallel);
    CHECK_EQ(Feed(&chooser, scale, 2 * scale, 10'000), 0);
    CHECK_EQ(Feed(&chooser, 1.5 * scale, 2 * scale, 10'000), 0);
    CHECK_EQ(chooser.num_changes(), int64_t{0});
    // Others use a core.
    Feed(&chooser, 4 * scale, 2 * scale, 2'000);
    CHECK(chooser.chosen() == Mode::kSerial);
    CHECK_EQ(chooser.num_changes(), int64_t{1});
    Feed(&chooser, 4 * scale, 2 * scale, 20'000);
    CHECK_EQ(chooser.num_changes(), int64_t{1});
    // They are gone.
    Feed(&chooser, scale, 2 * scale, 3'000);
    CHECK(chooser.chosen() == Mode::kParallel);
    CHECK_EQ(chooser.num_changes(), int64_t{2});
    // Hardly faster is not faster.
    Feed(&chooser, 2 * scale, 1.95 * scale, 10'000);
    CHECK_EQ(chooser.num_changes(), int64_t{2});
  }
}

/*! \brief A machine that is faster for a while, and slower again, changes nothing. */
void PhasesOfTheMachineChangeNothing() {
  for (const double phase_ms : {30.0, 70.0, 210.0, 900.0}) {
    ModeChooser chooser(Mode::kSerial);
    for (int phase = 0; phase < 200; ++phase) {
      const double scale = phase % 2 == 0 ? 1.0 : 1.5;
      Feed(&chooser, 1.2 * scale, scale, phase_ms);
    }
    CHECK(chooser.chosen() == Mode::kSerial);
    CHECK(chooser.num_changes() <= 2);  // by windows across two phases
  }
}

/*! \brief A plan that is slow when it is first run is left as soon. */
void ABusyStartIsNoticed() {
  ModeChooser chooser;
  Feed(&chooser, 4, 2, 200);
  CHECK(chooser.chosen() == Mode::kSerial);
}

/*! \brief Two cores; each writes its thread to its output y, and then fails if input x is negative.
 * The second one's call begins after the first one's. */
exec::ExecutorSource Source(exec::SerialRule rule, int num_calls = 1) {
  exec::ExecutorSource source = SourceOf("", 1);
  source.serial = rule;
  std::string text = "heteroplace-program 1\nspace 0 ram 1 0 " + std::to_string(5 * 4 * kExtent);
  for (int q = 0; q < 2; ++q) {
    text += "\nqueue " + std::to_string(q) + " q" + std::to_string(q) + " cpu 1 0 0 " +
            std::to_string(Cores()[static_cast<size_t>(q)]);
  }
  text += "\ntensor 0 0 external - 2 32 64\n";
  for (int v = 1; v <= 4; ++v) {
    text += "tensor " + std::to_string(v) + " 0 arena " + std::to_string(4 * kExtent * v) +
            " 2 32 64\n";
  }
  text += "input x 0\noutput y0 1\noutput y1 2\n";
  text += "kernel 0 whose_thread\nkernel 1 keep_positive\n";
  for (int call = 0; call < num_calls; ++call) text += "call 0 0 0 1 0,1 -\n";
  text += "call 0 1 1 1 0,3 -\n";
  text += "call 1 2 0 1 0,2 0:" + std::to_string(num_calls) + "\ncall 1 3 1 1 0,4 -\n";
  source.program_text = text + "end\n";
  return source;
}

void SetX(exec::Executor& executor, float x) {
  const Vector value(kExtent, x);
  executor.SetInput("x", {exec::kDLFloat, 32, 1}, {kExtent}, value.data());
}

/*! \brief The threads that have written the outputs of the last run. */
std::vector<int> Threads(exec::Executor& executor) {
  std::vector<int> threads;
  for (const char* output : {"y0", "y1"}) {
    Vector out(kExtent);
    executor.GetOutput(output, out.data());
    threads.push_back(static_cast<int>(out[0]));
  }
  return threads;
}

/*! \brief A caller who waits does all of it; with a limit the first worker's thread does. */
void OneThreadDoesARequest() {
  exec::Executor executor(Source(exec::SerialRule::kAlways));
  SetX(executor, 0);
  int num_mine = 0, num_others = 0;
  for (int run = 0; run < 200; ++run) {
    executor.Run();
    std::vector<int> threads = Threads(executor);
    num_mine += threads == std::vector<int>{gettid(), gettid()} ? 1 : 0;
    executor.Run(exec::Limit{}.Within(int64_t{60'000} * kMs));
    threads = Threads(executor);
    CHECK(threads[0] != gettid());
    num_others += threads[0] == threads[1] ? 1 : 0;
    // In between the workers are at work themselves.
    if (run % 8 == 0) CHECK_EQ(executor.Benchmark(2).size(), size_t{2});
  }
  CHECK_EQ(num_mine, 200);
  CHECK_EQ(num_others, 200);
  CHECK_EQ(executor.Modes().num_serial, int64_t{400});
}

void NobodyDoesAllUnlessAsked() {
  exec::Executor executor(Source(exec::SerialRule::kNever));
  SetX(executor, 0);
  for (int run = 0; run < 50; ++run) {
    executor.Run();
    const std::vector<int> threads = Threads(executor);
    CHECK(threads[0] != threads[1]);
  }
  CHECK_EQ(executor.Modes().num_serial, int64_t{0});
}

/*! \brief What fails is named by its own step and queue, and the next request is right. */
void AFailureNamesItsStep() {
  exec::Executor executor(Source(exec::SerialRule::kAlways));
  for (int run = 0; run < 50; ++run) {
    SetX(executor, -1);
    std::string failure;
    try {
      run % 2 == 0 ? executor.Run() : executor.Run(exec::Limit{}.Within(int64_t{60'000} * kMs));
    } catch (const Error& error) {
      failure = error.what();
    }
    CHECK(failure.find("step 1 failed on queue 'q0'") == 0);
    SetX(executor, 0);
    executor.Run();
  }
}

/*! \brief A caller who does all of a request is asked between its steps. */
void ACallerIsAsked() {
  exec::Executor executor(Source(exec::SerialRule::kAlways, 60));
  SetX(executor, 0);
  executor.Run();
  SetX(executor, 8);
  CHECK(IsInterrupted([&](const exec::Limit& limit) { executor.Run(limit); }));
  SetX(executor, 0);
  executor.Run();
}

/*! \brief One whose time is up leaves the step that does not end to the thread that does it. */
void ALimitHolds() {
  exec::Executor executor(Source(exec::SerialRule::kAlways));
  SetX(executor, 0);
  executor.Run();
  SetX(executor, 400);
  std::string failure;
  try {
    executor.Run(exec::Limit{}.Within(20 * kMs));
  } catch (const Error& error) {
    failure = error.what();
  }
  CHECK(failure.find("step 0") != std::string::npos);
  CHECK(failure.find("cannot be used until it does") != std::string::npos);
  while (!failure.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    try {
      SetX(executor, 0);
      executor.Run();
      failure.clear();
    } catch (const Error& error) {
      failure = error.what();
    }
  }
}

/*! \brief Callers of several threads, with limits and without, each get an end of their request. */
void ManyCallersAreServed(Random& random) {
  exec::ExecutorSource source =
      Source(random.Below(2) == 0 ? exec::SerialRule::kAlways : exec::SerialRule::kWhereFaster);
  exec::Executor executor(source);
  exec::Executor rival(source);
  SetX(executor, 0);
  SetX(rival, 0);
  std::atomic<int> num_ended{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      exec::Executor& mine = caller == 3 ? rival : executor;
      for (int run = 0; run < 100; ++run) {
        if ((run + caller) % 5 == 0) {
          const std::unique_ptr<exec::Request> request = mine.Begin();
          request->Submit();
          request->Finish();
        } else if ((run + caller) % 5 == 1) {
          mine.Run(exec::Limit{}.Within(int64_t{60'000} * kMs));
        } else if (run % 40 == 2) {
          mine.Benchmark(3);
        } else {
          mine.Run();
        }
        num_ended.fetch_add(1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK_EQ(num_ended.load(), 4 * 100);
}

/*! \brief A recording has all steps of a serial request, one after the other. */
void ARecordingSaysSo() {
  exec::Executor executor(Source(exec::SerialRule::kAlways));
  SetX(executor, 0);
  executor.StartTrace();
  for (int run = 0; run < 20; ++run) executor.Run();
  const exec::Trace trace = executor.StopTrace();
  int num_serial = 0;
  for (const exec::TraceRequest& request : trace.requests) num_serial += request.is_serial ? 1 : 0;
  CHECK(num_serial > 5);
  std::vector<std::vector<exec::TraceEvent>> events(trace.requests.size());
  for (const exec::TraceEvent& event : trace.events) {
    events[static_cast<size_t>(event.request)].push_back(event);
  }
  for (size_t r = 0; r < events.size(); ++r) {
    CHECK_EQ(events[r].size(), size_t{4});
    if (!trace.requests[r].is_serial) continue;
    for (size_t i = 1; i < 4; ++i) CHECK(events[r][i].start_ns >= events[r][i - 1].finish_ns);
  }
}

/*! \brief Two serial requests run at the same time, and a recording keeps the latest ones. */
void SerialRequestsOverlap() {
  constexpr int kRounds = 40;
  exec::ExecutorSource source = Source(exec::SerialRule::kAlways);
  source.max_in_flight = 3;
  std::string text = source.program_text;
  text.resize(text.find("kernel 0"));
  source.program_text = text +
                        "kernel 0 arrive\nkernel 1 await_arrivals\nkernel 2 whose_thread\n"
                        "call 0 0 0 1 0,3 -\ncall 1 1 1 1 3,4 0:1\n"
                        "call 0 2 2 1 4,1 1:1\ncall 1 3 2 1 4,2 0:2\nend\n";
  exec::Executor executor(source);
  executor.StartTrace(1);
  for (int round = 0; round < kRounds; ++round) {
    // Both have begun before either goes on.
    const Vector value(kExtent, static_cast<float>(2 * (round + 1)));
    std::vector<std::unique_ptr<exec::Request>> requests;
    for (int r = 0; r < 2; ++r) {
      requests.push_back(executor.Begin());
      requests.back()->SetInput("x", {exec::kDLFloat, 32, 1}, {kExtent}, value.data());
      requests.back()->Submit();
    }
    std::vector<float> threads;
    for (const std::unique_ptr<exec::Request>& request : requests) {
      request->Finish();
      Vector first(kExtent), second(kExtent);
      request->GetOutput("y0", first.data());
      request->GetOutput("y1", second.data());
      CHECK(first[0] == second[0]);
      threads.push_back(first[0]);
    }
    CHECK(threads[0] != threads[1]);
  }
  CHECK_EQ(executor.Modes().num_serial, int64_t{2 * kRounds});
  const exec::Trace trace = executor.StopTrace();
  CHECK_EQ(trace.num_dropped, int64_t{2 * kRounds - 3});
  CHECK_EQ(trace.requests.size(), size_t{3});
  for (size_t r = 0; r < 3; ++r) {
    CHECK_EQ(trace.requests[r].request, trace.num_dropped + static_cast<int64_t>(r));
    CHECK(trace.requests[r].is_serial);
  }
  CHECK_EQ(trace.events.size(), size_t{3 * 4});
}

/*!
 * \brief Calls of two programs are serial if they overlap, and run as planned if they take turns.
 *
 * A call takes 2 ms as planned, and 4 ms if it is serial.
 */
void RivalsAreSerial() {
  constexpr int kCalls = 100;
  for (const bool is_at_once : {true, false}) {
    exec::ExecutorSource source = Source(exec::SerialRule::kWhereFaster);
    const std::string wait = "0,2 0:1";  // of the second core, for the first one
    source.program_text.replace(source.program_text.find(wait), wait.size(), "0,2 -");
    exec::Executor one(source);
    exec::Executor other(source);
    SetX(one, 2);
    SetX(other, 2);
    const auto call = [](exec::Executor* executor) {
      for (int run = 0; run < kCalls; ++run) executor->Run();
    };
    if (is_at_once) {
      std::thread other_caller(call, &other);
      call(&one);
      other_caller.join();
    } else {
      for (int run = 0; run < kCalls; ++run) {
        one.Run();
        other.Run();
      }
    }
    // Calls at the start and the end may not overlap, and trials are serial.
    const int64_t num_serial = one.Modes().num_serial + other.Modes().num_serial;
    if (is_at_once) CHECK(num_serial > kCalls);
    if (!is_at_once) CHECK(num_serial < kCalls);
  }
}

/*! \brief A cancelled request that waits for a thread ends, and the others go on. */
void WaitingRequestsAreCancelled() {
  exec::ExecutorSource source = Source(exec::SerialRule::kAlways, 10);
  source.max_in_flight = 6;
  exec::Executor executor(source);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<exec::Request>> requests;
    for (int r = 0; r < source.max_in_flight; ++r) {
      const Vector value(kExtent, r % 3 == 2 ? -1.0F : 0.0F);
      requests.push_back(executor.Begin());
      requests.back()->SetInput("x", {exec::kDLFloat, 32, 1}, {kExtent}, value.data());
      requests.back()->Submit();
      if (r % 3 == 1) requests.back()->Cancel("cancelled");
    }
    for (size_t r = 0; r < requests.size(); ++r) {
      std::string failure;
      try {
        requests[r]->Finish();
      } catch (const Error& error) {
        failure = error.what();
      }
      if (r % 3 == 0) CHECK_EQ(failure, std::string());
      if (r % 3 == 1) CHECK(failure.empty() || failure == "cancelled");
      if (r % 3 == 2) CHECK(failure.find("step 1 failed on queue 'q0'") == 0);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 3);
  libtvm_path = arguments[1];
  library_path = arguments[2];
  TheFasterModeIsChosen();
  ABusyStartIsNoticed();
  PhasesOfTheMachineChangeNothing();
  if (Cores().size() < 2) return 0;
  OneThreadDoesARequest();
  NobodyDoesAllUnlessAsked();
  AFailureNamesItsStep();
  ACallerIsAsked();
  ALimitHolds();
  ARecordingSaysSo();
  SerialRequestsOverlap();
  RivalsAreSerial();
  WaitingRequestsAreCancelled();
  ForSeeds("callers", 24, ManyCallersAreServed);
  return 0;
}
