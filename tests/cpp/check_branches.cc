// Programs with routers: random decisions, capacities, predictions and faults over cores and fake
// devices, with several requests in flight; what they record; texts with mistakes.
// Arguments: the path of libtvm.so or "", and of the library of kernels.cc.
#include <dlfcn.h>

#include <atomic>
#include <limits>
#include <memory>
#include <thread>

#include "random_routed.h"
#include "support/error.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

template <typename Target, typename Number>
void Set(Target& target, const std::string& name, const std::vector<Number>& values,
         const std::vector<int64_t>& shape) {
  const uint8_t code = std::is_integral_v<Number> ? exec::kDLInt : exec::kDLFloat;
  target.SetInput(name, {code, 32, 1}, shape, values.data());
}

template <typename Target>
void SetInputs(Target& target, const RoutedWriter& writer, const RoutedSample& sample) {
  const int64_t extent = writer.extent(), rows = writer.rows(), cells = writer.form(kMoe).cells;
  const std::vector<float> nan(static_cast<size_t>(rows * extent),
                               std::numeric_limits<float>::quiet_NaN());
  Set(target, "nan", nan, {rows, extent});
  Set(target, "cells", sample.cells, {cells, extent});
  Set(target, "vector", sample.vector, {extent});
  for (int router = 0; router < kNumRouters; ++router) {
    const Decision& decision = sample.decisions[static_cast<size_t>(router)];
    const std::string name = std::to_string(router);
    const int64_t branches = writer.form(router).num_branches();
    Set(target, "seats" + name, decision.seats, {writer.form(router).cells, branches});
    Set(target, "loads" + name, decision.loads, {branches});
    Set(target, "offsets" + name, decision.offsets, {branches});
  }
}

template <typename Target>
void CheckOutputs(Target& target, const RoutedSample& sample) {
  for (size_t router = 0; router < kNumRouters; ++router) {
    std::vector<float> out(sample.outputs[router].size());
    target.GetOutput("y" + std::to_string(router), out.data());
    CHECK_EQ(out, sample.outputs[router]);
    std::vector<int32_t> loads(sample.loads[router].size());
    target.GetOutput("l" + std::to_string(router), loads.data());
    CHECK_EQ(loads, sample.loads[router]);
  }
}

std::vector<int64_t> RandomBranches(const RouterForm& form, Random& random) {
  std::vector<int64_t> branches;
  for (int64_t branch = 0; branch < form.num_branches(); ++branch) {
    if (random.Below(2) == 0) branches.push_back(branch);
  }
  return branches;
}

/*! \brief Predicts anything, right or wrong, of any router. */
void PredictSomething(exec::Executor& executor, const RoutedWriter& writer, Random& random) {
  const int router = random.Below(kNumRouters);
  executor.Predict({{kRouterNames[router], RandomBranches(writer.form(router), random)}});
}

exec::ExecutorSource RandomSource(const RoutedWriter& writer, Random& random) {
  exec::ExecutorSource source = SourceOf(writer.text(), 1 + random.Below(4));
  source.helping = random.Below(4) != 0;
  return source;
}

/*! \brief What a request fails of; "": nothing. */
template <typename Act>
std::string FailureOf(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kExecution);
    return error.what();
  }
  return "";
}

/*! \brief A program gives the values of its decisions however it is run, whatever is predicted. */
void EqualsDecisions(Random& random) {
  const RoutedWriter writer(random);
  exec::Executor executor(RandomSource(writer, random));
  for (int run = 0; run < 12; ++run) {
    const RoutedSample sample = writer.RandomSample(random, run % 3 == 1);
    SetInputs(executor, writer, sample);
    PredictSomething(executor, writer, random);
    const int way = random.Below(3);
    const std::string failure = FailureOf([&] {
      if (way == 0) executor.Run();
      if (way == 1) executor.RunTimed();
      if (way == 2) executor.Benchmark(3);
    });
    CHECK_EQ(!failure.empty(), sample.fails);
    if (!sample.fails) CheckOutputs(executor, sample);
    if (sample.fails) CHECK(failure.find("of router 'moe'") != std::string::npos);
  }
}

/*! \brief Each of many callers gets its own answer, with predictions that change meanwhile. */
void CallersAreIndependent(Random& random) {
  const RoutedWriter writer(random);
  exec::Executor executor(RandomSource(writer, random));
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back(
        [&, mine = Random(static_cast<uint64_t>(random.Below(1 << 30)))]() mutable {
          for (int call = 0; call < 8; ++call) {
            const RoutedSample sample = writer.RandomSample(mine, mine.Below(4) == 0);
            if (mine.Below(2) == 0) PredictSomething(executor, writer, mine);
            const std::unique_ptr<exec::Request> request = executor.Begin();
            SetInputs(*request, writer, sample);
            request->Submit();
            const bool is_cancelled = mine.Below(6) == 0;
            if (is_cancelled) request->Cancel("cancelled");
            const std::string failure = FailureOf([&] { request->Finish(); });
            if (failure == "cancelled") {
              CHECK(is_cancelled);
              continue;
            }
            CHECK_EQ(!failure.empty(), sample.fails);
            if (!sample.fails) CheckOutputs(*request, sample);
          }
        });
  }
  for (std::thread& caller : callers) caller.join();
}

/*! \brief A kernel that fails, in whatever branch, fails one request. */
void FailuresAreOfOneRequest(Random& random) {
  void* library = dlopen(library_path.c_str(), RTLD_NOW);
  auto* until_failure = static_cast<std::atomic<int64_t>*>(dlsym(library, "until_failure"));
  const RoutedWriter writer(random);
  exec::Executor executor(RandomSource(writer, random));
  for (int run = 0; run < 6; ++run) {
    RoutedSample sample = writer.RandomSample(random, /*may_fail=*/false);
    while (sample.fails) sample = writer.RandomSample(random, /*may_fail=*/false);
    SetInputs(executor, writer, sample);
    until_failure->store(random.Below(20));
    const std::string failure = FailureOf([&] { executor.Run(); });
    // Where fewer kernels were called none has failed.
    CHECK_EQ(failure.empty(), until_failure->exchange(-1) >= 0);
    executor.Run();
    CheckOutputs(executor, sample);
  }
  dlclose(library);
}

std::string ListText(const std::vector<int32_t>& values) {
  std::string text;
  for (int32_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return "[" + text + "]";
}

/*! \brief The line of one router's decision; of "moe" with the seats, else of its one cell. */
std::string LineOf(int run, int router, const RoutedWriter& writer, const RoutedSample& sample) {
  const std::vector<int32_t>& loads = sample.loads[static_cast<size_t>(router)];
  const std::vector<int32_t>& seats = router == kMoe ? sample.decisions[kMoe].seats : loads;
  std::vector<int32_t> active;
  for (size_t b = 0; b < loads.size(); ++b) {
    if (loads[b] != 0) active.push_back(static_cast<int32_t>(b));
  }
  std::string cells;
  for (size_t cell = 0; cell < static_cast<size_t>(writer.form(router).cells); ++cell) {
    std::vector<int32_t> branches;
    for (size_t b = 0; b < loads.size(); ++b) {
      if (seats[cell * loads.size() + b] != 0) branches.push_back(static_cast<int32_t>(b));
    }
    cells += cells.empty() ? "" : ",";
    cells += branches.empty()       ? "-1"
             : branches.size() == 1 ? std::to_string(branches[0])
                                    : ListText(branches);
  }
  return "{\"run\":" + std::to_string(run) + ",\"router\":\"" + kRouterNames[router] +
         "\",\"loads\":" + ListText(loads) + ",\"active\":" + ListText(active) + ",\"cells\":[" +
         cells + "]}\n";
}

/*! \brief Whether the branch around a router has cells. */
bool HasTurn(int router, const RoutedSample& sample) {
  if (router == kInner) return sample.loads[kMoe][0] != 0;
  return router != kDeep || sample.loads[kExit][0] != 0;
}

/*! \brief What is recorded are the decisions of requests that succeeded, of routers that had their
 * turn, and how predictions of them came out. */
void RecordsDecisions(Random& random) {
  const RoutedWriter writer(random);
  exec::Executor executor(RandomSource(writer, random));
  CHECK(!FailureOf([&] { executor.TakeDecisions(/*ends=*/false); }).empty());
  executor.StartDecisions(exec::DecisionLevel::kCells);
  CHECK(!FailureOf([&] { executor.StartDecisions(exec::DecisionLevel::kLoads); }).empty());
  std::string expected, found;
  exec::PredictionCounts counts;
  int num_recorded = 0;
  for (int run = 0; run < 8; ++run) {
    const RoutedSample sample = writer.RandomSample(random, run == 3);
    const std::vector<int64_t> predicted = RandomBranches(writer.form(kExit), random);
    executor.Predict({{"exit", predicted}});
    SetInputs(executor, writer, sample);
    FailureOf([&] { executor.Run(); });
    if (sample.fails) continue;
    for (int router = 0; router < kNumRouters; ++router) {
      if (!HasTurn(router, sample)) continue;
      expected += LineOf(num_recorded, router, writer, sample);
    }
    ++num_recorded;
    if (random.Below(2) == 0) found += executor.TakeDecisions(/*ends=*/false).lines;
    if (predicted.empty()) continue;
    bool is_missed = false, is_wider = false;
    for (int64_t b = 0; b < writer.form(kExit).num_branches(); ++b) {
      const bool is_active = sample.loads[kExit][static_cast<size_t>(b)] != 0;
      const bool is_predicted = std::find(predicted.begin(), predicted.end(), b) != predicted.end();
      is_missed = is_missed || (is_active && !is_predicted);
      is_wider = is_wider || (!is_active && is_predicted);
    }
    ++counts.num_requests;
    counts.num_exact += !is_missed && !is_wider;
    counts.num_wider += !is_missed && is_wider;
  }
  const exec::RecordedDecisions last = executor.TakeDecisions(/*ends=*/true);
  CHECK_EQ(last.num_dropped, 0);
  CHECK(found + last.lines == expected);
  for (const auto& [name, each] : executor.PredictionsOf()) {
    if (name != "exit") continue;
    CHECK_EQ(each.num_requests, counts.num_requests);
    CHECK_EQ(each.num_exact, counts.num_exact);
    CHECK_EQ(each.num_wider, counts.num_wider);
  }
}

/*! \brief After two callers have taken what was recorded at once, there is room as before. */
void TakesMayOverlap(Random& random) {
  const exec::Program program = exec::ParseProgram(RoutedWriter(random).text());
  exec::Decisions decisions(&program);
  decisions.Start(exec::DecisionLevel::kLoads);
  const auto take = [&] { return decisions.Take(/*ends=*/false); };
  exec::Decisions::Words first = take(), second = take();
  decisions.GiveBack(&first);
  decisions.GiveBack(&second);
  for (int turn = 0; turn < 4; ++turn) {
    exec::Decisions::Words words = take();
    CHECK(words.words.empty());
    CHECK(words.words.capacity() * sizeof(int32_t) >= exec::kDecisionBytes);
    decisions.GiveBack(&words);
  }
}

/*! \brief A text with a mistake is read as some program, or refused by its line; never worse. */
void MistakesAreRefused(Random& random) {
  const RoutedWriter writer(random);
  const std::string& text = writer.text();
  int num_refused = 0;
  for (int mistake = 0; mistake < 200; ++mistake) {
    std::string mutant = text;
    for (int change = 0; change <= random.Below(2); ++change) {
      const auto at = static_cast<size_t>(random.Below(static_cast<int>(mutant.size())));
      const char characters[] = "0123456789 ,;:@=()-\n";
      const char other = characters[random.Below(static_cast<int>(sizeof(characters)) - 1)];
      if (random.Below(3) == 0) {
        mutant.erase(at, 1 + static_cast<size_t>(random.Below(6)));
      } else {
        mutant[at] = other;
      }
    }
    try {
      exec::ParseProgram(mutant);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kArtifact);
      ++num_refused;
    }
  }
  CHECK(num_refused > 20);
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 3);
  libtvm_path = arguments[1];
  library_path = arguments[2];
  ForSeeds("decisions", 160, EqualsDecisions);
  ForSeeds("callers", 64, CallersAreIndependent);
  ForSeeds("failures", 32, FailuresAreOfOneRequest);
  ForSeeds("recordings", 32, RecordsDecisions);
  ForSeeds("takes", Stride(), TakesMayOverlap);
  ForSeeds("mistakes", 16, MistakesAreRefused);
  return 0;
}
