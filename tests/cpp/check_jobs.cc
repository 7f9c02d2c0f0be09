// RunJobs: every job once, errors told to the caller; and the projection of prices.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <thread>

#include "bounds/simplex.h"
#include "check.h"
#include "support/jobs.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

void EveryJobOnce(Random& random) {
  const int count = random.Below(40), threads = random.Below(5);
  std::vector<int> times(static_cast<size_t>(count), 0);  // each job writes its own
  const std::thread::id caller = std::this_thread::get_id();
  RunJobs(
      count, threads, [&](int index) { ++times[index]; },
      [&] { CHECK(std::this_thread::get_id() == caller); });
  CHECK_EQ(times, std::vector<int>(static_cast<size_t>(count), 1));
}

/*! \brief Without a `watch` the caller's thread is one of those that work. */
void TheCallerWorksToo(Random& random) {
  const int count = random.Below(40), threads = random.Below(5);
  std::vector<std::thread::id> worker(static_cast<size_t>(count));
  RunJobs(count, threads, [&](int index) { worker[index] = std::this_thread::get_id(); });
  CHECK(std::count(worker.begin(), worker.end(), std::thread::id()) == 0);
  if (threads <= 1) {
    const auto caller = std::this_thread::get_id();
    CHECK_EQ(std::count(worker.begin(), worker.end(), caller), std::ssize(worker));
  }
  std::sort(worker.begin(), worker.end());
  CHECK(std::unique(worker.begin(), worker.end()) - worker.begin() <= std::max(threads, 1));
}

void ErrorsAreThrownAgain(Random& random) {
  const int count = 1 + random.Below(20), threads = 1 + random.Below(4);
  const int bad = random.Below(count);
  std::atomic<int> num_run{0};
  std::string told;
  try {
    RunJobs(
        count, threads,
        [&](int index) {
          ++num_run;
          if (index == bad) throw std::runtime_error("job " + std::to_string(index));
        },
        random.Below(2) == 0 ? std::function<void()>() : [] {});
  } catch (const std::runtime_error& error) {
    told = error.what();
  }
  CHECK(told == "job " + std::to_string(bad));
  CHECK_EQ(num_run.load(), count);
}

/*! \brief An error of `watch` leaves only when the jobs have ended: they use the caller's data. */
void WatchMayThrow(Random& random) {
  const int count = 1 + random.Below(4);
  std::atomic<bool> stop{false};
  std::atomic<int> num_ended{0};
  bool was_told = false;
  try {
    RunJobs(
        count, count,
        [&](int) {
          while (!stop) std::this_thread::yield();
          ++num_ended;
        },
        [&] {
          stop = true;
          throw std::runtime_error("watch");
        });
  } catch (const std::runtime_error&) {
    was_told = true;
  }
  CHECK(was_told);
  CHECK_EQ(num_ended.load(), count);
}

double Distance(const std::vector<double>& left, const std::vector<double>& right) {
  double sum = 0;
  for (size_t index = 0; index < left.size(); ++index) {
    sum += (left[index] - right[index]) * (left[index] - right[index]);
  }
  return sum;
}

/*! \brief The projection is on the simplex, and no other point of it is nearer. */
void NearestOnSimplex(Random& random) {
  std::vector<double> values(static_cast<size_t>(1 + random.Below(8)));
  const double spread = std::pow(10.0, random.Below(7) - 3);
  for (double& value : values) value = (random.Unit() - 0.5) * spread;
  std::vector<double> nearest = values;
  bounds::ProjectOntoSimplex(nearest);
  double sum = 0;
  for (double value : nearest) {
    CHECK(value >= 0);
    sum += value;
  }
  CHECK(std::abs(sum - 1) < 1e-9 * std::max(1.0, spread));
  for (int other = 0; other < 20; ++other) {
    std::vector<double> point = other < 8 ? std::vector<double>(values.size(), 0.0) : values;
    double total = 0;
    for (double& value : point) total += (value = other < 8 ? 0.0 : -std::log(random.Unit()));
    if (other < 8) {  // a corner
      point[static_cast<size_t>(other) % point.size()] = total = 1;
    }
    for (double& value : point) value /= total;
    CHECK(Distance(values, nearest) <= Distance(values, point) * (1 + 1e-9) + 1e-9);
  }
  std::vector<double> again = nearest;
  bounds::ProjectOntoSimplex(again);
  CHECK(Distance(again, nearest) < 1e-18 * std::max(1.0, spread * spread));
}

}  // namespace

int main() {
  ForSeeds("every job once", 1000, EveryJobOnce);
  ForSeeds("caller", 1000, TheCallerWorksToo);
  ForSeeds("errors of jobs", 1000, ErrorsAreThrownAgain);
  ForSeeds("errors of watch", 200, WatchMayThrow);
  ForSeeds("nearest on the simplex", 5000, NearestOnSimplex);
  return 0;
}
