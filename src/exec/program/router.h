// Routers of a program, and what is done of a branch only where its cells are.
//
// A router's kernel writes how many cells each branch has (loads), and at which row of a routed
// buffer those of a branch begin (offsets). Instructions of a branch are guarded by its load: they
// are done at the smallest capacity that holds it, or skipped.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "exec/program/wait.h"

namespace heteroplace::exec {

struct Program;

/*! \brief What becomes of the cells beyond the largest capacity of a branch. */
enum class Overflow : uint8_t {
  kRounds,  ///< the branch is run several times
  kDrop,    ///< they are left out, as the model says
  kError    ///< the request fails
};

/*! \brief The decision of a router, as it is in one memory of the host; those of one name are one.
 */
struct Router {
  std::string name;
  /*! \brief Tensors; -1: not there. int32 [num_branches], [num_branches], [num_cells][num_branches]
   */
  int32_t loads = -1;
  int32_t offsets = -1;
  int32_t seats = -1;
  Overflow overflow = Overflow::kRounds;
  /*! \brief No load is larger. */
  int64_t num_cells = 0;
  /*! \brief Rows of a routed buffer. */
  int64_t rows = 0;
  /*! \brief Every offset is a multiple of it. */
  int64_t quantum = 1;
  /*! \brief Ascending, at least one. [num_branches] */
  std::vector<std::vector<int64_t>> capacities;
  /*! \brief Loads and offsets are there when these are done; none: they are inputs. */
  std::vector<Wait> there;
  /*! \brief Line of the text, for messages. */
  int32_t line = 0;
  /*! \brief The first router of this name, and where its branches begin among those of all. Set by
   * CheckRouters, as what follows. */
  int32_t decision = -1;
  int32_t first_branch = 0;
  /*! \brief The router and the branch around it, in which its loads are made; -1: none. */
  int32_t outer = -1;
  int32_t outer_branch = -1;

  int64_t num_branches() const { return static_cast<int64_t>(capacities.size()); }
  const std::vector<int64_t>& CapacitiesOf(int32_t branch) const {
    return capacities[static_cast<size_t>(branch)];
  }
  /*! \brief Whether a branch may be run in several rounds. */
  bool HasRounds(int32_t branch) const {
    return overflow == Overflow::kRounds && CapacitiesOf(branch).back() < num_cells;
  }
  /*! \brief The smallest capacity that holds so many cells, of which there are no more than the
   * largest one has; 0 for none. */
  int64_t CapacityFor(int32_t branch, int64_t cells) const {
    if (cells == 0) return 0;
    for (int64_t capacity : CapacitiesOf(branch)) {
      if (capacity >= cells) return capacity;
    }
    return CapacitiesOf(branch).back();
  }
  /*! \brief Rows that a load takes in a routed buffer. */
  int64_t PaddedLoad(int32_t branch, int64_t load) const {
    const int64_t most = CapacitiesOf(branch).back();
    if (overflow != Overflow::kRounds) return CapacityFor(branch, std::min(load, most));
    return load / most * most + CapacityFor(branch, load % most);
  }
  /*! \brief "branch 3 of router 'moe.0'", for messages. */
  std::string Describe(int32_t branch) const {
    return "branch " + std::to_string(branch) + " of router '" + name + "'";
  }
};

/*! \brief What is predicted of a router from the start. */
struct RouterPrediction {
  int32_t router = -1;
  std::vector<int64_t> branches;
  /*! \brief Of a thousand requests more than so many must be right, or it is predicted no longer.
   */
  int32_t least_hits = 0;
};

/*! \brief When a guarded instruction is done. */
enum class When : uint8_t {
  kActive,     ///< the branch's load is not 0
  kPredicted,  ///< it is predicted that it will not be, and not known that it is
  kMissed      ///< it is not, and was not predicted
};

/*! \brief A tensor of a guarded instruction. */
struct Operand {
  int32_t tensor = -1;
  /*! \brief Whether it is rows of a routed buffer that begins where the tensor does. */
  bool is_rows = false;
};

/*! \brief What a guarded call does at one capacity. */
struct CapacityCall {
  /*! \brief Rows; 0: it has none, and is done once. */
  int64_t capacity = 0;
  int32_t kernel = -1;
  std::vector<Operand> operands;
};

/*! \brief What a guarded instruction has beside what all have. */
struct BranchWork {
  int32_t router = -1;
  int32_t branch = -1;
  When when = When::kActive;
  /*! \brief Of a call, by capacity; else empty. */
  std::vector<CapacityCall> calls;
  /*! \brief Of a copy: whether it is of the rows of the load. */
  bool copies_rows = false;
};

/*!
 * \brief Checks routers and guards as a whole: every load is read after it was written, whatever
 * is skipped, and nothing else is in its bytes. Joins routers of one name. Near linear in
 * instructions and waits.
 * \param program with all instructions, waits of which are sound (`CheckSynchronisation`).
 * \throws Error kArtifact.
 */
void CheckRouters(Program* program);

}  // namespace heteroplace::exec
