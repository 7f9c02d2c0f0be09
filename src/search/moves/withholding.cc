#include "search/moves/withholding.h"

#include <algorithm>

namespace heteroplace::search {

namespace {

constexpr int64_t kLongShare = 20;  // a copy is long that takes one of so many parts of the time
constexpr int kMinReaders = 2;      // in one memory: a single one is moved like any task

/*! \brief The copies of one module's tensors under a layout. */
class Copies {
 public:
  Copies(const model::Problem& problem, const decompose::Module& module, const Layout& layout,
         int entry, int64_t time_ns)
      : problem_(problem),
        module_(module),
        layout_(layout),
        entry_(entry),
        least_ns_(std::max<int64_t>(1, time_ns / kLongShare)) {}

  /*! \brief Time of a copy of a tensor to a memory; 0: there is none. */
  int64_t Time(int tensor, int memory) const {
    const int producer = module_.producer[tensor];
    const int source = module_.source[tensor];
    const int home = producer >= 0                 ? MemoryOf(producer)
                     : source == decompose::kEntry ? entry_
                                                   : source;
    if (home < 0 || home == memory) return 0;
    const int64_t transfer_ns = module_.Transfer(tensor, home, memory);
    return transfer_ns == model::kImpossible ? 0 : transfer_ns;
  }

  bool IsLong(int tensor, int memory) const { return Time(tensor, memory) >= least_ns_; }

  /*! \brief Number of memories that a tensor can be copied to. */
  size_t NumOthers(int tensor) const {
    size_t count = 0;
    for (int memory = 0; memory < problem_.num_memories; ++memory) {
      if (Time(tensor, memory) > 0) ++count;
    }
    return count;
  }

  /*! \brief Whether several tasks read a tensor in a memory. */
  bool HasReaders(int tensor, int memory) const {
    const auto readers = module_.readers[tensor];
    return std::count_if(readers.begin(), readers.end(),
                         [&](int task) { return MemoryOf(task) == memory; }) >= kMinReaders;
  }

  /*! \brief Whether one of several memories is left, and all readers can do without the others. */
  bool CanWithhold(const Withheld& withheld) const {
    const size_t count = withheld.memories.size();
    if (count > 1 && count >= NumOthers(withheld.tensor)) return false;
    for (int task : module_.readers[withheld.tensor]) {
      // Where the last task runs is what the module is searched for; groups move as one.
      if (task == module_.num_tasks - 1 && withheld.KeepsOutOf(MemoryOf(task))) return false;
      const auto allowed = module_.allowed[task];
      const bool can_move = std::ranges::any_of(allowed, [&](int device) {
        return !withheld.KeepsOutOf(problem_.device_memory[device]);
      });
      if (!can_move || module_.group[task] >= 0) return false;
    }
    return true;
  }

 private:
  int MemoryOf(int task) const { return problem_.device_memory[layout_.device[task]]; }

  const model::Problem& problem_;
  const decompose::Module& module_;
  const Layout& layout_;
  int entry_;
  int64_t least_ns_;
};

}  // namespace

Withheld ChooseWithheld(const model::Problem& problem, const decompose::Module& module,
                        const Layout& layout, int entry, int64_t time_ns, Random& random) {
  const Copies copies(problem, module, layout, entry, time_ns);
  std::vector<Withheld> made;  // each a copy that the layout makes
  for (int tensor = 0; tensor < module.num_tensors; ++tensor) {
    for (int memory = 0; memory < problem.num_memories; ++memory) {
      const Withheld one{tensor, {memory}};
      if (copies.IsLong(tensor, memory) && copies.HasReaders(tensor, memory) &&
          copies.CanWithhold(one)) {
        made.push_back(one);
      }
    }
  }
  if (made.empty()) return {};
  Withheld chosen = made[static_cast<size_t>(random.Below(static_cast<int>(made.size())))];
  const int first = chosen.memories[0];
  for (int memory = 0; memory < problem.num_memories; ++memory) {
    if (memory == first || !copies.IsLong(chosen.tensor, memory) || random.Below(2) == 0) continue;
    chosen.memories.push_back(memory);
    if (!copies.CanWithhold(chosen)) chosen.memories.pop_back();
  }
  std::ranges::sort(chosen.memories);
  return chosen;
}

decompose::Module WithoutReaders(const model::Problem& problem, const decompose::Module& module,
                                 const Withheld& withheld) {
  decompose::Module without = module;
  for (int task : module.readers[withheld.tensor]) {
    for (int device : module.allowed[task]) {
      if (!withheld.KeepsOutOf(problem.device_memory[device])) continue;
      without.run_ns[static_cast<size_t>(task) * module.num_devices + static_cast<size_t>(device)] =
          model::kImpossible;
    }
  }
  without.allowed = {};
  for (int task = 0; task < module.num_tasks; ++task) {
    std::vector<int> devices;
    for (int device : module.allowed[task]) {
      if (without.Run(task, device) != model::kImpossible) devices.push_back(device);
    }
    without.allowed.AddRow(devices);
  }
  return without;
}

void MoveToAllowed(const decompose::Module& module, Random& random, Layout& layout) {
  for (int task = 0; task < module.num_tasks; ++task) {
    int& device = layout.device[task];
    if (module.Run(task, device) != model::kImpossible) continue;
    const auto allowed = module.allowed[task];
    device = allowed[static_cast<size_t>(random.Below(static_cast<int>(allowed.size())))];
  }
}

}  // namespace heteroplace::search
