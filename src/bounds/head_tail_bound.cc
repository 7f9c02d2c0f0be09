#include "bounds/head_tail_bound.h"

#include <algorithm>

namespace heteroplace {

namespace {

bool Has(uint32_t set, int member) { return (set >> member & 1U) != 0; }

}  // namespace

Windows::Windows(const Problem& problem, const Piece& piece, const StageScope& scope, int entry,
                 int exit)
    : problem_(problem),
      piece_(piece),
      num_inner_(piece.has_exit ? piece.num_tasks - 1 : piece.num_tasks),
      start_(static_cast<size_t>(piece.num_tasks) * piece.num_devices, kFar),
      rest_(start_.size(), kFar) {
  for (int task = 0; task < num_inner_; ++task) {
    for (int device : piece.allowed[task]) {
      if (!Has(scope.devices, device)) continue;
      start_[Index(task, device)] = Start(task, device, scope, entry);
    }
  }
  for (int task = num_inner_ - 1; task >= 0; --task) {
    for (int device : piece.allowed[task]) {
      if (Has(scope.devices, device)) rest_[Index(task, device)] = Rest(task, device, exit);
    }
  }
}

double Windows::Transfer(int tensor, int src, int dst) const {
  if (src == dst) return 0;
  const int64_t time = piece_.Transfer(tensor, src, dst);
  return time == kImpossible ? kFar : static_cast<double>(time);
}

double Windows::Arrival(int tensor, int memory, const StageScope& scope, int entry) const {
  const int producer = piece_.producer[tensor];
  if (producer >= 0) {
    double arrival = kFar;
    for (int other : piece_.allowed[producer]) {
      const double made = start(producer, other);
      if (made >= kFar) continue;
      arrival = std::min(arrival, made + static_cast<double>(piece_.Run(producer, other)) +
                                      Transfer(tensor, problem_.device_memory[other], memory));
    }
    return arrival;
  }
  if (piece_.is_from_cut[tensor] != 0) {
    if (!Has(scope.memories, memory)) return kFar;
    return Transfer(tensor, problem_.device_memory[entry], memory);
  }
  if (entry < 0 && piece_.source[tensor] >= 0) {
    return Transfer(tensor, piece_.source[tensor], memory);
  }
  return 0;
}

double Windows::Start(int task, int device, const StageScope& scope, int entry) const {
  double ready = 0;
  for (int tensor : piece_.reads[task]) {
    ready = std::max(ready, Arrival(tensor, problem_.device_memory[device], scope, entry));
  }
  return std::min(ready, kFar);
}

double Windows::Rest(int task, int device, int exit) const {
  const int memory = problem_.device_memory[device];
  double rest = 0;
  for (int tensor : piece_.makes[task]) {
    for (int reader : piece_.readers[tensor]) {
      double least = kFar;
      for (int other : piece_.allowed[reader]) {
        if (reader == num_inner_ && other != exit) continue;
        const double after = reader == num_inner_ ? 0.0 : rest_[Index(reader, other)];
        if (after >= kFar) continue;
        least = std::min(least, Transfer(tensor, memory, problem_.device_memory[other]) +
                                    static_cast<double>(piece_.Run(reader, other)) + after);
      }
      rest = std::max(rest, least);
    }
    const bool is_last = !piece_.has_exit && problem_.host >= 0;
    if (is_last && std::find(piece_.host_outputs.begin(), piece_.host_outputs.end(), tensor) !=
                       piece_.host_outputs.end()) {
      rest = std::max(rest, Transfer(tensor, memory, problem_.host));
    }
  }
  return std::min(rest, kFar);
}

}  // namespace heteroplace
