#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/problem.h"

namespace heteroplace::model {

/*! \brief What a step of a plan does. */
enum class StepKind { kRun = 0, kCopy = 1, kCollective = 2 };

/*! \brief A step of a plan. */
struct Step {
  StepKind kind;
  int id;   // task of a run or collective, tensor of a copy
  int dst;  // device of a run, destination memory of a copy, position of a collective
  int src;  // memory that a copy reads; -1 for others
};

/*! \brief What collective steps do: kinds, rings and roots are known in Python only. */
struct Collectives {
  Csr reads;                         // tensor and memory of each value, one after the other
  Csr makes;                         // the same
  Csr devices;                       // in rank order
  Csr resources;                     // what is occupied
  std::vector<int64_t> duration_ns;  // [num_collectives]

  /*! \brief Number of collective steps. */
  int size() const { return static_cast<int>(duration_ns.size()); }
};

/*! \brief The ordered program of run, copy and collective steps, with the links of each copy. */
struct Steps {
  std::vector<Step> list;  // [num_steps]
  Csr links;               // [num_steps], empty for all but copies
  Csr items;               // [num_steps], or no rows: every step is for item 0
  int num_items = 1;       // of the plan
  Collectives collectives;

  /*! \brief Items of a step: those of a run are one batch. */
  std::span<const int> ItemsOf(int step) const {
    static constexpr int kFirst[] = {0};
    return items.num_rows() == 0 ? std::span<const int>(kFirst) : items[step];
  }
};

}  // namespace heteroplace::model
