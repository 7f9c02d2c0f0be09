// Bounds against the best of all plans of tiny problems.
#include <algorithm>

#include "bounds/lagrangian.h"
#include "check.h"
#include "list/evaluate.h"
#include "random_problem.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

int64_t num_feasible = 0, num_close = 0;

/*! \brief Least makespan of all placements and orders that fit; kNever if none does. */
int64_t Optimum(const model::Problem& problem) {
  const std::vector<std::vector<int>> orders = AllOrders(problem);
  list::Evaluator evaluate(problem);
  int64_t best = list::kNever;
  ForAllDevices(problem, [&](const std::vector<int>& device) {
    for (const std::vector<int>& order : orders) {
      const list::Value value = evaluate(device, order, best);
      if (value.violation > 0) return;  // the same for all orders
      best = std::min(best, value.makespan_ns);
    }
  });
  return best;
}

bounds::BoundOptions MakeOptions(int64_t target_ns, Random& random) {
  bounds::BoundOptions options;
  options.rounds = 1 + random.Below(12);
  options.iterations = 1 + random.Below(60);
  // Samples are asked for, too, when the time is over before anything was looked at.
  options.time_limit_s = random.Below(8) == 0 ? 0.0 : 1e6;
  // A target that is wrong must not make the bound wrong.
  options.target_ns = random.Below(4) == 0 ? random.Below(1000) : target_ns;
  options.num_samples = random.Below(3);
  return options;
}

void CheckBound(const model::Problem& problem, Random& random) {
  const int64_t best = Optimum(problem);
  if (best == list::kNever) return;
  ++num_feasible;
  std::vector<double> price;
  for (int memory = 0; memory < problem.num_memories; ++memory) {
    price.push_back(random.Below(2) == 0 ? 0.0 : 3 * random.Unit());
  }
  if (random.Below(3) == 0) price.clear();
  const bounds::BoundOptions options = MakeOptions(best, random);
  const bounds::BoundOutcome bound = bounds::LagrangianBound(problem, price, options, nullptr);
  CHECK(bound.bound_ns <= best);
  if (2 * bound.bound_ns >= best) ++num_close;
  // Those asked for, and one around each device that may have all cuts.
  const auto asked = static_cast<size_t>(options.num_samples);
  CHECK(bound.samples.size() >= asked);
  CHECK(asked > 0 || bound.samples.empty());
  for (const std::vector<int>& device : bound.samples) {
    for (int task = 0; task < problem.num_tasks; ++task) {
      CHECK(problem.Run(task, device[task]) != model::kImpossible);
    }
  }
}

void TinyProblem(int max_tasks, int max_devices, Random& random) {
  Shape shape;
  shape.max_tasks = max_tasks;
  shape.max_devices = max_devices;
  shape.max_run_ns = 20 + random.Below(200);
  shape.is_path = random.Below(3) == 0;
  shape.may_lack_routes = random.Below(4) == 0;
  model::Problem problem = MakeProblem(shape, random);
  if (problem.num_tasks > 6) return;
  if (random.Below(2) == 0) Tighten(problem, RandomDevices(problem, random), 20, random);
  CheckBound(problem, random);
}

}  // namespace

int main() {
  ForSeeds("tiny", 4000, [](Random& random) { TinyProblem(4, 3, random); });
  ForSeeds("small", 300, [](Random& random) { TinyProblem(5, 3, random); });
  // Beyond 4 devices the bound does not try all sets of them.
  ForSeeds("many devices", 300, [](Random& random) { TinyProblem(3, 6, random); });
  std::printf("feasible %ld, at least half the optimum %ld\n", long{num_feasible}, long{num_close});
  current_case = "all cases together";
  CHECK(num_feasible > NumCases(3000) && num_close > num_feasible / 2);
  return 0;
}
