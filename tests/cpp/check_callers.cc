// Callers that do a worker's part of their request themselves: which part, and how they are
// stopped. Arguments: the path of libtvm.so or "", and of the library of kernels.cc.
#include <unistd.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "exec/engine/executor.h"
#include "exec/team/core_turns.h"
#include "exec/team/team.h"
#include "interrupt.h"
#include "pinned.h"
#include "random_program.h"
#include "support/error.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

constexpr int kMaxTries = 1'000;  // a worker's own thread may be about to sleep, and then does it
constexpr int kMaxTurns = 100;    // the same where a failure of each takes half a second

/*! \brief A program of some cores: each writes its thread to its output, the first waits for all;
 * vector 0 is the input x, how long each call takes in ms. */
exec::ExecutorSource Source(const std::vector<int>& cores, std::optional<bool> helping = {},
                            const std::vector<int>& num_calls = {1, 1}) {
  exec::ExecutorSource source = SourceOf("", 1);
  source.helping = helping;
  std::string text = "heteroplace-program 1\nspace 0 ram 1 0 " +
                     std::to_string((cores.size() + 1) * 4 * kExtent) + "\n";
  std::string tensors, ports, calls;
  for (size_t q = 0; q < cores.size(); ++q) {
    const std::string self = std::to_string(q), vector = std::to_string(q + 1);
    text += "queue " + self + " q" + self + " cpu 1 0 0 " + std::to_string(cores[q]) + "\n";
    ports += "output y" + self + " " + vector + "\n";
    for (int call = 0; call < num_calls[q]; ++call) {
      calls += "call " + self + " " + self + " 0 1 0," + vector + " -\n";
    }
  }
  for (size_t v = 0; v <= cores.size(); ++v) {
    tensors += "tensor " + std::to_string(v + 1) + " 0 arena " + std::to_string(4 * kExtent * v) +
               " 2 32 64\n";
  }
  text += "tensor 0 0 external - 2 32 64\n" + tensors + "input x 0\n" + ports;
  if (cores.size() == 2) calls += "copy 0 2 1 3 1:" + std::to_string(num_calls[1]) + "\n";
  source.program_text = text + "kernel 0 whose_thread\n" + calls + "end\n";
  return source;
}

void SetMs(exec::Executor& executor, float ms) {
  const Vector value(kExtent, ms);
  executor.SetInput("x", {exec::kDLFloat, 32, 1}, {kExtent}, value.data());
}

/*! \brief The thread that has written an output. */
int ThreadOf(exec::Executor& executor, const char* output) {
  Vector out(kExtent);
  executor.GetOutput(output, out.data());
  return static_cast<int>(out[0]);
}

/*! \brief Runs until the calling thread has written the output, and never another one. */
void CheckIsMine(exec::Executor& executor, const std::string& mine, const std::string& other) {
  int num_mine = 0;
  for (int run = 0; run < kMaxTries && num_mine < 3; ++run) {
    executor.Run();
    num_mine += ThreadOf(executor, mine.c_str()) == gettid();
    if (!other.empty()) CHECK(ThreadOf(executor, other.c_str()) != gettid());
  }
  CHECK_EQ(num_mine, 3);
}

/*! \brief Of two workers, a caller does the part of the one whose core he is on. */
void ACallerDoesThePartOfHisCore(const std::vector<int>& cores) {
  for (const bool helping : {false, true}) {
    exec::Executor executor(Source({cores[0], cores[1]}, helping));
    SetMs(executor, 0);
    for (int turn = 0; turn < 4; ++turn) {
      const Pinned here(cores[static_cast<size_t>(turn % 2)]);
      turn % 2 == 0 ? CheckIsMine(executor, "y0", "y1") : CheckIsMine(executor, "y1", "y0");
    }
    // Measurements, and what nobody waits for, are the workers'.
    const auto is_theirs = [&](const auto& read) {
      for (const char* output : {"y0", "y1"}) {
        Vector out(kExtent);
        read(output, out.data());
        CHECK(static_cast<int>(out[0]) != gettid());
      }
    };
    executor.Benchmark(3);
    is_theirs([&](const char* output, float* to) { executor.GetOutput(output, to); });
    std::unique_ptr<exec::Request> request = executor.Begin();
    request->Submit();
    request->Finish();
    is_theirs([&](const char* output, float* to) { request->GetOutput(output, to); });
    request.reset();
    const Pinned here(cores[1]);
    CheckIsMine(executor, "y1", "y0");
  }
}

/*! \brief The only worker's part is done wherever the caller is. */
void OneCoreIsAnybodys(const std::vector<int>& cores) {
  exec::Executor executor(Source({cores[0]}));
  SetMs(executor, 0);
  const Pinned here(cores[1]);
  CheckIsMine(executor, "y0", "");
}

/*! \brief Callers of several threads each get an end of their request, and nobody waits for ever.
 */
void ManyCallersAreServed(const std::vector<int>& cores) {
  exec::Executor executor(Source({cores[0], cores[1]}));
  SetMs(executor, 0);
  std::atomic<int> num_ended{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      const Pinned here(cores[static_cast<size_t>(caller % 2)]);
      for (int run = 0; run < 300; ++run) {
        if ((run + caller) % 5 == 0) {
          const std::unique_ptr<exec::Request> request = executor.Begin();
          request->Submit();
          request->Finish();
        } else {
          executor.Run();
        }
        num_ended.fetch_add(1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK_EQ(num_ended.load(), 4 * 300);
}

/*! \brief What the hook throws reaches a caller: between his own kernels, and while he waits for
 * those of another; the next run is right. */
void ACallerCanBeInterrupted(const std::vector<int>& cores, const std::vector<int>& num_calls) {
  exec::Executor executor(Source({cores[0], cores[1]}, {}, num_calls));
  SetMs(executor, 0);
  const Pinned here(cores[0]);
  CheckIsMine(executor, "y0", "y1");
  SetMs(executor, 8);
  CHECK(IsInterrupted([&](const exec::Limit& limit) { executor.Run(limit); }));
  SetMs(executor, 0);
  CheckIsMine(executor, "y0", "y1");
}

/*! \brief What a hook has thrown is of the request that was at work, also if nobody finished it. */
void AnInterruptionEndsWithItsRequest(const std::vector<int>& cores) {
  exec::Executor executor(Source({cores[0]}, {}, {40}));
  const Pinned here(cores[0]);
  bool is_interrupted = false;
  exec::Limit limit;
  limit.hook = [&] {
    is_interrupted = true;
    throw Interrupt();
  };
  // Where the worker's own thread does it the hook is not asked.
  for (int run = 0; run < kMaxTries && !is_interrupted; ++run) {
    SetMs(executor, 0);
    CheckIsMine(executor, "y0", "");
    SetMs(executor, 8);
    const std::unique_ptr<exec::Request> dropped = executor.Begin();
    dropped->Submit(limit, /*is_waited=*/true);
  }
  CHECK(is_interrupted);
  CHECK_EQ(executor.Benchmark(1).size(), size_t{1});
  SetMs(executor, 0);
  executor.Run();
}

/*! \brief What a request fails of that another thread cancels as soon as it can; "": nothing. */
std::string FailureOfCancelled(exec::Executor& executor) {
  const std::unique_ptr<exec::Request> request = executor.Begin();
  std::atomic<bool> is_over{false};
  std::thread canceller([&] {
    while (!is_over.load()) {
      request->Cancel("cancelled");
      std::this_thread::yield();
    }
  });
  request->Submit({}, /*is_waited=*/true);
  is_over.store(true);
  canceller.join();
  try {
    request->Finish();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/*! \brief Another thread can cancel what a caller is at himself. */
void WhatACallerDoesCanBeCancelled(const std::vector<int>& cores) {
  exec::Executor executor(Source({cores[0]}, {}, {40}));
  SetMs(executor, 0);
  CheckIsMine(executor, "y0", "");
  SetMs(executor, 8);
  CHECK(FailureOfCancelled(executor) == "cancelled");
  SetMs(executor, 0);
  CheckIsMine(executor, "y0", "");
}

/*! \brief A router whose one branch has as many cells as an input says, and a call of two cores of
 * it in rounds of one cell; kernels and inputs are those of Source. */
exec::ExecutorSource RoundsSource(const std::vector<int>& cores) {
  exec::ExecutorSource source = SourceOf("", 1);
  source.program_text =
      "heteroplace-program 3\nspace 0 ram 1 0 256\nqueue 0 q0 cpu 1 0 0 " +
      std::to_string(cores[0]) + "\nqueue 1 q1 cpu 1 0 0 " + std::to_string(cores[1]) +
      "\ntensor 0 0 external - 2 32 64\ntensor 1 0 arena 0 2 32 64\n"
      "tensor 2 0 external - 0 32 1\ninput x 0\ninput loads 2\noutput y0 1\n"
      "kernel 0 whose_thread\nrouter 0 r 2 - - rounds 40 0 1 1 -\njoin 1 0 0 0 -\n"
      "branch_call 0 0 0 0 active 2 1=0(0,1) -\nend\n";
  return source;
}

int NumParts(int, exec::TVMParallelGroupEnv* env, void* num_parts) {
  *static_cast<int*>(num_parts) = env->num_task;
  return 0;
}

/*! \brief Loops of a caller's thread are his own again after a call that was cut short. */
void ACallerLeavesTheTeamOfACutCall(const std::vector<int>& cores) {
  exec::Executor executor(RoundsSource(cores));
  const int32_t load = 40;
  executor.SetInput("loads", {exec::kDLInt, 32, 1}, {1}, &load);
  const Pinned here(cores[0]);
  for (int cut = 0; cut < 4; ++cut) {
    SetMs(executor, 0);
    CheckIsMine(executor, "y0", "");
    SetMs(executor, 8);
    CHECK(FailureOfCancelled(executor) == "cancelled");
    int num_parts = 0;
    CHECK_EQ(exec::ParallelLaunch(NumParts, &num_parts, 0), 0);
    CHECK_EQ(num_parts, 1);
  }
}

/*! \brief Two requests in flight, of one context as there is a router; q0 waits for q1, which waits
 * for it. Kernels and inputs are those of Source. */
exec::ExecutorSource TwoInFlight(const std::vector<int>& cores) {
  exec::ExecutorSource source = SourceOf("", 2);
  source.program_text =
      "heteroplace-program 3\nspace 0 ram 1 0 768\nqueue 0 q0 cpu 1 0 0 " +
      std::to_string(cores[0]) + "\nqueue 1 q1 cpu 1 0 0 " + std::to_string(cores[1]) +
      "\ntensor 0 0 external - 2 32 64\ntensor 1 0 arena 0 2 32 64\n"
      "tensor 2 0 arena 256 2 32 64\ntensor 3 0 arena 512 2 32 64\ntensor 4 0 external - 0 32 1\n"
      "input x 0\ninput loads 4\noutput y0 1\noutput y1 2\nkernel 0 whose_thread\n"
      "router 0 r 4 - - drop 1 0 1 1 -\ncall 0 0 0 1 0,1 -\ncall 1 1 0 1 0,2 0:1\n"
      "copy 0 2 2 3 1:1\nend\n";
  return source;
}

/*! \brief A program that waits for the cores has its turn between two requests of one caller. */
void ACallerTakesTurnsAtWholeRequests(const std::vector<int>& cores) {
  exec::Executor executor(TwoInFlight(cores));
  const int32_t load = 0;
  executor.SetInput("loads", {exec::kDLInt, 32, 1}, {1}, &load);
  SetMs(executor, 8);  // longer than a turn
  exec::CoreSeat rival({cores[0], cores[1]});
  const Pinned here(cores[0]);
  bool is_seen = false;
  for (int64_t run = 0; run < kMaxTurns && !is_seen; ++run) {
    const std::unique_ptr<exec::Request> first = executor.Begin(), second = executor.Begin();
    bool is_in_time = false;
    int64_t reached = 0;
    std::thread waits([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      exec::CoreShare core(-1);
      is_in_time = executor.Reached().request < 2 * run;
      const exec::CoreTurn turn(&rival, true, run, &core);
      reached = executor.Reached().request;
    });
    first->Submit();
    second->Submit({}, /*is_waited=*/true);
    first->Finish();
    second->Finish();
    waits.join();
    const auto is_mine = [](exec::Request& request) {
      Vector out(kExtent);
      request.GetOutput("y0", out.data());
      return static_cast<int>(out[0]) == gettid();
    };
    is_seen = is_in_time && is_mine(*first) && is_mine(*second) && reached <= 2 * run;
  }
  CHECK(is_seen);
}

/*! \brief A caller whose part is over leaves the core to the next request, also if his own ends
 * after a part of that. */
void TheNextRequestBeginsWhereACallerWaits(const std::vector<int>& cores) {
  exec::ExecutorSource source = SourceOf("", 2);
  source.helping = true;
  source.program_text =
      "heteroplace-program 3\nspace 0 ram 1 0 512\nqueue 0 q0 cpu 1 0 0 " +
      std::to_string(cores[0]) + "\nqueue 1 q1 cpu 1 0 0 " + std::to_string(cores[1]) +
      "\ntensor 0 0 external - 2 32 64\ntensor 1 0 arena 0 2 32 64\n"
      "tensor 2 0 arena 256 2 32 64\ntensor 3 0 external - 0 32 1\ninput x 0\ninput loads 3\n"
      "output y0 1\noutput y1 2\nkernel 0 arrive\nkernel 1 await_arrivals\n"
      "router 0 r 3 - - drop 1 0 1 1 -\ncall 0 0 0 1 0,1 -\ncall 1 1 1 1 0,2 -\nend\n";
  exec::Executor executor(source);
  const int32_t load = 0;
  executor.SetInput("loads", {exec::kDLInt, 32, 1}, {1}, &load);
  for (int turn = 0; turn < 8; ++turn) {
    const auto begin = [&] {
      std::unique_ptr<exec::Request> request = executor.Begin();
      const Vector value(kExtent, static_cast<float>(2 * turn + 2));  // of both requests
      request->SetInput("x", {exec::kDLFloat, 32, 1}, {kExtent}, value.data());
      return request;
    };
    const std::unique_ptr<exec::Request> first = begin(), second = begin();
    std::thread caller([&] {
      const Pinned here(cores[0]);
      first->Submit({}, /*is_waited=*/true);
      first->Finish();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(turn % 2 == 0 ? 2 : 40));
    second->Submit();
    second->Finish();
    caller.join();
  }
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 3);
  libtvm_path = arguments[1];
  library_path = arguments[2];
  const std::vector<int> cores = heteroplace::test::Cores();
  if (cores.size() < 2) return 0;
  OneCoreIsAnybodys(cores);
  ACallerDoesThePartOfHisCore(cores);
  ManyCallersAreServed(cores);
  AnInterruptionEndsWithItsRequest(cores);
  ACallerCanBeInterrupted(cores, {40, 1});
  ACallerCanBeInterrupted(cores, {1, 40});
  WhatACallerDoesCanBeCancelled(cores);
  ACallerTakesTurnsAtWholeRequests(cores);
  ACallerLeavesTheTeamOfACutCall(cores);
  TheNextRequestBeginsWhereACallerWaits(cores);
  return 0;
}
