// Values of pairs of tensor and memory against a map: of few pairs, and of many.
#include <algorithm>
#include <map>
#include <utility>

#include "check.h"
#include "search/evaluate/pair_table.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

void CheckAgainstMap(Random& random, int num_tensors, int num_memories) {
  search::PairTable<int> table(num_tensors, static_cast<size_t>(num_memories));
  std::map<std::pair<int, int>, std::pair<size_t, int>> known;  // (row, value)
  // Few of many, so that pairs are met again.
  const int tensors = std::min(num_tensors, 40), memories = std::min(num_memories, 9);
  for (int move = 1; move < 1000; ++move) {
    const int tensor = random.Below(tensors) * (num_tensors / tensors);
    const int memory = random.Below(memories) * (num_memories / memories);
    const auto found = known.find({tensor, memory});
    CHECK_EQ(table.Get(tensor, memory), found == known.end() ? 0 : found->second.second);
    if (random.Below(2) == 0) {
      const size_t row = table.Row(tensor, memory);
      if (found != known.end()) CHECK_EQ(row, found->second.first);
      table[row] = move;
      known[{tensor, memory}] = {row, move};
    }
    if (random.Below(200) == 0) {
      table.Clear();
      known.clear();
    }
  }
  for (const auto& [pair, value] : known) CHECK_EQ(table[value.first], value.second);
}

void HoldsWhatItWasGiven(Random& random) {
  CheckAgainstMap(random, 1 + random.Below(100), 1 + random.Below(8));
  CheckAgainstMap(random, 30'000 + random.Below(100), 100 + random.Below(200));
}

}  // namespace

int main() {
  ForSeeds("pairs", 80, HoldsWhatItWasGiven);
  return 0;
}
