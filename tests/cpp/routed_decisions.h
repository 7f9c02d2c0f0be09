// What routers of test programs are, and what they decide.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "support/random.h"

namespace heteroplace::test {

/*! \brief What a router is, whatever it decides. */
struct RouterForm {
  int cells = 1;
  int quantum = 1;
  std::string overflow = "rounds";
  std::vector<std::vector<int>> capacities;  // [num_branches]

  int num_branches() const { return static_cast<int>(capacities.size()); }
  int CapacityFor(int branch, int cells_left) const {
    for (int capacity : capacities[static_cast<size_t>(branch)]) {
      if (capacity >= cells_left) return cells_left == 0 ? 0 : capacity;
    }
    return capacities[static_cast<size_t>(branch)].back();
  }
  int Padded(int branch, int load) const {
    const int most = capacities[static_cast<size_t>(branch)].back();
    if (overflow != "rounds") return CapacityFor(branch, std::min(load, most));
    return load / most * most + CapacityFor(branch, load % most);
  }
};

/*! \brief A decision as routers write it. */
struct Decision {
  std::vector<int32_t> seats, loads, offsets;
  /*! \brief Rows of all branches, and whether a branch has more cells than it may. */
  int rows = 0;
  bool has_overflow = false;
};

/*! \brief Sends each cell to some of the branches. */
inline Decision RandomDecision(const RouterForm& form, Random& random) {
  const int num_branches = form.num_branches();
  Decision decision;
  decision.loads.resize(static_cast<size_t>(num_branches));
  const int favourite = random.Below(num_branches), share = random.Below(5);
  for (int cell = 0; cell < form.cells; ++cell) {
    for (int branch = 0; branch < num_branches; ++branch) {
      const bool goes = random.Below(4) < (branch == favourite ? share : 1);
      int32_t& load = decision.loads[static_cast<size_t>(branch)];
      int32_t seat = goes ? ++load : 0;
      const int most = form.capacities[static_cast<size_t>(branch)].back();
      if (seat > most) decision.has_overflow = decision.has_overflow || form.overflow == "error";
      if (seat > most && form.overflow != "rounds") seat = 0;
      decision.seats.push_back(seat);
    }
  }
  for (int branch = 0; branch < num_branches; ++branch) {
    decision.offsets.push_back(decision.rows);
    const int padded = form.Padded(branch, decision.loads[static_cast<size_t>(branch)]);
    decision.rows += (padded + form.quantum - 1) / form.quantum * form.quantum;
  }
  return decision;
}

}  // namespace heteroplace::test
