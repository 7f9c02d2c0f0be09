#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "decompose/module.h"
#include "search/moves/module_annealing.h"

namespace heteroplace::search {

/*! \brief One way to lay out a module, with what it takes for each memory it may be entered from.
 */
struct Pattern {
  Layout layout;
  int exit_memory = 0;           // of the last task
  std::vector<int64_t> time_ns;  // [num_entries], kNever: not from there
  std::vector<int64_t> used;     // [num_entries][num_memories], bytes
  int64_t lack_bytes = 0;        // what a module that is all of the problem lacks by lifetime
};

/*! \brief The patterns that are known for each class of modules. Not thread-safe. */
class Patterns {
 public:
  Patterns(const model::Problem& problem, const decompose::Modules& modules);

  /*!
   * \brief Adds a layout to a class, unless another one is at least as good everywhere.
   * \param lack_bytes See Pattern.
   * \return Its id within the class, or -1.
   */
  int Add(int module_class, const Layout& layout, int64_t lack_bytes = 0);
  /*! \brief Memories that a module may be entered from; one (any) where nothing is before it. */
  int num_entries() const { return num_entries_; }
  /*! \brief Patterns of a class. */
  const std::vector<Pattern>& of(int module_class) const { return patterns_[module_class]; }
  /*! \brief Drops all but the given patterns of a class; ids are then positions in `kept`. */
  void Keep(int module_class, std::span<const int> kept);
  /*! \brief Price of a pattern entered from a memory: its time, and `price` ns per byte. */
  double Cost(const Pattern& pattern, int entry, std::span<const double> price) const {
    if (pattern.time_ns[entry] == list::kNever) return kNoCost;
    double cost = static_cast<double>(pattern.time_ns[entry]);
    const size_t row = static_cast<size_t>(entry) * num_memories_;
    for (size_t memory = 0; memory < num_memories_; ++memory) {
      cost += price[memory] * static_cast<double>(pattern.used[row + memory]);
    }
    return cost;
  }
  static constexpr double kNoCost = 1e300;

 private:
  bool IsDominated(const Pattern& pattern, const std::vector<Pattern>& others) const;
  /*! \brief Whether `left` is at least as good as `right` when entered from a memory. */
  bool IsAtLeastAsGood(const Pattern& left, const Pattern& right, int entry) const;

  const model::Problem& problem_;
  const decompose::Modules& modules_;
  size_t num_memories_;
  int num_entries_;
  std::vector<std::vector<Pattern>> patterns_;  // [num_classes]
};

/*!
 * \brief Adds the layouts that are known without searching: everything on one device, and every
 * placement of a very small module.
 * \param stop Asked now and then; true ends it.
 */
void AddPlainPatterns(const model::Problem& problem, const decompose::Modules& modules,
                      Patterns& patterns, const std::function<bool()>& stop);

/*! \brief Whether AddPlainPatterns tries every placement of the module. */
bool IsEnumerated(const decompose::Module& module);

}  // namespace heteroplace::search
