#pragma once

#include <algorithm>
#include <cstdint>

#include "bounds/lagrangian.h"

namespace heteroplace::search {

/*! \brief Bounds are found again now and then: prices of better plans make better ones. */
inline bool IsBoundRound(bool is_one_module, int round) {
  if (is_one_module) return round == 0;
  return round < 2 || (round & (round - 1)) == 0;  // 0, 1, 2, 4, 8, ...
}

/*!
 * \brief What the bound of a round may take, but for its time.
 * \param max_evaluations Of the search, -1: no limit; a short one has no long bounds.
 */
inline bounds::BoundOptions OptionsOfBound(int num_tasks, bool is_one_module, int round,
                                           int64_t max_evaluations) {
  constexpr int kRounds = 10;                    // of the ascent of prices
  constexpr int kIterations = 120;               // of each module
  constexpr int kSamples = 2;                    // placements taken from a bound
  constexpr int64_t kFirstWork = 1'500'000'000;  // tasks looked at for the first bound
  constexpr int64_t kLaterWork = 700'000'000;
  constexpr int64_t kOneModuleWork = 10'000'000;  // where a bound gives no placements
  constexpr int64_t kWorkPerTried = 100;          // for each task of each evaluation
  bounds::BoundOptions options;
  options.rounds = round == 0 ? 2 * kRounds : kRounds;
  options.iterations = kIterations;
  options.num_samples = is_one_module ? 0 : kSamples;
  options.max_work = is_one_module ? kOneModuleWork : round == 0 ? kFirstWork : kLaterWork;
  if (max_evaluations >= 0) {
    const int64_t tried = std::min(max_evaluations, kFirstWork) * num_tasks;
    options.max_work = std::min(options.max_work, kWorkPerTried * tried + 1);
  }
  return options;
}

}  // namespace heteroplace::search
