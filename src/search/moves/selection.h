#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "search/moves/patterns.h"
#include "support/random.h"

namespace heteroplace::search {

/*! \brief One pattern for each module of a modules. */
struct Selection {
  std::vector<int> choice;  // [num_modules], pattern of the module's class
  int64_t time_ns = 0;
  std::vector<int64_t> used;    // [num_memories], without what is used under every placement
  int64_t num_unreachable = 0;  // modules with a tensor that cannot reach where it is read
  int64_t violation = 0;        // bytes without room, and a penalty for each of those modules
};

/*!
 * \brief Chooses a pattern for each module: least total time within the memories.
 *
 * For given prices of memory the best selection is a shortest path over (module, memory of the
 * cut). Prices are found by ascending the Lagrangian dual; whole bytes are then met by replacing
 * segments of the modules by shortest paths for varied prices.
 */
class Selector {
 public:
  Selector(const model::Problem& problem, const decompose::Modules& modules,
           const Patterns& patterns);

  /*! \brief The selection with the given patterns. */
  Selection Make(std::vector<int> choice) const;
  /*!
   * \brief Prices of memory, [num_memories] ns per byte, for which the best selection fits.
   * \param stop Asked after each round; true ends it.
   */
  std::vector<double> FindPrices(std::vector<double> price, int64_t target_ns, int rounds,
                                 const std::function<bool()>& stop);
  /*! \brief The best selection for prices; an empty one if the known patterns do not connect. */
  Selection BestFor(std::span<const double> price);
  /*!
   * \brief Improves a selection: less violation, then less time.
   * \param tries Segments to replace.
   * \param stop Asked before each; true ends it.
   */
  Selection Improve(Selection selection, std::span<const double> price, int tries, Random& random,
                    const std::function<bool()>& stop);

  /*!
   * \brief What a module of a class would have to gain to matter, for each pair of memories.
   *
   * [num_classes][num_memories][num_memories]: least, over the class's modules, of the cost of the
   * best path through that pair minus the cost of the best path; kNoCost: no path.
   */
  std::vector<double> Slack(std::span<const double> price) const;
  /*! \brief Best pattern of a class between two memories at a price; -1: none. */
  int Best(int module_class, int entry, int exit, std::span<const double> price) const;

 private:
  /*! \brief Best patterns of all classes for one vector of prices. */
  struct Table {
    std::vector<int> pattern;  // [num_classes][num_memories][num_memories], -1: none
    std::vector<double> cost;  // same
  };
  Table MakeTable(std::span<const double> price) const;
  /*! \brief Cheapest patterns for modules [begin, end) between two memories; exit -1: any. */
  bool FindPath(const Table& table, int begin, int end, int entry, int exit,
                std::vector<int>& choice);
  size_t Cell(int module_class, int entry, int exit) const {
    return (static_cast<size_t>(module_class) * num_memories_ + static_cast<size_t>(entry)) *
               num_memories_ +
           static_cast<size_t>(exit);
  }
  int ExitOf(int module, int pattern) const {
    return patterns_.of(modules_.module_class[module])[pattern].exit_memory;
  }
  int64_t Violation(std::span<const int64_t> used) const;
  double Penalty(std::span<const int64_t> used, std::span<const double> rate) const;
  /*! \brief Adds a pattern to a selection's totals, or takes it off again (sign -1). */
  void AddModule(int module, int pattern, int entry, int64_t sign, Selection& totals) const;

  const model::Problem& problem_;
  const decompose::Modules& modules_;
  const Patterns& patterns_;
  size_t num_memories_;
  std::vector<double> reach_;  // [num_modules + 1][num_memories], of FindPath
  std::vector<int> from_;      // same, memory before
};

}  // namespace heteroplace::search
