#include "exec/run/trace.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "support/json_text.h"

namespace heteroplace::exec {

namespace {

/*! \brief Processes of the trace: rows of queues, and rows of slots. */
constexpr int kQueues = 1;
constexpr int kSlots = 2;

/*! \brief Microseconds with three decimals, as the format counts. */
std::string Microseconds(int64_t ns) {
  std::string decimals = std::to_string(ns % 1000);
  return std::to_string(ns / 1000) + "." + std::string(3 - decimals.size(), '0') + decimals;
}

const Instruction& At(const Program& program, const InstructionSpan& span) {
  const Queue& queue = program.queues[static_cast<size_t>(span.queue)];
  return queue.instructions[static_cast<size_t>(span.instruction)];
}

/*! \brief From its first instruction to the end of its last one. */
struct RequestSpan {
  int64_t request;
  int32_t slot;
  int64_t start_ns;
  int64_t finish_ns;
};

class TraceWriter {
 public:
  TraceWriter(const Program& program, std::vector<InstructionSpan> spans,
              const std::vector<std::string>& step_names)
      : program_(program), spans_(std::move(spans)), step_names_(step_names) {
    std::sort(spans_.begin(), spans_.end(), [](const auto& a, const auto& b) {
      return std::tie(a.request, a.queue, a.instruction) <
             std::tie(b.request, b.queue, b.instruction);
    });
    if (spans_.empty()) return;
    const auto starts_first = [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; };
    base_ns_ = std::min_element(spans_.begin(), spans_.end(), starts_first)->start_ns;
    for (InstructionSpan& span : spans_) {
      span.start_ns -= base_ns_;
      span.finish_ns -= base_ns_;
      if (requests_.empty() || requests_.back().request != span.request) {
        requests_.push_back({span.request, span.slot, span.start_ns, span.finish_ns});
      }
      RequestSpan& whole = requests_.back();
      whole.start_ns = std::min(whole.start_ns, span.start_ns);
      whole.finish_ns = std::max(whole.finish_ns, span.finish_ns);
    }
  }

  std::string Json() {
    text_ = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
    Names();
    for (const InstructionSpan& span : spans_) {
      Slice(span);
      Arrows(span);
    }
    for (const RequestSpan& request : requests_) {
      Event("X", kSlots, request.slot, "request " + std::to_string(request.request),
            request.start_ns);
      text_ +=
          ", \"cat\": \"request\", \"dur\": " + Microseconds(request.finish_ns - request.start_ns) +
          "}";
    }
    Counters();
    return text_ + "\n]}\n";
  }

 private:
  /*! \brief Begins an event; the caller closes it. */
  void Event(std::string_view phase, int process, int row, std::string_view name, int64_t ns) {
    text_ += is_first_ ? "\n" : ",\n";
    is_first_ = false;
    text_ += "{\"ph\": \"" + std::string(phase) + "\", \"pid\": " + std::to_string(process) +
             ", \"tid\": " + std::to_string(row) + ", \"name\": " + JsonText(name) +
             ", \"ts\": " + Microseconds(ns);
  }

  void Name(std::string_view what, int process, int row, std::string_view name) {
    Event("M", process, row, what, 0);
    text_ += ", \"args\": {\"name\": " + JsonText(name) + "}}";
  }

  void Names() {
    Name("process_name", kQueues, 0, "queues");
    for (size_t q = 0; q < program_.queues.size(); ++q) {
      Name("thread_name", kQueues, static_cast<int>(q) + 1, program_.queues[q].name);
    }
    Name("process_name", kSlots, 0, "requests");
    int32_t num_slots = 0;
    for (const RequestSpan& request : requests_) num_slots = std::max(num_slots, request.slot + 1);
    for (int32_t slot = 0; slot < num_slots; ++slot) {
      Name("thread_name", kSlots, slot, "slot " + std::to_string(slot));
    }
  }

  std::string NameOf(const Instruction& at) const {
    if (at.opcode == Opcode::kJoin) {
      return "helps " + program_.queues[static_cast<size_t>(at.leader_queue)].name;
    }
    const auto step = static_cast<size_t>(at.step);
    if (step < step_names_.size()) return step_names_[step];
    if (at.opcode == Opcode::kCopy) return "copy of tensor " + std::to_string(at.tensors[0]);
    return program_.kernels[static_cast<size_t>(at.kernel)];
  }

  void Slice(const InstructionSpan& span) {
    const Instruction& at = At(program_, span);
    const char* kinds[] = {"run", "join", "copy"};
    Event("X", kQueues, span.queue + 1, NameOf(at), span.start_ns);
    text_ += ", \"cat\": \"" + std::string(kinds[static_cast<size_t>(at.opcode)]) +
             "\", \"dur\": " + Microseconds(span.finish_ns - span.start_ns) +
             ", \"args\": {\"request\": " + std::to_string(span.request) +
             ", \"slot\": " + std::to_string(span.slot) + ", \"step\": " + std::to_string(at.step);
    if (at.opcode == Opcode::kCall) {
      text_ += ", \"kernel\": " + JsonText(program_.kernels[static_cast<size_t>(at.kernel)]) +
               ", \"threads\": " + std::to_string(at.threads);
    } else if (at.opcode == Opcode::kCopy) {
      const Tensor& tensor = program_.tensors[static_cast<size_t>(at.tensors[0])];
      text_ += ", \"bytes\": " + std::to_string(tensor.bytes);
    }
    text_ += "}}";
  }

  /*! \brief The span of another instruction of the same request; null if it was not measured. */
  const InstructionSpan* Find(int64_t request, int32_t queue, int32_t instruction) const {
    const auto at =
        std::lower_bound(spans_.begin(), spans_.end(), std::make_tuple(request, queue, instruction),
                         [](const InstructionSpan& span, const auto& key) {
                           return std::tie(span.request, span.queue, span.instruction) < key;
                         });
    const bool is_found = at != spans_.end() && at->request == request && at->queue == queue &&
                          at->instruction == instruction;
    return is_found ? &*at : nullptr;
  }

  /*! \brief One from each instruction of another queue that this one waited for. */
  void Arrows(const InstructionSpan& span) {
    for (const Wait& wait : At(program_, span).waits) {
      const InstructionSpan* before = Find(span.request, wait.queue, wait.count - 1);
      if (before == nullptr) continue;
      const std::string id = ", \"cat\": \"data\", \"id\": " + std::to_string(num_arrows_++);
      // Viewers tie an arrow to the slice around its time, so it leaves just before the end.
      Event("s", kQueues, before->queue + 1, "data",
            std::max(before->start_ns, before->finish_ns - 1));
      text_ += id + "}";
      Event("f", kQueues, span.queue + 1, "data", span.start_ns);
      text_ += id + ", \"bp\": \"e\"}";
    }
  }

  void Counters() {
    std::map<int64_t, int64_t> changes;
    for (const RequestSpan& request : requests_) {
      ++changes[request.start_ns];
      --changes[request.finish_ns];
    }
    int64_t at_work = 0;
    for (const auto& [ns, change] : changes) {
      at_work += change;
      Event("C", kSlots, 0, "requests at work", ns);
      text_ += ", \"args\": {\"requests\": " + std::to_string(at_work) + "}}";
      for (const Space& space : program_.spaces) {
        Event("C", kSlots, 0, "values in " + space.name, ns);
        text_ += ", \"args\": {\"bytes\": " + std::to_string(at_work * space.arena_bytes) + "}}";
      }
    }
  }

  const Program& program_;
  std::vector<InstructionSpan> spans_;  // by request, queue, instruction
  const std::vector<std::string>& step_names_;
  std::vector<RequestSpan> requests_;  // by number
  int64_t base_ns_ = 0;
  int64_t num_arrows_ = 0;
  bool is_first_ = true;
  std::string text_;
};

}  // namespace

std::string TraceJson(const Program& program, std::vector<InstructionSpan> spans,
                      const std::vector<std::string>& step_names) {
  return TraceWriter(program, std::move(spans), step_names).Json();
}

}  // namespace heteroplace::exec
