#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "decompose/module.h"
#include "model/problem.h"

namespace heteroplace::bounds {

/*!
 * \brief Prices (Lagrange multipliers) of what a placement uses: times of units and copy resources
 * weigh against the makespan, bytes against the memories' room.
 *
 * Behind the resources come the devices once more, as "late" ones: only tasks that read what the
 * cut made occupy them, and only if it had to be copied there. With two phases, which a time of the
 * module parts, the resources come a third time: their early use, before that time; the first are
 * then their use after it.
 */
struct Prices {
  std::vector<double> resource;  // [num_resources + num_devices (+ num_resources)], >= 0
  std::vector<double> memory;    // [num_memories], ns per byte
};

/*! \brief What a placement that is cheapest at some prices takes. */
struct Usage {
  double cost = 0;              // at the prices
  std::vector<double> busy_ns;  // as Prices::resource
  std::vector<double> used;     // [num_memories], bytes
};

/*! \brief Which devices and memories a module is restricted to. */
struct Scope {
  uint32_t devices = 0;   // devices that its inner tasks may use
  uint32_t memories = 0;  // memories that may read what the cut before it made
  // With two phases: which tasks cannot start in the early one, [num_distinct][num_devices]. Empty:
  // there is one phase.
  std::vector<bool> is_late;

  int num_phases() const { return is_late.empty() ? 1 : 2; }
};

/*! \brief Whether a set of a scope has a device or memory. */
inline bool Has(uint32_t set, int member) { return (set >> member & 1U) != 0; }

/*!
 * \brief The tasks strictly between two cuts, as trees of tasks that exchange tensors.
 *
 * At given prices the cheapest placement is found exactly by dynamic programming over the trees.
 * Edges beyond a spanning forest are left out, and a tensor with k readers is charged 1/k for each
 * reader in another memory: both only lower the cost, so it stays a lower bound. Equal trees are
 * solved once. Memory counts weights, tensors where they are made, and copies.
 *
 * With two phases each run and each copy is wholly in one of them, and none is early behind a late
 * one. What spans the border is no exception: put all into the phase that they are in when a part x
 * of them is done; that is such a placement for every x, and over all x in [0, 1] the mean of what
 * they use is what the plan uses.
 */
class ModuleTrees {
 public:
  ModuleTrees(const model::Problem& problem, const decompose::Module& module);

  /*! \brief Number of tasks between the cuts. */
  int num_inner() const { return num_inner_; }
  /*! \brief The same, tasks of equal trees counted once. */
  int num_distinct() const { return static_cast<int>(solution_.size()); }
  const decompose::Module& module() const { return module_; }

  /*!
   * \brief The cheapest placement of the inner tasks, if the exit (if any) is on device `exit`
   * (-1: there is none) and what the cut made is in memory `entry_memory` (-1: there is none).
   * \return False if some task may run on no device of the scope.
   */
  bool Solve(const Prices& prices, const Scope& scope, int entry_memory, int exit, Usage& use);

  /*!
   * \brief What Scope::is_late holds: whether all tasks that stand for one have the property.
   * \param is_late Of a task and a device.
   */
  std::vector<bool> LateStarts(const std::function<bool(int, int)>& is_late) const;

  /*! \brief Whether an inner task reads what the cut made. */
  bool ReadsCut(int task) const { return reads_cut_[task] != 0; }
  /*! \brief Devices of the latest Solve, tree by tree, for the first one of equal trees. */
  const std::vector<uint8_t>& solution() const { return solution_; }
  /*! \brief Number of trees, equal ones each. */
  int num_trees() const { return static_cast<int>(instances_.size()); }
  /*! \brief Gives the tasks of a tree the devices that a solution has for it or its equal. */
  void Apply(int tree, const std::vector<uint8_t>& solution, std::span<int> device) const;

 private:
  struct Edge {
    int parent;           // position in the tree of the task nearer to the root, -1 for the root
    bool is_from_parent;  // the parent makes the tensors
    std::vector<int> tensors;
  };
  struct Tree {
    std::vector<int> tasks;   // a parent before its children
    std::vector<Edge> edges;  // [tasks.size()], to the parent
    int count = 1;            // equal trees
    size_t offset = 0;        // of its tasks in a solution
  };
  /*! \brief A tree and which of the distinct ones it equals. */
  struct Instance {
    std::vector<int> tasks;
    int tree;
  };

  void Grow(int root, std::vector<uint8_t>& is_taken);
  std::string Key(const Tree& tree) const;
  bool SolveTree(const Tree& tree, const Prices& prices, const Scope& scope, int entry_memory,
                 int exit, Usage& use);
  void SendUp(const Tree& tree, size_t index);
  void FindRates(const Prices& prices);
  double TaskCost(int task, int device, int phase, int entry_memory, int exit, const Prices& prices,
                  const Scope& scope) const;
  /*! \brief Price of a copy in the cheapest of the phases from `first` to `last`. */
  double CopyCost(int tensor, int src, int dst, int first, int last) const;
  void AddCopy(int tensor, int src, int dst, int first, int last, double times, Usage& use) const;
  void AddTask(int task, int state, int entry_memory, int exit, double times, Usage& use) const;
  /*! \brief Which phase of two is the cheaper one for copies between two memories. */
  int Cheaper(int pair) const {
    const size_t pairs = module_.num_memories * module_.num_memories;
    return pair_rate_[static_cast<size_t>(pair)] <= pair_rate_[pairs + static_cast<size_t>(pair)]
               ? 0
               : 1;
  }
  /*! \brief Where the use of resources in a phase begins among the prices. */
  size_t Offset(int phase) const {
    const bool is_early = num_phases_ == 2 && phase == 0;
    return is_early ? static_cast<size_t>(problem_.num_resources + problem_.num_devices) : 0;
  }
  /*! \brief Position of the late resource that a task occupies; -1: none. */
  int Late(int task, int device, int entry_memory) const {
    const bool is_late = reads_cut_[task] != 0 && entry_memory >= 0 &&
                         problem_.device_memory[device] != entry_memory;
    return is_late ? problem_.num_resources + device : -1;
  }
  double Share(int tensor) const { return 1.0 / static_cast<double>(num_readers_[tensor]); }

  const model::Problem& problem_;
  const decompose::Module& module_;
  int num_inner_;
  std::vector<Tree> trees_;          // distinct ones
  std::vector<Instance> instances_;  // all, in order of their first tasks
  std::vector<uint8_t> reads_cut_;   // [num_tasks]
  std::vector<int> num_readers_;     // [num_tensors]
  std::vector<double> made_bytes_;   // [num_tasks][num_memories], weights and tensors
  int num_phases_ = 1;               // of the latest Solve
  std::vector<double> pair_rate_;    // [phases][num_memories^2], price of a ns of copying
  std::vector<double> unit_rate_;    // [phases][num_devices], price of a ns of running
  std::vector<double> memory_rate_;  // [num_memories]
  // Of SolveTree; a state is a device and a phase: device * phases + phase.
  std::vector<double> cost_;       // [tasks][states]
  std::vector<int> best_child_;    // [tasks][states of the parent], states
  std::vector<int> state_;         // [tasks]
  std::vector<uint8_t> solution_;  // [tasks of distinct trees]
};

}  // namespace heteroplace::bounds
