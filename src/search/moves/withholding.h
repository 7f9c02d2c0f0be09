#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <vector>

#include "decompose/module.h"
#include "model/problem.h"
#include "search/moves/module_annealing.h"
#include "support/random.h"

namespace heteroplace::search {

/*!
 * \brief A tensor that several tasks read, and memories that it is kept out of.
 *
 * A copy that takes long pays only for many readers together: while others are there none gains by
 * leaving, and none by being the first to come. So annealing ends with the long copies that it
 * began with, however long it goes on, unless it may not make them.
 */
struct Withheld {
  int tensor = -1;            // -1: none
  std::vector<int> memories;  // ascending, without the one where it is made

  bool KeepsOutOf(int memory) const {
    return std::ranges::find(memories, memory) != memories.end();
  }
  auto operator<=>(const Withheld&) const = default;
};

/*!
 * \brief Draws a tensor of long copies, and some of the memories that it could be copied to.
 *
 * One of them at least has several readers in the layout. Of several memories one is left. So are
 * those that the tensor has to be in: for the last task, a group, or a task that may run nowhere
 * else.
 *
 * Complexity: O(tensors * memories + reads * devices).
 *
 * \param entry Memory of the cut before the module.
 * \param time_ns What the layout takes from there.
 */
Withheld ChooseWithheld(const model::Problem& problem, const decompose::Module& module,
                        const Layout& layout, int entry, int64_t time_ns, Random& random);

/*! \brief The module without the devices of those memories for the readers of the tensor. */
decompose::Module WithoutReaders(const model::Problem& problem, const decompose::Module& module,
                                 const Withheld& withheld);

/*! \brief Moves tasks that may not be where they are to other devices, at random. */
void MoveToAllowed(const decompose::Module& module, Random& random, Layout& layout);

}  // namespace heteroplace::search
