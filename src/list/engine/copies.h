#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace heteroplace::list {

/*!
 * \brief Earliest start that suits several resources at once.
 * \param ready_ns Not before.
 * \param delay Returns the earliest start, at or after its argument, that suits one resource after
 * the other; asked again until none of them moves it.
 */
template <typename Delay>
int64_t SettleStart(int64_t ready_ns, Delay delay) {
  while (true) {
    const int64_t next = delay(ready_ns);
    if (next == ready_ns) return ready_ns;
    ready_ns = next;
  }
}

/*!
 * \brief Reserves the first common gap of all that a copy occupies: units behind all they do, other
 * resources in gaps.
 * \param resources Units come first in the numbering.
 * \param unit_free_ns [num_units]
 * \param tables [num_resources - num_units], reservation tables of the others
 * \return The start.
 */
template <typename Table>
int64_t ReserveCopy(std::span<const int> resources, int64_t ready_ns, int64_t duration_ns,
                    std::vector<int64_t>& unit_free_ns, std::vector<Table>& tables) {
  const int num_units = static_cast<int>(unit_free_ns.size());
  const auto table = [&](int resource) -> Table& { return tables[resource - num_units]; };
  int64_t start = ready_ns;
  for (int resource : resources) {
    if (resource < num_units) start = std::max(start, unit_free_ns[resource]);
  }
  start = SettleStart(start, [&](int64_t next) {
    for (int resource : resources) {
      if (resource >= num_units) next = table(resource).EarliestFit(next, duration_ns);
    }
    return next;
  });
  const int64_t finish = start + duration_ns;
  for (int resource : resources) {
    if (resource < num_units) {
      unit_free_ns[resource] = finish;
    } else {
      table(resource).Reserve(start, finish);
    }
  }
  return start;
}

/*! \brief Sorts tensors by when they are made, ties by id; `made_ns` tells the time of one. */
template <typename MadeNs>
void SortByMade(std::vector<int>& tensors, MadeNs made_ns) {
  std::sort(tensors.begin(), tensors.end(), [&](int left, int right) {
    const int64_t made_left = made_ns(left), made_right = made_ns(right);
    return made_left != made_right ? made_left < made_right : left < right;
  });
}

}  // namespace heteroplace::list
