// The text of a program with routers: queues, tensors, and instructions with their waits.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "random_program.h"
#include "routed_decisions.h"

namespace heteroplace::test {

enum RoutedKernel { kDecide = 3, kDispatch, kCombine, kSelect };

/*! \brief Writes instructions in some order, and lets each wait for those on which it depends. */
class RoutedText {
 protected:
  explicit RoutedText(Random& random) : random_(random) { AddQueues(); }

  void AddQueues() {
    const std::vector<int> cores = Cores();
    num_cores_ = 1 + random_.Below(std::min(2, static_cast<int>(cores.size())));
    const int num_queues = std::max(2, num_cores_ + random_.Below(7));
    for (int queue = 0; queue < num_queues; ++queue) {
      const bool is_core = queue < num_cores_;
      const int last = is_core ? cores[static_cast<size_t>(queue)] : random_.Below(3) * 2000;
      head_ += "queue " + std::to_string(queue) + " q" + std::to_string(queue) +
               (is_core ? " cpu" : " fake") + " 1 0 0 " + std::to_string(last) + "\n";
    }
    length_.assign(static_cast<size_t>(num_queues), 0);
  }

  /*! \brief A tensor of 32 bits; in an arena at `place`, or behind all others (-1). */
  int Add(int space, bool is_int, const std::string& shape, int count, int64_t place = -1) {
    if (place < 0) {
      place = arena_bytes_[space];
      arena_bytes_[space] += (count * 4 + 63) / 64 * 64;
    }
    head_ += "tensor " + std::to_string(num_tensors_) + " " + std::to_string(space) + " arena " +
             std::to_string(place) + (is_int ? " 0 32 " : " 2 32 ") + shape + "\n";
    places_.push_back(place);
    return num_tensors_++;
  }

  int AddInput(const std::string& name, bool is_int, const std::string& shape) {
    head_ += "tensor " + std::to_string(num_tensors_) + " 0 external - " +
             (is_int ? "0 32 " : "2 32 ") + shape + "\n";
    places_.push_back(0);
    ports_ += "input " + name + " " + std::to_string(num_tensors_) + "\n";
    return num_tensors_++;
  }

  void AddOutput(const std::string& name, int tensor) {
    ports_ += "output " + name + " " + std::to_string(tensor) + "\n";
  }

  /*! \brief A queue that may read loads: not the asynchronous one that writes them. */
  int Queue(const std::vector<int>& others = {}) {
    for (;;) {
      const int queue = random_.Below(static_cast<int>(length_.size()));
      const bool is_taken = std::find(others.begin(), others.end(), queue) != others.end();
      if (queue < num_cores_ || !is_taken) return queue;
    }
  }
  int Core() { return random_.Below(num_cores_); }

  /*! \brief Writes an instruction, of which `what` comes after queue and step. */
  std::pair<int, int> Emit(int queue, const std::string& word, const std::string& what,
                           const std::vector<int>& reads, const std::vector<int>& writes) {
    std::vector<std::pair<int, int>> before;
    for (int value : reads) before.push_back(written_[value]);
    for (int value : writes) {
      before.push_back(written_[value]);
      before.insert(before.end(), reads_[value].begin(), reads_[value].end());
    }
    body_ += word + " " + std::to_string(queue) + " " + std::to_string(num_steps_++) + " " + what +
             " " + (is_grouped_ ? "-" : WaitText(queue, before)) + "\n";
    const std::pair<int, int> now(queue, ++length_[static_cast<size_t>(queue)]);
    for (int value : writes) {
      written_[value] = now;
      reads_[value].clear();
    }
    for (int value : reads) reads_[value].push_back(now);
    return now;
  }

  static std::string Ids(const std::vector<int>& tensors) {
    std::vector<std::string> parts;
    for (int tensor : tensors) parts.push_back(std::to_string(tensor));
    return Join(parts);
  }

  void Call(int queue, int kernel, const std::vector<int>& reads, const std::vector<int>& writes) {
    std::vector<int> tensors = reads;
    tensors.insert(tensors.end(), writes.begin(), writes.end());
    Emit(queue, "call", std::to_string(kernel) + " 1 " + Ids(tensors), reads, writes);
  }

  int ReserveRouter() {
    routers_.emplace_back();
    return static_cast<int>(routers_.size()) - 1;
  }

  /*! \brief Writes a line of a router; `decision`: loads, offsets and seats, or -1. */
  void SetRouter(int line, const std::string& name, const RouterForm& form, int rows,
                 const std::vector<int>& decision, const std::vector<std::pair<int, int>>& there) {
    std::string capacities;
    for (const std::vector<int>& each : form.capacities) {
      capacities += (capacities.empty() ? "" : ";") + Ids(each);
    }
    std::string ids;
    for (int tensor : decision) ids += tensor < 0 ? "- " : std::to_string(tensor) + " ";
    std::vector<std::string> waits;
    for (const auto& [queue, count] : there) {
      waits.push_back(std::to_string(queue) + ":" + std::to_string(count));
    }
    routers_[static_cast<size_t>(line)] =
        "router " + std::to_string(line) + " " + name + " " + ids + form.overflow + " " +
        std::to_string(form.cells) + " " + std::to_string(decision[1] < 0 ? 0 : rows) + " " +
        std::to_string(form.quantum) + " " + capacities + " " + Join(waits) + "\n";
  }

  /*! \brief A line of a router: where loads and offsets are, and asynchronous queues that write
   * them. */
  struct Line {
    int id;
    std::vector<int> reads;
    std::vector<int> writers;
  };

  std::pair<int, int> Guarded(int queue, const Line& line, int branch, const std::string& when,
                              const std::string& what, std::vector<int> reads,
                              const std::vector<int>& writes, bool is_call = true) {
    if (when != "predicted") reads.insert(reads.end(), line.reads.begin(), line.reads.end());
    const std::string guard =
        std::to_string(line.id) + " " + std::to_string(branch) + " " + when + " ";
    return Emit(queue, is_call ? "branch_call" : "branch_copy", guard + what, reads, writes);
  }

  /*! \brief A call of a group: what comes after the guard, and what it reads and writes. */
  struct GroupedCall {
    int branch;
    std::string what;
    std::vector<int> reads, writes;
  };

  /*! \brief Writes a group of a random team; returns the places of its calls. */
  std::vector<std::pair<int, int>> Group(int queue, const Line& line,
                                         const std::vector<GroupedCall>& calls) {
    std::vector<int> reads = line.reads, writes;
    for (const GroupedCall& call : calls) {
      reads.insert(reads.end(), call.reads.begin(), call.reads.end());
      writes.insert(writes.end(), call.writes.begin(), call.writes.end());
    }
    const bool is_team = queue < num_cores_ && num_cores_ == 2 && random_.Below(4) != 0;
    if (is_team) {
      body_ += "join " + std::to_string(1 - queue) + " 0 " + std::to_string(queue) + " " +
               std::to_string(length_[static_cast<size_t>(queue)]) + " -\n";
      ++length_[static_cast<size_t>(1 - queue)];
    }
    Emit(queue, "group", (is_team ? "2 " : "1 ") + std::to_string(calls.size()), reads, writes);
    std::vector<std::pair<int, int>> places;
    is_grouped_ = true;  // the group has waited
    for (const GroupedCall& call : calls) {
      places.push_back(
          Guarded(queue, line, call.branch, "active", "1 " + call.what, call.reads, call.writes));
    }
    is_grouped_ = false;
    return places;
  }

  static std::string Once(int kernel, const std::vector<int>& tensors) {
    return "1 " + CallOf(kernel, tensors);
  }
  static std::string CallOf(int kernel, const std::vector<int>& tensors) {
    return "0=" + std::to_string(kernel) + "(" + Ids(tensors) + ")";
  }

  std::string Finish() const {
    std::string text = "heteroplace-program 3\n";
    for (int space = 0; space < 2; ++space) {
      text += "space " + std::to_string(space) + " ram" + std::to_string(space) + " 1 0 " +
              std::to_string(arena_bytes_[space]) + "\n";
    }
    text += head_ + ports_;
    const char* const kernels[] = {"add",      "twice",   "keep_positive", "decide",
                                   "dispatch", "combine", "select_active"};
    for (size_t k = 0; k < std::size(kernels); ++k) {
      text += "kernel " + std::to_string(k) + " " + kernels[k] + "\n";
    }
    for (const std::string& router : routers_) text += router;
    return text + body_ + "end\n";
  }

  Random& random_;
  int num_cores_ = 0;
  std::vector<int64_t> places_;  // [num_tensors]
  std::vector<int> length_;      // [num_queues]
  std::string body_;

 private:
  int num_tensors_ = 0, num_steps_ = 0;
  bool is_grouped_ = false;
  int64_t arena_bytes_[2] = {0, 0};
  std::map<int, std::pair<int, int>> written_;             // by value: queue, count
  std::map<int, std::vector<std::pair<int, int>>> reads_;  // since then
  std::vector<std::string> routers_;
  std::string head_, ports_;
};

}  // namespace heteroplace::test
