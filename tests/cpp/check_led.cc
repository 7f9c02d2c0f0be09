// A job that one rank leads: what it asks of the others, and what ends in the middle of that.
// Arguments: the path of libtvm.so, and of the library of kernels.cc.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "exec/devices/tvm_abi.h"
#include "interrupt.h"
#include "parts/hosts/merged.h"
#include "parts/hosts/patience.h"
#include "parts/hosts/ranked_executor.h"
#include "parts/hosts/transports/local_transport.h"
#include "random_program.h"
#include "support/error.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

using exec::Group;
using exec::Limit;
using exec::RankedExecutor;

/*! \brief No wait in here is meant to take as long. */
Limit Patiently() { return Limit{}.Within(60'000'000'000); }

constexpr size_t kInstructions = 6;

/*! \brief y = 2 x + 1, which the second host computes; the first one has a step beside it that
 * takes so long. \param more lines of queues of the first host. */
std::string Text(int64_t delay_ns, const std::string& more = "") {
  const std::string tensors = "tensor 0 0 arena 0 2 32 64\ntensor 1 0 arena 256 2 32 64\n";
  return "heteroplace-programs 2 2\nheteroplace-program 2 0 2 \"h0\"\nspace 0 ram 1 0 512\n"
         "queue 0 q0 fake 1 0 0 " +
         std::to_string(delay_ns) + "\nqueue 1 q1 send 1 0 -1 1\nqueue 2 q2 recv 1 0 -1 1\n" +
         more + tensors +
         "tensor 2 0 external - 2 32 64\ninput x 2\noutput y 1\nkernel 0 twice\n"
         "call 0 0 0 1 2,0 -\nsend 1 1 0 2 -\nrecv 2 3 1 1 -\nend\n"
         "heteroplace-program 2 1 2 \"h1\"\nspace 0 ram 1 0 512\nqueue 0 q0 fake 1 0 0 0\n"
         "queue 1 q1 recv 1 0 -1 0\nqueue 2 q2 send 1 0 -1 0\n" +
         tensors + "kernel 0 twice\nrecv 1 1 0 0 -\ncall 0 2 0 1 0,1 1:1\nsend 2 3 1 1 0:1\nend\n";
}

/*! \brief The same where the second host waits for that step. */
std::string InOrder(int64_t delay_ns) {
  std::string text = Text(delay_ns);
  const std::string send = "send 1 1 0 2 ";
  return text.replace(text.find(send + "-"), send.size() + 1, send + "0:1");
}

/*! \brief What a function of each rank throws, in a thread; "" for nothing. */
std::vector<std::string> OnRanks(const std::function<void(std::shared_ptr<Group>)>& work) {
  auto transports = exec::MakeLocalTransports(2, {0, 0, /*is_buffered=*/true});
  std::vector<std::string> faults(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto group = Group::Meet(std::move(transports[rank]), {}, Patiently());
        group->SetHosts({"h0", "h1"}, {0, 1});
        work(group);
      } catch (const Error& error) {
        faults[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return faults;
}

/*! \brief The same where the first rank does something with the loaded program and the other one
 * serves it. */
std::vector<std::string> Lead(const std::string& text,
                              const std::function<void(RankedExecutor&)>& lead) {
  return OnRanks([&](const std::shared_ptr<Group>& group) {
    RankedExecutor ranked(group, SourceOf(text, 2), [](int) {}, Patiently());
    if (!ranked.is_feeding()) return ranked.Serve(Patiently());
    lead(ranked);
    ranked.Close();
  });
}

std::unique_ptr<exec::Request> Submit(RankedExecutor& ranked, float x) {
  std::unique_ptr<exec::Request> request = ranked.executor().Begin();
  const Vector values(kExtent, x);
  request->SetInput("x", {exec::kDLFloat, 32, 1}, {kExtent}, values.data());
  request->Submit();
  return request;
}

void CheckAnswer(exec::Request& request, float x) {
  request.Finish(Patiently());
  Vector values(kExtent);
  request.GetOutput("y", values.data());
  CHECK_EQ(values, Vector(kExtent, 2 * x + 1));
}

/*! \brief While a request has finished no step, the one before it is what is known to be over. */
void TheLastStepMayBeOfTheRequestBefore(Random&) {
  const auto faults = OnRanks([](const std::shared_ptr<Group>& group) {
    RankedExecutor ranked(group, SourceOf(InOrder(100'000'000), 2), [](int) {}, Patiently());
    if (ranked.is_feeding()) {
      for (const float x : {1.F, 2.F, 3.F}) CheckAnswer(*Submit(ranked, x), x);
      return ranked.Close();
    }
    std::atomic<bool> is_over{false};
    std::thread looking([&] {
      exec::StepReached reached;
      while (!is_over.load()) {
        const exec::StepReached now = ranked.executor().Reached();
        CHECK(now.request > reached.request ||
              (now.request == reached.request && now.step >= reached.step));
        reached = now;
      }
    });
    ranked.Serve(Patiently());
    is_over.store(true);
    looking.join();
    CHECK_EQ(ranked.executor().Reached().request, int64_t{2});
  });
  CHECK_EQ(faults, std::vector<std::string>(2));
}

/*! \brief The limit of a recording that ends is that of requests here: others answer all the same.
 */
void ALimitIsOfThisRankAlone(Random&) {
  const auto faults = Lead(Text(50'000'000), [](RankedExecutor& ranked) {
    for (int turn = 0; turn < 2; ++turn) {
      ranked.StartTrace({});
      const auto request = Submit(ranked, 3);
      const std::vector<exec::RankTrace> traces = ranked.StopTrace(Limit{0, {}});
      CHECK(traces[0].trace.requests.empty());
      CHECK_EQ(traces[1].trace.requests.size(), size_t{1});
      CheckAnswer(*request, 3);
    }
    ranked.StartTrace({});
    CheckAnswer(*Submit(ranked, 4), 4);
    CHECK_EQ(ranked.MergedTrace({}).events.size(), kInstructions);
  });
  CHECK_EQ(faults, std::vector<std::string>(2));
}

/*! \brief What others answer to a question that was interrupted would be taken for another one's.
 */
void AnInterruptedQuestionEndsTheJob(Random&) {
  const auto faults = Lead(Text(400'000'000), [](RankedExecutor& ranked) {
    ranked.StartTrace({});
    const auto request = Submit(ranked, 3);
    CHECK(IsInterrupted([&](const Limit& limit) { ranked.StopTrace(limit); }));
    CHECK(ranked.group().HasFailed());
    CHECK(request->Wait(Patiently()));  // else its worker would outlive the executor
    ranked.CheckFeeding("run");
  });
  for (const std::string& fault : faults) {
    CHECK(fault.find("rank 0 (host 'h0' on ") != std::string::npos);
    CHECK(fault.find("interrupted") != std::string::npos);
  }
}

/*! \brief Of the requests in flight one was cancelled, which ends the job: the others have failed.
 */
void ACancelledRequestIsToldApartFromTheOthers(Random&) {
  const auto faults = Lead(InOrder(400'000'000), [](RankedExecutor& ranked) {
    const auto first = Submit(ranked, 3), second = Submit(ranked, 4);
    first->Cancel("nobody waits for it");
    const auto cause_of = [](exec::Request& request) {
      try {
        request.Finish(Patiently());
      } catch (const exec::RequestError& error) {
        CHECK(std::string(error.what()).find("nobody waits for it") != std::string::npos);
        return error.cause();
      }
      CHECK(false);
      return exec::FailureCause::kWaiting;
    };
    CHECK(cause_of(*first) == exec::FailureCause::kCancelled);
    CHECK(cause_of(*second) == exec::FailureCause::kFault);
    ranked.CheckFeeding("run");
  });
  for (const std::string& fault : faults) {
    CHECK(fault.find("rank 0 (host 'h0' on ") == 0);
    CHECK(fault.find("nobody waits for it") != std::string::npos);
  }
}

/*! \brief Where nobody else was asked yet, or is asked at all, a failure here is of one call. */
void WhatFailsBeforeTheQuestionEndsNothing(Random&) {
  const auto faults = Lead(Text(0), [](RankedExecutor& ranked) {
    const auto fails = [](const auto& call) {
      try {
        call();
      } catch (const Error&) {
        return true;
      }
      return false;
    };
    auto request = ranked.executor().Begin();  // holds the slot that measuring needs
    CHECK(fails([&] { ranked.MemoryBytes(Limit{}.Within(10'000'000)); }));
    request.reset();
    CHECK(fails([&] { ranked.StopTrace({}); }));
    CHECK(fails([&] { ranked.Profile(0, {}); }));
    CheckAnswer(*Submit(ranked, 5), 5);
    CHECK_EQ(ranked.MemoryBytes({}).size(), size_t{2});
    CHECK_EQ(ranked.Profile(2, {}).size(), 2 * kInstructions);
  });
  CHECK_EQ(faults, std::vector<std::string>(2));
}

/*! \brief A line that cores of one rank throw is no run: others would wait for its messages. */
void OthersTakeNoPartInAThrow(Random&) {
  const std::vector<int> cores = Cores();
  if (cores.size() < 2) return;
  const std::string queues = "queue 3 q3 cpu 1 0 0 " + std::to_string(cores[0]) +
                             "\nqueue 4 q4 cpu 1 0 0 " + std::to_string(cores[1]) + "\n";
  const auto faults = Lead(Text(0, queues), [](RankedExecutor& ranked) {
    CheckAnswer(*Submit(ranked, 1), 1);
    CHECK(ranked.executor().CoreToCoreNs(Patiently()).has_value());
    CheckAnswer(*Submit(ranked, 2), 2);
    // Answered only behind all that the other rank has been ordered to run.
    CHECK_EQ(ranked.MemoryBytes(Patiently()).size(), size_t{2});
  });
  CHECK_EQ(faults, std::vector<std::string>(2));
}

/*! \brief The group outlives an executor that could not be loaded, and must not ask it how far it
 * is. */
void NobodyAsksWhatWasNotLoaded(Random&) {
  constexpr int64_t kMomentNs = 100'000'000;
  std::atomic<int64_t> agreed_ns{0};
  std::atomic<bool> is_over{false};
  const auto faults = OnRanks([&](const std::shared_ptr<Group>& group) {
    if (group->rank() == 1) {
      group->Agree({}, "", Patiently());
      group->End();  // and it does not count threads
      agreed_ns.store(exec::NowNs());
      exec::LookUntil(Patiently(), 0, [&] { return is_over.load(); });
      return;
    }
    Limit limit = Patiently();
    limit.hook = [&] {
      const int64_t since_ns = agreed_ns.load();
      if (since_ns != 0 && exec::NowNs() - since_ns > kMomentNs) throw Interrupt();
    };
    bool is_interrupted = false;
    try {
      std::make_unique<RankedExecutor>(group, SourceOf(Text(0)), [](int) {}, limit);
    } catch (const Interrupt&) {
      is_interrupted = true;
    }
    CHECK(is_interrupted && group->HasFailed());
    group->Fail("once more");
    is_over.store(true);
  });
  CHECK_EQ(faults, std::vector<std::string>(2));
}

exec::Queue MakeQueue(const std::string& name, bool has_sides) {
  exec::Queue queue{};
  queue.name = name;
  queue.kind = has_sides ? exec::QueueKind::kFake : exec::QueueKind::kCpu;
  queue.space = -1;
  if (has_sides) {
    exec::Instruction group{};
    group.opcode = exec::Opcode::kGroup;
    group.kernel = group.leader_queue = -1;
    queue.instructions.push_back(group);
  }
  return queue;
}

/*! \brief Queues of the second host come behind those of the first, streams beside them behind all
 * queues, as rows of a merged trace have them. */
void StreamsBesideQueuesKeepTheirRows(Random&) {
  std::vector<exec::Program> programs(2);
  programs[0].host = "a";
  programs[0].queues = {MakeQueue("core", false), MakeQueue("gpu", true)};
  programs[1].host = "b";
  programs[1].queues = {MakeQueue("gpu", true), MakeQueue("core", false), MakeQueue("other", true)};
  const exec::Program merged = exec::MergedPrograms(programs);
  CHECK_EQ(merged.queues.size(), size_t{5});
  struct Case {
    size_t host;
    int32_t queue, core, merged_queue, merged_core;
  };
  const std::vector<Case> cases = {
      {0, 0, -1, 0, -1}, {0, 1, 0, 1, 0},   // nobody else, a queue
      {0, 1, 2, 1, 5},   {0, 1, 5, 1, 8},   // streams 0 and 3 beside a's queue 1
      {1, 0, 1, 2, 3},                      // a queue of b
      {1, 0, 3, 2, 9},   {1, 0, 6, 2, 12},  // streams 0 and 3 beside b's queue 0
      {1, 2, 7, 4, 13},  {1, 2, 10, 4, 16},
  };
  for (const Case& each : cases) {
    std::vector<exec::RankTrace> traces(2);
    for (exec::RankTrace& rank : traces) rank.trace.requests.push_back({0, 0, false, 0, 9});
    exec::TraceEvent event{};
    event.queue = each.queue;
    event.core = each.core;
    traces[each.host].trace.events.push_back(event);
    const exec::Trace found = exec::MergedTraces(programs, merged, traces, 0);
    CHECK_EQ(found.events.size(), size_t{1});
    CHECK_EQ(found.events[0].queue, each.merged_queue);
    CHECK_EQ(found.events[0].core, each.merged_core);
  }
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 3);
  libtvm_path = arguments[1];
  library_path = arguments[2];
  exec::LoadTvmAbi(libtvm_path);  // here, as sanitizers see no order in the code of TVM's loading
  ForSeeds("last steps", Stride(), TheLastStepMayBeOfTheRequestBefore);
  ForSeeds("limits", Stride(), ALimitIsOfThisRankAlone);
  ForSeeds("interrupted questions", Stride(), AnInterruptedQuestionEndsTheJob);
  ForSeeds("cancelled requests", Stride(), ACancelledRequestIsToldApartFromTheOthers);
  ForSeeds("before questions", Stride(), WhatFailsBeforeTheQuestionEndsNothing);
  ForSeeds("throws", Stride(), OthersTakeNoPartInAThrow);
  ForSeeds("loads", Stride(), NobodyAsksWhatWasNotLoaded);
  ForSeeds("merged", Stride(), StreamsBesideQueuesKeepTheirRows);
  return 0;
}
