#pragma once

#include <span>
#include <vector>

#include "model/problem.h"

namespace heteroplace::model {

/*! \brief What a step of a plan does. */
enum class StepKind { kRun = 0, kCopy = 1 };

/*! \brief A step of a plan. */
struct Step {
  StepKind kind;
  int id;   // task of a run, tensor of a copy
  int dst;  // device of a run, destination memory of a copy
  int src;  // memory that a copy reads; -1 for a run
};

/*! \brief The ordered program of run and copy steps, with the links of each copy. */
struct Steps {
  std::vector<Step> list;  // [num_steps]
  Csr links;               // [num_steps], empty for runs
  Csr items;               // [num_steps], or no rows: every step is for item 0
  int num_items = 1;       // of the plan

  /*! \brief Items of a step: those of a run are one batch. */
  std::span<const int> ItemsOf(int step) const {
    static constexpr int kFirst[] = {0};
    return items.num_rows() == 0 ? std::span<const int>(kFirst) : items[step];
  }
};

}  // namespace heteroplace::model
