#include "bounds/head_tail_bound.h"

#include <algorithm>

namespace heteroplace::bounds {

HeadTailBound::HeadTailBound(const model::Problem& problem, const decompose::Module& module,
                             const Scope& scope, int entry, int exit)
    : problem_(problem),
      module_(module),
      num_inner_(module.has_exit ? module.num_tasks - 1 : module.num_tasks),
      start_(static_cast<size_t>(module.num_tasks) * module.num_devices, kFar),
      rest_(start_.size(), kFar) {
  for (int task = 0; task < num_inner_; ++task) {
    for (int device : module.allowed[task]) {
      if (!Has(scope.devices, device)) continue;
      start_[Index(task, device)] = Start(task, device, scope, entry);
    }
  }
  for (int task = num_inner_ - 1; task >= 0; --task) {
    for (int device : module.allowed[task]) {
      if (Has(scope.devices, device)) rest_[Index(task, device)] = Rest(task, device, exit);
    }
  }
}

double HeadTailBound::Transfer(int tensor, int src, int dst) const {
  if (src == dst) return 0;
  const int64_t time = module_.Transfer(tensor, src, dst);
  return time == model::kImpossible ? kFar : static_cast<double>(time);
}

double HeadTailBound::Arrival(int tensor, int memory, const Scope& scope, int entry) const {
  const int producer = module_.producer[tensor];
  if (producer >= 0) {
    double arrival = kFar;
    for (int other : module_.allowed[producer]) {
      const double made = start(producer, other);
      if (made >= kFar) continue;
      arrival = std::min(arrival, made + static_cast<double>(module_.Run(producer, other)) +
                                      Transfer(tensor, problem_.device_memory[other], memory));
    }
    return arrival;
  }
  if (module_.is_from_cut[tensor] != 0) {
    if (!Has(scope.memories, memory)) return kFar;
    return Transfer(tensor, problem_.device_memory[entry], memory);
  }
  if (entry < 0 && module_.source[tensor] >= 0) {
    return Transfer(tensor, module_.source[tensor], memory);
  }
  return 0;
}

double HeadTailBound::Start(int task, int device, const Scope& scope, int entry) const {
  double ready = 0;
  for (int tensor : module_.reads[task]) {
    ready = std::max(ready, Arrival(tensor, problem_.device_memory[device], scope, entry));
  }
  return std::min(ready, kFar);
}

double HeadTailBound::Rest(int task, int device, int exit) const {
  const int memory = problem_.device_memory[device];
  double rest = 0;
  for (int tensor : module_.makes[task]) {
    for (int reader : module_.readers[tensor]) {
      double least = kFar;
      for (int other : module_.allowed[reader]) {
        if (reader == num_inner_ && other != exit) continue;
        const double after = reader == num_inner_ ? 0.0 : rest_[Index(reader, other)];
        if (after >= kFar) continue;
        least = std::min(least, Transfer(tensor, memory, problem_.device_memory[other]) +
                                    static_cast<double>(module_.Run(reader, other)) + after);
      }
      rest = std::max(rest, least);
    }
    const bool is_last = !module_.has_exit && problem_.host >= 0;
    if (is_last && std::ranges::find(module_.host_outputs, tensor) != module_.host_outputs.end()) {
      rest = std::max(rest, Transfer(tensor, memory, problem_.host));
    }
  }
  return std::min(rest, kFar);
}

}  // namespace heteroplace::bounds
