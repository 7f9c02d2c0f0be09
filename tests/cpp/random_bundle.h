// Random programs of several hosts that exchange messages, with what they compute together.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "random_program.h"

namespace heteroplace::test {

/*! \brief Writes the programs of all hosts and computes their values in the order of the steps. */
class BundleWriter {
 public:
  /*! \param inputs of host 0, as random_program.h has them. */
  BundleWriter(int num_hosts, const std::vector<Vector>& inputs, Random& random)
      : random_(random), hosts_(static_cast<size_t>(num_hosts)) {
    const std::vector<int> cores = test::Cores();
    for (int h = 0; h < num_hosts; ++h) {
      Host& host = hosts_[static_cast<size_t>(h)];
      host.values.assign(kSlots, Vector(kExtent));
      if (h == 0) host.values.insert(host.values.end(), inputs.begin(), inputs.end());
      const int num_cores = random.Below(2);
      const int num_queues = std::max(1, num_cores + random.Below(3));
      for (int queue = 0; queue < num_queues; ++queue) {
        const int core = cores[static_cast<size_t>(h) % cores.size()];
        const bool is_core = queue < num_cores;
        host.AddQueue((is_core ? "cpu 1 0 0 " : "fake 1 0 0 ") +
                      std::to_string(is_core ? core : random.Below(3) * 2000));
      }
      host.num_queues = num_queues;
    }
  }

  /*! \brief The bundle. Every slot is written first: it holds the last run's value. */
  std::string Finish(int num_steps) {
    for (int slot = 0; slot < kSlots; ++slot) Emit(0, -1, slot, {kSlots});
    for (int h = 1; h < static_cast<int>(hosts_.size()); ++h) {
      for (int slot = 0; slot < kSlots; ++slot)
        EmitMessage(0, kSlots + Below(kInputs - 1), h, slot);
    }
    const int check = Below(num_steps);
    for (int step = 0; step < num_steps; ++step) {
      step == check ? EmitCheck() : AddStep();
    }
    std::string text = "heteroplace-programs 2 " + std::to_string(hosts_.size()) + "\n";
    for (size_t h = 0; h < hosts_.size(); ++h) text += TextOf(h);
    return text;
  }

  const Vector& value(int host, int slot) const {
    return hosts_[static_cast<size_t>(host)].values[static_cast<size_t>(slot)];
  }

 private:
  using Place = std::pair<int, int>;  // queue, instructions done

  struct Host {
    std::string queues, instructions;
    std::vector<int> length;                       // [queues]
    int num_queues = 0;                            // that compute
    std::map<std::pair<bool, int>, int> messages;  // queue by direction and peer
    std::vector<Vector> values;
    std::map<int, Place> written;             // by tensor
    std::map<int, std::vector<Place>> reads;  // since then

    int AddQueue(const std::string& form) {
      const std::string id = std::to_string(length.size());
      queues += "queue " + id + " q" + id + " " + form + "\n";
      length.push_back(0);
      return static_cast<int>(length.size()) - 1;
    }

    int MessageQueue(bool is_send, int peer) {
      const auto [at, is_new] = messages.emplace(std::pair(is_send, peer), 0);
      if (is_new) {
        at->second = AddQueue((is_send ? "send 1 0 -1 " : "recv 1 0 -1 ") + std::to_string(peer));
      }
      return at->second;
    }

    /*! \brief Waits of an instruction for writers of what it reads, and all users of its target. */
    std::string Waits(int queue, const std::vector<int>& sources, int target) {
      std::vector<Place> before;
      for (int tensor : sources) before.push_back(written[tensor]);
      if (target >= 0) {
        before.push_back(written[target]);
        before.insert(before.end(), reads[target].begin(), reads[target].end());
      }
      return WaitText(queue, before);
    }

    void Add(int queue, const std::string& text, const std::vector<int>& sources, int target) {
      instructions += text + " " + Waits(queue, sources, target) + "\n";
      const Place now(queue, ++length[static_cast<size_t>(queue)]);
      if (target >= 0) {
        written[target] = now;
        reads[target].clear();
      }
      for (int tensor : sources) reads[tensor].push_back(now);
    }
  };

  int Below(int count) { return random_.Below(count); }
  std::string NextStep() { return std::to_string(num_steps_++) + " "; }

  std::string TextOf(size_t h) const {
    const Host& host = hosts_[h];
    std::string text = "heteroplace-program 2 " + std::to_string(h) + " " +
                       std::to_string(hosts_.size()) + " \"host " + std::to_string(h) + "\"\n";
    text += "space 0 ram 1 0 " + std::to_string(kSlots * kExtent * 4) + "\n" + host.queues;
    const std::string shape = " 2 32 " + std::to_string(kExtent) + "\n";
    for (int slot = 0; slot < kSlots; ++slot) {
      text += "tensor " + std::to_string(slot) + " 0 arena " + std::to_string(slot * kExtent * 4) +
              shape + "output y" + std::to_string(slot) + " " + std::to_string(slot) + "\n";
    }
    for (int input = 0; h == 0 && input < kInputs; ++input) {
      const std::string tensor = std::to_string(kSlots + input);
      text += "tensor " + tensor + " 0 external -" + shape;
      text += "input x" + std::to_string(input) + " " + tensor + "\n";
    }
    return text + "kernel 0 add\nkernel 1 twice\nkernel 2 keep_positive\n" + host.instructions +
           "end\n";
  }

  void AddStep() {
    const int h = Below(static_cast<int>(hosts_.size()));
    const int target = Below(kSlots);
    const auto source = [&](int host) { return Below(kSlots + (host == 0 ? kInputs - 1 : 0)); };
    const auto other = [&] {
      const int tensor = source(h);
      return tensor == target ? (target + 1) % kSlots : tensor;
    };
    switch (Below(4)) {
      case 0:
        return Emit(h, kAdd, target, {other(), other()});
      case 1:
        return Emit(h, kTwice, target, {other()});
      default: {
        const auto num_others = static_cast<int>(hosts_.size()) - 1;
        const int from = (h + 1 + Below(num_others)) % (num_others + 1);
        return EmitMessage(from, source(from), h, target);
      }
    }
  }

  /*! \brief The flag decides on some host whether the run fails. */
  void EmitCheck() {
    const int h = Below(static_cast<int>(hosts_.size()));
    const int target = Below(kSlots);
    if (h == 0) return Emit(0, kKeepPositive, target, {kFlag});
    EmitMessage(0, kFlag, h, target);
    Emit(h, kKeepPositive, (target + 1) % kSlots, {target});
  }

  void EmitMessage(int from, int source, int to, int target) {
    Host& sender = hosts_[static_cast<size_t>(from)];
    Host& receiver = hosts_[static_cast<size_t>(to)];
    const std::string step = NextStep() + std::to_string(num_messages_++) + " ";
    const int out = sender.MessageQueue(true, to), in = receiver.MessageQueue(false, from);
    sender.Add(out, "send " + std::to_string(out) + " " + step + std::to_string(source), {source},
               -1);
    receiver.Add(in, "recv " + std::to_string(in) + " " + step + std::to_string(target), {},
                 target);
    receiver.values[static_cast<size_t>(target)] = sender.values[static_cast<size_t>(source)];
  }

  /*! \brief Writes an instruction and does it; kernel -1 is a copy. */
  void Emit(int h, int kernel, int target, const std::vector<int>& sources) {
    Host& host = hosts_[static_cast<size_t>(h)];
    const int queue = Below(host.num_queues);
    std::vector<std::string> tensors;
    for (int tensor : sources) tensors.push_back(std::to_string(tensor));
    tensors.push_back(std::to_string(target));
    const std::string place = std::to_string(queue) + " " + NextStep();
    host.Add(queue,
             kernel < 0 ? "copy " + place + tensors[0] + " " + tensors[1]
                        : "call " + place + std::to_string(kernel) + " 1 " + Join(tensors),
             sources, target);
    Vector result(kExtent);
    for (size_t i = 0; i < result.size(); ++i) {
      const float first = host.values[static_cast<size_t>(sources[0])][i];
      result[i] = kernel == kAdd     ? first + host.values[static_cast<size_t>(sources[1])][i]
                  : kernel == kTwice ? first * 2 + 1
                                     : first;
    }
    host.values[static_cast<size_t>(target)] = result;
  }

  Random& random_;
  std::vector<Host> hosts_;
  int num_steps_ = 0;
  int num_messages_ = 0;
};

/*! \brief What a bundle makes of a set of inputs, on each host. */
struct BundleSample {
  std::vector<Vector> inputs;
  std::vector<std::vector<Vector>> outputs;  // [num_hosts][kSlots]
};

/*! \brief A random bundle, and samples of it with inputs of small whole numbers. */
inline std::string RandomBundle(Random& random, int num_hosts, int num_steps,
                                std::vector<BundleSample>* samples) {
  const Random program = random;
  std::string text;
  for (BundleSample& sample : *samples) {
    for (int input = 0; input < kInputs; ++input) {
      sample.inputs.emplace_back(kExtent);
      for (float& number : sample.inputs.back()) number = static_cast<float>(random.Below(8));
    }
    Random same = program;
    BundleWriter writer(num_hosts, sample.inputs, same);
    text = writer.Finish(num_steps);
    for (int h = 0; h < num_hosts; ++h) {
      std::vector<Vector>& outputs = sample.outputs.emplace_back();
      for (int slot = 0; slot < kSlots; ++slot) outputs.push_back(writer.value(h, slot));
    }
  }
  return text;
}

}  // namespace heteroplace::test
