// The executor's queues and workers: random programs over cores and fake devices, with failures.
// Arguments: the path of libtvm.so, and of the library of kernels.cc.
#include <sched.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "check.h"
#include "exec/run/executor.h"
#include "support/error.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

constexpr int kExtent = 64;  // elements of a vector
constexpr int kSlots = 5;    // few: values overwrite others that another queue may still read
constexpr int kInputs = 3;   // the last one decides whether the run fails
constexpr int kFlag = kSlots + kInputs - 1;
enum Kernel { kAdd, kTwice, kKeepPositive };

std::string libtvm_path, library_path;

using Vector = std::vector<float>;

/*! \brief Cores that this process may use. */
std::vector<int> Cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

std::string Join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text.empty() ? "-" : text;
}

/*! \brief Writes a random program and computes its values in program order. */
class Writer {
 public:
  Writer(const std::vector<Vector>& inputs, Random& random) : random_(random) {
    values_.assign(kSlots, Vector(kExtent));
    values_.insert(values_.end(), inputs.begin(), inputs.end());
    const std::vector<int> cores = Cores();
    num_cores_ = random.Below(std::min(2, static_cast<int>(cores.size())) + 1);
    const int num_queues = std::max(1, num_cores_ + random.Below(4));
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

void SetInput(exec::Executor& executor, int input, const Vector& value) {
  executor.SetInput("x" + std::to_string(input), {exec::kDLFloat, 32, 1}, {kExtent}, value.data());
}

void RunSomehow(exec::Executor& executor, int way) {
  if (way == 0) executor.Run();
  if (way == 1) executor.RunTimed();
  if (way == 2) executor.Benchmark(5);
  if (way == 3) executor.Profile(3);
}

/*! \brief A program gives the values of its order however it is run, also after failed runs. */
void EqualsProgramOrder(Random& random) {
  std::vector<Vector> inputs(kInputs, Vector(kExtent));
  for (Vector& input : inputs) {
    for (float& number : input) number = static_cast<float>(random.Below(8));
  }
  Writer writer(inputs, random);
  exec::ExecutorSource source;
  source.libtvm_path = libtvm_path;
  source.library_path = library_path;
  source.program_text = writer.Finish(10 + random.Below(30));
  source.helping = random.Below(4) != 0;
  exec::Executor executor(source);
  for (int input = 0; input < kInputs; ++input) SetInput(executor, input, inputs[input]);
  for (int run = 0; run < 8; ++run) {
    const bool fails = run % 3 == 1;
    Vector flag = inputs[kInputs - 1];
    if (fails) flag[0] = -1;
    SetInput(executor, kInputs - 1, flag);
    bool has_failed = false;
    try {
      RunSomehow(executor, random.Below(4));
    } catch (const Error& error) {
      has_failed = error.kind() == ErrorKind::kExecution;
    }
    CHECK_EQ(has_failed, fails);
    // One vector for `twice` itself and two for a part of its loop, on each of two threads at most.
    const int64_t scratch = executor.MemoryBytes()[0].workspace;
    CHECK(scratch <= 2 * 4096);
    for (int slot = 0; slot < kSlots && !fails; ++slot) {
      Vector out(kExtent);
      executor.GetOutput("y" + std::to_string(slot), out.data());
      CHECK_EQ(out, writer.value(slot));
    }
  }
}

/*! \brief One set of inputs, and what a program makes of them. */
struct Sample {
  std::vector<Vector> inputs;
  std::vector<Vector> outputs;  // [kSlots]
};

/*! \brief One call from its inputs to its outputs, that may fail or be cancelled. */
void CallOnce(exec::Executor& executor, const Sample& sample, bool fails, bool is_cancelled) {
  const std::unique_ptr<exec::Request> request = executor.Begin();
  for (int input = 0; input < kInputs; ++input) {
    Vector value = sample.inputs[static_cast<size_t>(input)];
    if (fails && input == kInputs - 1) value[0] = -1;
    request->SetInput("x" + std::to_string(input), {exec::kDLFloat, 32, 1}, {kExtent},
                      value.data());
  }
  request->Submit();
  if (is_cancelled) request->Cancel("cancelled");
  std::string failure;
  try {
    request->Finish();
  } catch (const Error& error) {
    failure = error.what();
  }
  if (failure == "cancelled") {
    CHECK(is_cancelled);
    return;
  }
  CHECK_EQ(!failure.empty(), fails);
  for (size_t slot = 0; slot < kSlots && !fails; ++slot) {
    Vector out(kExtent);
    request->GetOutput("y" + std::to_string(slot), out.data());
    CHECK_EQ(out, sample.outputs[slot]);
  }
}

/*! \brief Each of many callers gets its own answer, whatever becomes of the others. */
void CallersAreIndependent(Random& random) {
  const int num_steps = 10 + random.Below(20);
  const Random program = random;
  std::vector<Sample> samples(4);
  exec::ExecutorSource source;
  source.libtvm_path = libtvm_path;
  source.library_path = library_path;
  for (Sample& sample : samples) {
    for (int input = 0; input < kInputs; ++input) {
      sample.inputs.emplace_back(kExtent);
      for (float& number : sample.inputs.back()) number = static_cast<float>(random.Below(8));
    }
    Random same = program;
    Writer writer(sample.inputs, same);
    source.program_text = writer.Finish(num_steps);
    for (int slot = 0; slot < kSlots; ++slot) sample.outputs.push_back(writer.value(slot));
  }
  source.max_in_flight = 1 + random.Below(4);
  source.helping = random.Below(4) != 0;
  exec::Executor executor(source);
  for (int input = 0; input < kInputs; ++input) SetInput(executor, input, samples[0].inputs[input]);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back(
        [&, mine = Random(static_cast<uint64_t>(random.Below(1 << 30)))]() mutable {
          for (int call = 0; call < 8; ++call) {
            const Sample& sample = samples[static_cast<size_t>(mine.Below(4))];
            CallOnce(executor, sample, mine.Below(4) == 0, mine.Below(4) == 0);
            if (mine.Below(8) == 0) CHECK(executor.MemoryBytes()[0].arena > 0);
          }
          // Dropped in flight: nobody waits for it.
          const std::unique_ptr<exec::Request> request = executor.Begin();
          for (int input = 0; input < kInputs; ++input) {
            request->SetInput("x" + std::to_string(input), {exec::kDLFloat, 32, 1}, {kExtent},
                              samples[0].inputs[static_cast<size_t>(input)].data());
          }
          request->Submit();
        });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 3);
  libtvm_path = arguments[1];
  library_path = arguments[2];
  ForSeeds("programs", 300, EqualsProgramOrder);
  ForSeeds("callers", 300, CallersAreIndependent);
  return 0;
}
