#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "decompose/module.h"
#include "search/evaluate/pair_table.h"

namespace heteroplace::search {

/*!
 * \brief A placement and an order of the tasks of a module, with the memory they use; changes can
 * be taken back.
 *
 * Memory follows the static rule: weights, tensors where they are made and where they are copied
 * to, and the largest workspace of each device. Not thread-safe.
 */
class Arrangement {
 public:
  Arrangement(const model::Problem& problem, const decompose::Module& module);

  /*! \brief Starts anew; `entry` is the memory of the cut before the module. */
  void Load(std::span<const int> device, std::span<const int> order, int entry);

  /*! \brief Moves a task, with its group, to a device where all of them are allowed. */
  void SetDevice(int task, int device);
  /*! \brief Moves the task at position `from` of the order to position `to`. */
  void Rotate(int from, int to);
  /*! \brief Lowest and highest position where a task may stand, others staying. */
  std::pair<int, int> Range(int task) const;

  /*!
   * \brief Puts tasks on devices at the positions of the order from `first` on, for good.
   * \param tasks Those that are at these positions, in their new order, which must be topological.
   * \param devices For each of them; one for all of a group.
   */
  void Replace(int first, std::span<const int> tasks, std::span<const int> devices);

  /*! \brief Makes the changes since the latest Keep or Undo final. */
  void Keep();
  /*! \brief Takes them back. */
  void Undo();
  /*! \brief Whether there are any. */
  bool is_changed() const { return !devices_undo_.empty() || !rotations_undo_.empty(); }
  /*! \brief First position of the order whose task may run at another time than before. */
  int first_changed() const { return first_changed_; }
  /*! \brief Last position whose task or copies are not as before; outputs leave at num_tasks. */
  int last_changed() const { return last_changed_; }

  const std::vector<int>& device() const { return device_; }
  const std::vector<int>& order() const { return order_; }
  const std::vector<int>& position() const { return position_; }
  int entry() const { return entry_; }
  /*! \brief Sum of the run times of the tasks that use each unit, [num_units]. */
  const std::vector<int64_t>& load_ns() const { return load_ns_; }
  /*! \brief Bytes in use, [num_memories]. */
  const std::vector<int64_t>& used() const { return used_; }
  /*! \brief Memory where a tensor is made; kEverywhere for inputs without host. */
  int Home(int tensor) const {
    const int producer = module_.producer[tensor];
    if (producer >= 0) return problem_.device_memory[device_[producer]];
    return module_.source[tensor] == decompose::kEntry ? entry_ : module_.source[tensor];
  }

 private:
  void SetOne(int task, int device);
  void MoveReads(int task, int from, int to);
  void MoveMakes(int task, int from, int to);
  void MoveWorkspace(int task, int from, int to);
  void NotePositions(int task);
  void NoteReaders(int tensor);
  void AddLoad(int task, int device, int64_t sign);
  int64_t BytesAt(int tensor, int memory) const;
  int& Readers(int tensor, int memory) { return num_readers_[num_readers_.Row(tensor, memory)]; }

  const model::Problem& problem_;
  const decompose::Module& module_;
  int entry_ = 0;
  std::vector<int> device_;                          // [num_tasks]
  std::vector<int> order_;                           // [num_tasks], topological
  std::vector<int> position_;                        // [num_tasks], place in the order
  PairTable<int> num_readers_;                       // of a tensor in a memory
  std::vector<int64_t> workspace_;                   // [num_devices], largest of the tasks there
  std::vector<int64_t> used_;                        // [num_memories]
  std::vector<int64_t> load_ns_;                     // [num_units]
  std::vector<std::pair<int, int>> devices_undo_;    // (task, old device), in order of change
  std::vector<std::pair<int, int>> rotations_undo_;  // (from, to)
  int first_changed_ = 0;
  int last_changed_ = -1;
};

}  // namespace heteroplace::search
