#include "search/moves/post_order.h"

#include <utility>

namespace heteroplace::search {

std::vector<int> PostOrder(const model::Problem& problem) {
  std::vector<int> order;
  std::vector<uint8_t> is_taken(problem.num_tasks, 0);
  std::vector<std::pair<int, size_t>> path;  // (task, producers done)
  for (int sink = 0; sink < problem.num_tasks; ++sink) {
    if (!problem.successors[sink].empty()) continue;
    path.emplace_back(sink, 0);
    is_taken[sink] = 1;
    while (!path.empty()) {
      auto& [task, done] = path.back();
      const auto before = problem.predecessors[task];
      if (done == before.size()) {
        order.push_back(task);
        path.pop_back();
        continue;
      }
      const int producer = before[done++];
      if (is_taken[producer] != 0) continue;
      is_taken[producer] = 1;
      path.emplace_back(producer, 0);
    }
  }
  return order;
}

}  // namespace heteroplace::search
