// Times of transfers that a problem keeps, and those of too many to be kept: the same.
#include <algorithm>
#include <cstdint>

#include "check.h"
#include "model/problem.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

constexpr int kMemories = 48;
constexpr size_t kWays = size_t{kMemories} * (kMemories - 1) + 1;
// A problem is copied by each bound that is asked for: what it keeps is to be few megabytes.
static_assert(model::kMaxTransfers * sizeof(int64_t) <= size_t{1} << 25);

/*! \brief Links of different latencies between all memories, and inputs of different sizes. */
model::Problem Linked(int num_tensors) {
  model::Problem problem;
  for (int memory = 0; memory < kMemories; ++memory) {
    problem.device_memory.push_back(memory);
    problem.device_units.AddRow(std::vector<int>{memory});
    problem.memory_bytes.push_back(1'000'000'000);
  }
  for (int src = 0; src < kMemories; ++src) {
    for (int dst = 0; dst < kMemories; ++dst) {
      std::vector<int> route;
      if (src != dst) {
        route.push_back(static_cast<int>(problem.link_latency_ns.size()));
        problem.link_latency_ns.push_back(1000 + src * kMemories + dst);
        problem.link_bandwidth.push_back(1'000'000'000 - dst);
        problem.link_resources.AddRow(std::vector<int>());
      }
      problem.route_links.AddRow(route);
    }
  }
  for (int tensor = 0; tensor < num_tensors; ++tensor) {
    problem.tensor_bytes.push_back(7 * tensor);
    problem.producer.push_back(-1);
    problem.is_output.push_back(0);
  }
  problem.Finish();
  return problem;
}

void CheckTransfers(const model::Problem& problem) {
  const int num_tensors = static_cast<int>(problem.tensor_bytes.size());
  for (int tensor = 0; tensor < num_tensors; tensor += std::max(1, num_tensors / 8)) {
    for (int src = 0; src < kMemories; ++src) {
      for (int dst = 0; dst < kMemories; ++dst) {
        const int64_t bytes = problem.tensor_bytes[tensor], bandwidth = 1'000'000'000 - dst;
        const int64_t expected = src == dst
                                     ? 0
                                     : 1000 + src * kMemories + dst +
                                           (bytes * 1'000'000'000 + bandwidth - 1) / bandwidth;
        CHECK_EQ(problem.Transfer(tensor, src, dst), expected);
      }
    }
  }
}

void AreTheSameHoweverMany(Random&) {
  const int most = static_cast<int>(model::kMaxTransfers / kWays);
  for (int num_tensors : {8, most, most + 1}) {
    const model::Problem problem = Linked(num_tensors);
    CHECK_EQ(problem.sizes.size() * problem.pair_of.size(), num_tensors * kWays);
    CheckTransfers(problem);
    CheckTransfers(problem.Static());
  }
}

}  // namespace

int main() {
  ForSeeds("transfers", 1, AreTheSameHoweverMany);
  return 0;
}
