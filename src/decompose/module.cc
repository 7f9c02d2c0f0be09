#include "decompose/module.h"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>

namespace heteroplace {

namespace {

/*!
 * \brief Where pieces begin: behind each task that all others come before or after.
 * \param is_strict Also no tensor, transfer or group may pass by.
 */
std::vector<int> FindBounds(const Problem& problem, bool is_strict) {
  const int count = problem.num_tasks;
  std::vector<int> until(count, 0);      // last successor
  std::vector<int> first(count, count);  // first successor
  for (int task = 0; task < count; ++task) {
    const auto after = problem.successors[task];
    if (!after.empty()) {
      first[task] = after.front();
      until[task] = after.back();
    }
  }
  int input_until = -1;  // with a host, copies of inputs may begin at once
  for (int task = 0; task < count && problem.host >= 0; ++task) {
    for (int tensor : problem.task_reads[task]) {
      if (problem.producer[tensor] < 0) input_until = task;
    }
  }
  int first_output = count;
  for (int tensor : problem.outputs) {
    if (problem.host >= 0 && problem.producer[tensor] >= 0) {
      first_output = std::min(first_output, problem.producer[tensor]);
    }
  }
  std::vector<int> group_last(problem.num_groups, -1);
  for (int task = 0; task < count; ++task) {
    if (problem.task_group[task] >= 0) group_last[problem.task_group[task]] = task;
  }
  std::vector<uint8_t> follows(count, 1);  // all later tasks have a predecessor at or after it
  int lowest = count;
  for (int task = count - 1; task >= 0; --task) {
    follows[task] = lowest >= task;
    const auto before = problem.predecessors[task];
    lowest = std::min(lowest, before.empty() ? -1 : before.back());
  }
  std::vector<int> bounds{0};
  int reach = input_until, entry = -1, joined = -1;
  for (int task = 0; task < count; ++task) {
    if (problem.task_group[task] >= 0) {
      // A group that goes on behind a cut would tie two pieces together.
      joined = std::max(joined, group_last[problem.task_group[task]]);
    }
    const bool is_passed = reach > task || joined > task || first_output <= task;
    const bool is_cut =
        entry <= task && follows[task] != 0 && task + 1 < count && !(is_strict && is_passed);
    if (is_cut) bounds.push_back(task + 1);
    reach = std::max(reach, until[task]);
    entry = std::max(entry, first[task]);
  }
  bounds.push_back(count);
  return bounds;
}

/*! \brief Makes the piece of the tasks in [begin, end). */
class PieceMaker {
 public:
  explicit PieceMaker(const Problem& problem)
      : problem_(problem), local_(problem.num_tensors, -1) {}

  Piece Make(int begin, int end) {
    Piece piece;
    begin_ = begin;
    piece.num_tasks = end - begin;
    piece.num_devices = static_cast<size_t>(problem_.num_devices);
    piece.num_memories = static_cast<size_t>(problem_.num_memories);
    piece.has_exit = end < problem_.num_tasks;
    const auto devices = static_cast<std::ptrdiff_t>(piece.num_devices);
    piece.run_ns.assign(problem_.run_ns.begin() + begin * devices,
                        problem_.run_ns.begin() + end * devices);
    piece.weight_bytes.assign(problem_.weight_bytes.begin() + begin,
                              problem_.weight_bytes.begin() + end);
    piece.workspace_bytes.assign(problem_.workspace_bytes.begin() + begin,
                                 problem_.workspace_bytes.begin() + end);
    piece.has_workspace = std::any_of(piece.workspace_bytes.begin(), piece.workspace_bytes.end(),
                                      [](int64_t bytes) { return bytes > 0; });
    AddTasks(piece, begin, end);
    AddReaders(piece);
    AddTails(piece);
    for (int tensor : tensors_) local_[tensor] = -1;
    tensors_.clear();
    return piece;
  }

 private:
  int Local(Piece& piece, int tensor) {
    if (local_[tensor] >= 0) return local_[tensor];
    local_[tensor] = piece.num_tensors++;
    tensors_.push_back(tensor);
    const int producer = problem_.producer[tensor];
    const bool is_here = producer >= begin_;
    piece.producer.push_back(is_here ? producer - begin_ : -1);
    piece.source.push_back(producer >= 0 ? kEntry : problem_.host);
    piece.is_from_cut.push_back(producer >= 0 && producer == begin_ - 1 ? 1 : 0);
    piece.tensor_bytes.push_back(problem_.tensor_bytes[tensor]);
    piece.is_free_at_host.push_back(problem_.IsChargedToHost(tensor) ? 1 : 0);
    const size_t pairs = piece.num_memories * piece.num_memories;
    const auto from = problem_.transfer_ns.begin() +
                      static_cast<std::ptrdiff_t>(static_cast<size_t>(tensor) * pairs);
    piece.transfer_ns.insert(piece.transfer_ns.end(), from,
                             from + static_cast<std::ptrdiff_t>(pairs));
    if (problem_.host >= 0 && problem_.is_output[tensor] != 0 && is_here) {
      piece.host_outputs.push_back(local_[tensor]);
    }
    return local_[tensor];
  }

  void AddTasks(Piece& piece, int begin, int end) {
    std::unordered_map<int, int> groups;
    std::vector<std::vector<int>> members;
    std::vector<int> row;
    for (int task = begin; task < end; ++task) {
      piece.allowed.AddRow(problem_.allowed[task]);
      row.clear();
      for (int tensor : problem_.task_reads[task]) row.push_back(Local(piece, tensor));
      piece.reads.AddRow(row);
      row.clear();
      for (int tensor : problem_.task_makes[task]) row.push_back(Local(piece, tensor));
      piece.makes.AddRow(row);
      row.clear();
      for (int before : problem_.predecessors[task]) {
        if (before >= begin) row.push_back(before - begin);
      }
      piece.predecessors.AddRow(row);
      row.clear();
      for (int after : problem_.successors[task]) {
        if (after < end) row.push_back(after - begin);
      }
      piece.successors.AddRow(row);
      int group = problem_.task_group[task];
      if (group >= 0) {
        group = groups.emplace(group, static_cast<int>(groups.size())).first->second;
        if (group == static_cast<int>(members.size())) members.emplace_back();
        members[group].push_back(task - begin);
      }
      piece.group.push_back(group);
    }
    for (const auto& tasks : members) piece.group_tasks.AddRow(tasks);
  }

  static void AddReaders(Piece& piece) {
    std::vector<std::vector<int>> readers(piece.num_tensors);
    for (int task = 0; task < piece.num_tasks; ++task) {
      for (int tensor : piece.reads[task]) readers[tensor].push_back(task);
    }
    for (const auto& tasks : readers) piece.readers.AddRow(tasks);
  }

  static void AddTails(Piece& piece) {
    piece.tail_ns.assign(piece.num_tasks, 0);
    for (int task = piece.num_tasks - 1; task >= 0; --task) {
      for (int next : piece.successors[task]) {
        int64_t fastest = piece.allowed[next].empty() ? 0 : std::numeric_limits<int64_t>::max();
        for (int device : piece.allowed[next]) {
          fastest = std::min(fastest, piece.Run(next, device));
        }
        piece.tail_ns[task] = std::max(piece.tail_ns[task], piece.tail_ns[next] + fastest);
      }
    }
  }

  const Problem& problem_;
  std::vector<int> local_;    // [num_tensors], -1: not in the piece
  std::vector<int> tensors_;  // those that are
  int begin_ = 0;
};

template <typename T>
void Append(std::string& key, const std::vector<T>& values) {
  const size_t count = values.size();
  key.append(reinterpret_cast<const char*>(&count), sizeof(count));
  key.append(reinterpret_cast<const char*>(values.data()), count * sizeof(T));
}

/*! \brief All that pieces of equal shape share: everything but times and sizes. */
std::string ShapeKey(const Piece& piece) {
  std::string key;
  for (const Csr* lists : {&piece.group_tasks, &piece.allowed, &piece.reads, &piece.makes}) {
    Append(key, lists->offsets);
    Append(key, lists->values);
  }
  Append(key, piece.group);
  Append(key, piece.source);
  Append(key, piece.producer);
  Append(key, piece.is_from_cut);
  Append(key, piece.host_outputs);
  Append(key, piece.is_free_at_host);
  key.push_back(piece.has_exit ? 1 : 0);
  return key;
}

std::string CostKey(const Piece& piece) {
  std::string key;
  Append(key, piece.run_ns);
  Append(key, piece.weight_bytes);
  Append(key, piece.workspace_bytes);
  Append(key, piece.tensor_bytes);
  Append(key, piece.transfer_ns);
  return key;
}

}  // namespace

namespace {

/*! \brief Room for the pieces: capacity without what is used anyway and without workspace. */
std::vector<int64_t> FindRoom(const Problem& problem, bool is_workspace_set_aside) {
  std::vector<int64_t> room = problem.memory_bytes;
  for (int memory = 0; memory < problem.num_memories; ++memory) {
    room[memory] -= problem.base_bytes[memory];
  }
  for (int device = 0; device < problem.num_devices && is_workspace_set_aside; ++device) {
    int64_t largest = 0;
    for (int task = 0; task < problem.num_tasks; ++task) {
      if (problem.Run(task, device) != kImpossible) {
        largest = std::max(largest, problem.workspace_bytes[task]);
      }
    }
    room[problem.device_memory[device]] -= largest;
  }
  return room;
}

}  // namespace

namespace {

Chain MakeChain(const Problem& problem, std::vector<int> bounds) {
  Chain chain;
  chain.first_task = std::move(bounds);
  const bool is_one = chain.first_task.size() <= 2;
  chain.room_bytes = FindRoom(problem, !is_one);
  PieceMaker maker(problem);
  std::unordered_map<std::string, int> shapes;
  std::unordered_map<std::string, int> classes;
  for (size_t index = 0; index + 1 < chain.first_task.size(); ++index) {
    Piece piece = maker.Make(chain.first_task[index], chain.first_task[index + 1]);
    if (!is_one) {
      std::fill(piece.workspace_bytes.begin(), piece.workspace_bytes.end(), 0);
      piece.has_workspace = false;
    }
    std::string key = ShapeKey(piece);
    const int shape = shapes.emplace(key, static_cast<int>(shapes.size())).first->second;
    key += CostKey(piece);
    const auto [found, is_new] =
        classes.emplace(std::move(key), static_cast<int>(chain.classes.size()));
    if (is_new) {
      chain.classes.push_back(std::move(piece));
      chain.shape.push_back(shape);
    }
    chain.piece_class.push_back(found->second);
  }
  return chain;
}

}  // namespace

Chain Decompose(const Problem& problem) { return MakeChain(problem, FindBounds(problem, true)); }

Chain DecomposeIntoStages(const Problem& problem) {
  return MakeChain(problem, FindBounds(problem, false));
}

}  // namespace heteroplace
