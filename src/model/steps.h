#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/problem.h"

namespace heteroplace::model {

/*! \brief What a step of a plan does. */
enum class StepKind { kRun = 0, kCopy = 1, kCollective = 2, kGuarded = 3 };

/*! \brief A step of a plan. */
struct Step {
  StepKind kind;
  int id;   // task of a run or collective, tensor of a copy; of a guarded step its task, -1: none
  int dst;  // device of a run, destination memory of a copy, position of an explicit step
  int src;  // memory that a copy reads; -1 for others
};

/*!
 * \brief What collectives, guarded steps and loads do: kinds, rings, roots and guards are known in
 * Python only.
 *
 * What a guarded step makes of a tensor that is there is the same value. Loads are guarded steps
 * that bring weights of tasks.
 */
struct ExplicitSteps {
  Csr reads;                         // tensor and memory of each value, one after the other
  Csr makes;                         // the same
  Csr devices;                       // in rank order
  Csr resources;                     // what is occupied, parts of rooms for weights among it
  std::vector<int64_t> duration_ns;  // [num_explicit_steps]
  Csr loads;                         // task and memory of each weight that is brought; or no rows
  std::vector<int> kept;  // task and memory of each weight that is loaded from there, each once

  /*! \brief Number of these steps. */
  int size() const { return static_cast<int>(duration_ns.size()); }
};

/*! \brief The ordered program of all kinds of steps, with the links of each copy. */
struct Steps {
  std::vector<Step> list;  // [num_steps]
  Csr links;               // [num_steps], empty for all but copies
  Csr items;               // [num_steps], or no rows: every step is for item 0
  int num_items = 1;       // of the plan
  ExplicitSteps explicit_steps;

  /*! \brief Items of a step: those of a run are one batch. */
  std::span<const int> ItemsOf(int step) const {
    static constexpr int kFirst[] = {0};
    return items.num_rows() == 0 ? std::span<const int>(kFirst) : items[step];
  }
};

}  // namespace heteroplace::model
