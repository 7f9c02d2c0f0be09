// Random programs over cores and fake devices for the executor, with what they compute.
#pragma once

#include <sched.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "exec/engine/executor.h"

namespace heteroplace::test {

inline constexpr int kExtent = 64;  // elements of a vector
inline constexpr int kSlots = 5;   // few: values overwrite others that another queue may still read
inline constexpr int kInputs = 3;  // the last one decides whether the run fails
inline constexpr int kFlag = kSlots + kInputs - 1;
enum Kernel { kAdd, kTwice, kKeepPositive };

/*! \brief Where libtvm.so ("": it is not used) and the library of kernels.cc lie; set by main. */
inline std::string libtvm_path, library_path;

using Vector = std::vector<float>;

/*! \brief Cores that this process may use. */
inline std::vector<int> Cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

inline std::string Join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text.empty() ? "-" : text;
}

/*! \brief Waits of an instruction of a queue for the first instructions of others, as text. */
inline std::string WaitText(int queue, const std::vector<std::pair<int, int>>& before) {
  std::map<int, int> latest;
  for (const auto& [other, count] : before) {
    if (count > 0 && other != queue) latest[other] = std::max(latest[other], count);
  }
  std::vector<std::string> parts;
  for (const auto& [other, count] : latest) {
    parts.push_back(std::to_string(other) + ":" + std::to_string(count));
  }
  return Join(parts);
}

/*! \brief Writes a random program and computes its values in program order. */
class Writer {
 public:
  Writer(const std::vector<Vector>& inputs, Random& random) : random_(random) {
    values_.assign(kSlots, Vector(kExtent));
    values_.insert(values_.end(), inputs.begin(), inputs.end());
    const std::vector<int> cores = Cores();
    num_cores_ = random.Below(std::min(2, static_cast<int>(cores.size())) + 1);
    // Half of those of cores have them alone: several requests are then at work on each.
    const int num_queues = std::max(1, num_cores_ + random.Below(2) * random.Below(4));
    text_ = "heteroplace-program 1\nspace 0 ram 1 0 " + std::to_string(kSlots * kExtent * 4) + "\n";
    for (int queue = 0; queue < num_queues; ++queue) {
      const bool is_core = queue < num_cores_;
      const int last = is_core ? cores[static_cast<size_t>(queue)] : random.Below(3) * 2000;
      text_ += "queue " + std::to_string(queue) + " q" + std::to_string(queue) +
               (is_core ? " cpu" : " fake") + " 1 0 0 " + std::to_string(last) + "\n";
    }
    length_.assign(static_cast<size_t>(num_queues), 0);
    WriteTensors();
  }

  /*! \brief The program. Every slot is written first: it holds the last run's value. */
  std::string Finish(int num_steps) {
    for (int slot = 0; slot < kSlots; ++slot) {
      Emit(-1, 1, random_.Below(static_cast<int>(length_.size())), slot, {kSlots});
    }
    const int check = random_.Below(num_steps);
    for (int step = 0; step < num_steps; ++step) AddStep(step == check);
    return text_ + "end\n";
  }

  const Vector& value(int slot) const { return values_[static_cast<size_t>(slot)]; }

 private:
  void WriteTensors() {
    const std::string shape = " 2 32 " + std::to_string(kExtent) + "\n";
    for (int slot = 0; slot < kSlots; ++slot) {
      text_ += "tensor " + std::to_string(slot) + " 0 arena " + std::to_string(slot * kExtent * 4) +
               shape;
    }
    for (int input = 0; input < kInputs; ++input) {
      const std::string tensor = std::to_string(kSlots + input);
      text_ += "tensor " + tensor + " 0 external -" + shape;
      text_ += "input x" + std::to_string(input) + " " + tensor + "\n";
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      text_ += "output y" + std::to_string(slot) + " " + std::to_string(slot) + "\n";
    }
    text_ += "kernel 0 add\nkernel 1 twice\nkernel 2 keep_positive\n";
  }

  void AddStep(bool is_check) {
    int queue = random_.Below(static_cast<int>(length_.size()));
    const int target = random_.Below(kSlots);
    const auto source = [&] {
      const int tensor = random_.Below(kSlots + kInputs - 1);
      return tensor >= target ? tensor + 1 : tensor;  // any but the target
    };
    if (is_check) return Emit(kKeepPositive, 1, queue, target, {kFlag});
    switch (random_.Below(4)) {
      case 0:
        return Emit(kAdd, 1, queue, target, {source(), source()});
      case 1:
        return Emit(-1, 1, queue, target, {source()});
      case 2:
        if (num_cores_ == 2) return EmitTeam(target, source());
        [[fallthrough]];
      default:
        return Emit(kTwice, 1, queue, target, {source()});
    }
  }

  void EmitTeam(int target, int source) {
    const int leader = random_.Below(2), helper = 1 - leader;
    text_ += "join " + std::to_string(helper) + " 0 " + std::to_string(leader) + " " +
             std::to_string(length_[leader]) + " -\n";
    ++length_[helper];
    Emit(kTwice, 2, leader, target, {source});
  }

  /*! \brief Waits for the writers of all tensors, and for the readers of the target. */
  std::string Waits(int queue, const std::vector<int>& sources, int target) {
    std::vector<std::pair<int, int>> before = reads_[target];
    for (int tensor : sources) before.push_back(written_[tensor]);
    before.push_back(written_[target]);
    return WaitText(queue, before);
  }

  /*! \brief Writes an instruction and does it; kernel -1 is a copy. */
  void Emit(int kernel, int threads, int queue, int target, const std::vector<int>& sources) {
    std::vector<std::string> tensors;
    for (int tensor : sources) tensors.push_back(std::to_string(tensor));
    tensors.push_back(std::to_string(target));
    const std::string step = std::to_string(num_steps_++);
    const std::string place = std::to_string(queue) + " " + step + " ";
    text_ += kernel < 0 ? "copy " + place + tensors[0] + " " + tensors[1]
                        : "call " + place + std::to_string(kernel) + " " + std::to_string(threads) +
                              " " + Join(tensors);
    text_ += " " + Waits(queue, sources, target) + "\n";
    const std::pair<int, int> now(queue, ++length_[queue]);
    written_[target] = now;
    reads_[target].clear();
    for (int tensor : sources) reads_[tensor].push_back(now);
    Vector result(kExtent);
    for (size_t i = 0; i < result.size(); ++i) {
      const float first = values_[static_cast<size_t>(sources[0])][i];
      result[i] = kernel == kAdd     ? first + values_[static_cast<size_t>(sources[1])][i]
                  : kernel == kTwice ? first * 2 + 1
                                     : first;
    }
    values_[static_cast<size_t>(target)] = result;
  }

  Random& random_;
  std::string text_;
  int num_cores_ = 0;
  int num_steps_ = 0;
  std::vector<int> length_;                                // [num_queues]
  std::vector<Vector> values_;                             // [kSlots + kInputs]
  std::map<int, std::pair<int, int>> written_;             // tensor: (queue, count)
  std::map<int, std::vector<std::pair<int, int>>> reads_;  // since then
};

/*! \brief What an executor of a program is made from. */
inline exec::ExecutorSource SourceOf(const std::string& text, int max_in_flight = 1) {
  exec::ExecutorSource source;
  source.libtvm_path = libtvm_path;
  source.library_path = library_path;
  source.program_text = text;
  source.max_in_flight = max_in_flight;
  return source;
}

/*! \brief One set of inputs, and what a program makes of them. */
struct Sample {
  std::vector<Vector> inputs;
  std::vector<Vector> outputs;  // [kSlots]
};

/*! \brief A random program, and samples of it with inputs of small whole numbers. */
inline std::string RandomProgram(Random& random, int num_steps, std::vector<Sample>* samples) {
  const Random program = random;
  std::string text;
  for (Sample& sample : *samples) {
    for (int input = 0; input < kInputs; ++input) {
      sample.inputs.emplace_back(kExtent);
      for (float& number : sample.inputs.back()) number = static_cast<float>(random.Below(8));
    }
    Random same = program;
    Writer writer(sample.inputs, same);
    text = writer.Finish(num_steps);
    for (int slot = 0; slot < kSlots; ++slot) sample.outputs.push_back(writer.value(slot));
  }
  return text;
}

/*! \brief Sets all inputs of an executor or a request. */
template <typename Target>
void SetInputs(Target& target, const Sample& sample, bool fails = false) {
  for (int input = 0; input < kInputs; ++input) {
    Vector value = sample.inputs[static_cast<size_t>(input)];
    if (fails && input == kInputs - 1) value[0] = -1;
    target.SetInput("x" + std::to_string(input), {exec::kDLFloat, 32, 1}, {kExtent}, value.data());
  }
}

/*! \brief Checks all outputs of an executor or a request. */
template <typename Target>
void CheckOutputs(Target& target, const Sample& sample) {
  for (size_t slot = 0; slot < kSlots; ++slot) {
    Vector out(kExtent);
    target.GetOutput("y" + std::to_string(slot), out.data());
    CHECK_EQ(out, sample.outputs[slot]);
  }
}

}  // namespace heteroplace::test
