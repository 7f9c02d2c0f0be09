// Programs of several hosts, run by as many executors in one process: random ones with failures.
// Arguments: the path of libtvm.so or "", and of the library of kernels.cc.
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "exec/trace/trace_json.h"
#include "parts/hosts/transports/local_transport.h"
#include "random_bundle.h"
#include "support/error.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

/*! \brief The ranks of a job, and what each is to compute. */
struct Job {
  Job(Random& random, int num_steps, size_t num_samples = 2) : samples(num_samples) {
    num_hosts = 2 + random.Below(3);
    text = RandomBundle(random, num_hosts, num_steps, &samples);
    exec::LocalOptions options;
    options.seed = random.Next();
    options.max_delay_ns = random.Below(3) * 100'000;
    options.is_buffered = random.Below(2) == 0;
    for (auto& transport : exec::MakeLocalTransports(num_hosts, options)) {
      transports.push_back(std::move(transport));
    }
    max_in_flight = 1 + random.Below(3);
    for (int rank = 0; rank < num_hosts; ++rank) {
      exec::ExecutorSource source = SourceOf(text, max_in_flight);
      source.transport = transports[static_cast<size_t>(rank)];
      source.helping = random.Below(4) == 0 ? std::optional<bool>() : false;
      executors.push_back(std::make_unique<exec::Executor>(source));
    }
  }

  /*! \brief What each rank does, in a thread of its own. */
  void ForRanks(const std::function<void(exec::Executor&, int)>& work) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_hosts; ++rank) {
      threads.emplace_back([&, rank] { work(*executors[static_cast<size_t>(rank)], rank); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  int num_hosts = 0;
  int max_in_flight = 0;
  std::vector<BundleSample> samples;
  std::string text;
  std::vector<std::shared_ptr<exec::Transport>> transports;
  std::vector<std::unique_ptr<exec::Executor>> executors;
};

/*! \brief Begins a request; only rank 0 has inputs. */
std::unique_ptr<exec::Request> Submit(exec::Executor& executor, int rank,
                                      const BundleSample& sample, bool fails = false) {
  std::unique_ptr<exec::Request> request = executor.Begin();
  if (rank == 0) SetInputs(*request, {sample.inputs, {}}, fails);
  request->Submit();
  return request;
}

void CheckRank(exec::Request& request, int rank, const BundleSample& sample) {
  CheckOutputs(request, {{}, sample.outputs[static_cast<size_t>(rank)]});
}

/*! \brief What a call of the executor throws; "" if it does not. */
std::string FailureOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kExecution);
    return error.what();
  }
  return "";
}

/*! \brief Messages of a recording are spans of their queues, one after the other. */
void CheckTrace(const exec::Executor& executor, const exec::Trace& trace, size_t num_requests) {
  CHECK_EQ(trace.requests.size(), num_requests);
  size_t num_events = 0;
  for (const exec::Queue& queue : executor.program().queues)
    num_events += queue.instructions.size();
  CHECK_EQ(trace.events.size(), num_requests * num_events);
  std::map<int32_t, int64_t> last_ns;
  for (const exec::TraceEvent& event : trace.events) {
    CHECK(event.is_done && event.start_ns <= event.finish_ns && event.wait_ns >= 0);
    CHECK(last_ns[event.queue] <= event.start_ns - event.wait_ns);
    last_ns[event.queue] = event.finish_ns;
  }
  CHECK(exec::TraceJson(executor.program(), trace).find("\"message\": ") != std::string::npos);
}

/*! \brief All ranks together give the values of the order of the steps, many requests in flight. */
void EqualsStepOrder(Random& random) {
  Job job(random, 5 + random.Below(30));
  const size_t num_requests = 1 + static_cast<size_t>(random.Below(5));
  const bool is_traced = random.Below(4) == 0;
  const int64_t num_runs = random.Below(2) * 3;
  job.ForRanks([&](exec::Executor& executor, int rank) {
    if (is_traced) executor.StartTrace(static_cast<int64_t>(num_requests));
    std::deque<std::pair<std::unique_ptr<exec::Request>, size_t>> in_flight;
    const auto finish = [&] {
      auto& [request, sample] = in_flight.front();
      request->Finish();
      CheckRank(*request, rank, job.samples[sample]);
      in_flight.pop_front();
    };
    for (size_t k = 0; k < num_requests; ++k) {
      if (static_cast<int>(in_flight.size()) == job.max_in_flight) finish();
      const size_t sample = k % job.samples.size();
      in_flight.emplace_back(Submit(executor, rank, job.samples[sample]), sample);
    }
    while (!in_flight.empty()) finish();
    if (is_traced) CheckTrace(executor, executor.StopTrace(), num_requests);
    if (num_runs == 0) return;
    if (rank == 0) SetInputs(executor, {job.samples[0].inputs, {}});
    CHECK_EQ(executor.Benchmark(num_runs).size(), static_cast<size_t>(num_runs));
    CHECK(!executor.Profile(num_runs).empty());
    executor.RunTimed();
    CheckOutputs(executor, {{}, job.samples[0].outputs[static_cast<size_t>(rank)]});
    CHECK(!FailureOf([&] { executor.Sample(1, 1, false); }).empty());
  });
}

/*! \brief One failure anywhere ends the job on all ranks, with one reason, soon. */
void FailsEverywhere(Random& random) {
  Job job(random, 5 + random.Below(20));
  const int64_t num_requests = 1 + random.Below(4),
                failing = random.Below(static_cast<int>(num_requests));
  enum { kKernel, kAbort, kCancel, kLate } const how[] = {kKernel, kAbort, kCancel, kLate};
  const auto cause = how[random.Below(4)];
  const int culprit = random.Below(job.num_hosts);
  const int64_t after_ns = random.Below(1'000'000);
  std::vector<std::string> failures(static_cast<size_t>(job.num_hosts));
  job.ForRanks([&](exec::Executor& executor, int rank) {
    const bool is_culprit = rank == culprit;
    std::string& failure = failures[static_cast<size_t>(rank)];
    for (int64_t k = 0; k < num_requests && failure.empty(); ++k) {
      const bool is_last = k == failing;
      if (is_last && cause == kLate && is_culprit) return;  // it never comes
      failure = FailureOf([&] {
        const auto request = Submit(executor, rank, job.samples[0], is_last && cause == kKernel);
        if (is_last && is_culprit && cause != kKernel) {
          std::this_thread::sleep_for(std::chrono::nanoseconds(after_ns));
          if (cause == kCancel) request->Cancel("the user's wish");
          if (cause == kAbort) job.transports[static_cast<size_t>(rank)]->Abort("rank 7 is gone");
        }
        request->Finish(cause == kLate ? exec::Limit{}.Within(200'000'000) : exec::Limit{});
        // What is sent of the flag has another value where it fails.
        if (cause != kKernel || !is_last) CheckRank(*request, rank, job.samples[0]);
      });
    }
  });
  std::string reason;
  for (const std::string& failure : failures) {
    if (failure.empty()) continue;
    if (reason.empty()) reason = failure;
  }
  if (cause == kKernel) {
    // Not each rank need have failed: some were done with their part.
    const bool names_host = reason.find("host 'host ") == 0 &&
                            reason.find("(rank ") != std::string::npos &&
                            reason.find("failed on ") != std::string::npos;
    if (!names_host) test::Fail(__FILE__, __LINE__, reason);
  }
  if (!reason.empty()) {
    // Nothing begins any more on a rank that knows.
    for (size_t rank = 0; rank < failures.size(); ++rank) {
      if (failures[rank].empty()) continue;
      if (cause != kLate) CHECK_EQ(failures[rank], reason);  // else two may be late at once
      const std::string again = FailureOf([&] { job.executors[rank]->Begin(); });
      CHECK(again.find(failures[rank]) != std::string::npos);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 3);
  libtvm_path = arguments[1];
  library_path = arguments[2];
  const int part = Stride() == 1 ? 1 : 4;  // each case loads several executors
  ForSeeds("bundles", 1024 / part, EqualsStepOrder);
  ForSeeds("failures", 256 / part, FailsEverywhere);
  return 0;
}
