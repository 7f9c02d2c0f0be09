#include "exec/trace/trace_json.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "exec/program/issue_order.h"
#include "support/json_text.h"

namespace heteroplace::exec {

namespace {

/*! \brief Processes of the trace: rows of queues, the requests, and a row for each slot of serial
 * requests. */
constexpr int kQueues = 1;
constexpr int kRequests = 2;
constexpr int kSerial = 3;

/*! \brief Shorter waits are not drawn: what a wait takes that was over before it began. */
constexpr int64_t kMinWaitNs = 100;

/*! \brief Microseconds with three decimals, as the format counts. */
std::string Microseconds(int64_t ns) {
  std::string text = ns < 0 ? "-" : "";
  text += std::to_string(std::abs(ns) / 1000);
  text += '.';
  text += std::to_string(1000 + std::abs(ns) % 1000).substr(1);
  return text;
}

const Instruction& At(const Program& program, int32_t queue, int32_t instruction) {
  const Queue& info = program.queues[static_cast<size_t>(queue)];
  return info.instructions[static_cast<size_t>(instruction)];
}

/*! \brief A queue and a place in it. */
using Place = std::pair<int32_t, int32_t>;

/*!
 * \brief Instructions from which arrows go to each one: those of other queues that it waits for,
 * the maker of what it copies, the copies of what it reads.
 *
 * Waits that others imply are not in a program, but arrows of copies are drawn for them too.
 */
std::map<Place, std::set<Place>> ArrowsTo(const Program& program) {
  std::map<Place, std::set<Place>> arrows;
  std::map<int32_t, Place> makers;  // of tensors: the first instruction that has to do with it
  std::map<int32_t, Place> copies;  // the last copy into a tensor
  std::map<int64_t, Place> sends, receives;  // by tag; both where the program is of several hosts
  for (const InstructionId& id : IssueOrder(program)) {
    const Place place{id.queue, id.index};
    const Instruction& at = At(program, id.queue, id.index);
    const auto draw = [&](const std::map<int32_t, Place>& sources, int32_t tensor) {
      const auto source = sources.find(tensor);
      if (source == sources.end() || source->second.first == id.queue) return;
      arrows[place].insert(source->second);
    };
    for (const Wait& wait : at.waits) arrows[place].insert({wait.queue, wait.count - 1});
    if (at.opcode == Opcode::kSend) sends.emplace(at.tag, place);
    if (at.opcode == Opcode::kReceive) receives.emplace(at.tag, place);
    const bool is_move = at.IsCopy() || at.opcode == Opcode::kSend;
    if (is_move) draw(makers, at.tensors[0]);
    for (size_t t = 0; t < at.tensors.size(); ++t) {
      if ((at.IsCopy() && t == 1) || at.opcode == Opcode::kReceive) {
        copies[at.tensors[t]] = place;
      } else {
        draw(copies, at.tensors[t]);
      }
      makers.emplace(at.tensors[t], place);
    }
  }
  for (const auto& [tag, place] : receives) {
    const auto send = sends.find(tag);
    if (send != sends.end()) arrows[place].insert(send->second);
  }
  return arrows;
}

/*! \brief What a space holds before any request, and for each. */
struct SpaceUse {
  int64_t weights_bytes = 0;
  int64_t request_bytes = 0;
};

std::vector<SpaceUse> UsesOf(const Program& program) {
  std::vector<SpaceUse> uses;
  uses.reserve(program.spaces.size());
  for (const Space& space : program.spaces) uses.push_back({0, space.arena_bytes});
  for (const Constant& constant : program.constants) {
    uses[static_cast<size_t>(constant.space)].weights_bytes += constant.bytes;
  }
  for (const Tensor& tensor : program.tensors) {
    if (tensor.storage != Storage::kExternal) continue;
    uses[static_cast<size_t>(tensor.space)].request_bytes += tensor.bytes;
  }
  return uses;
}

class TraceWriter {
 public:
  TraceWriter(const Program& program, const Trace& trace,
              const std::vector<std::string>& step_names)
      : program_(program),
        trace_(trace),
        step_names_(step_names.empty() ? program.step_names : step_names),
        arrows_(ArrowsTo(program)) {
    for (const TraceRequest& request : trace.requests) {
      if (!request.is_serial) continue;
      serial_.insert(request.request);
      serial_slots_.insert(request.slot);
    }
  }

  std::string Json() {
    text_ = "{\"displayTimeUnit\": \"ns\", \"otherData\": {\"dropped_requests\": " +
            std::to_string(trace_.num_dropped) +
            ", \"unfinished_requests\": " + std::to_string(trace_.num_unfinished) + Clocks() +
            "}, \"traceEvents\": [";
    Names();
    for (const TraceEvent& event : trace_.events) {
      WaitSlice(event);
      Slice(event);
      if (event.is_done) Arrows(event);
    }
    for (const TraceRequest& request : trace_.requests) RequestEvents(request);
    Counters();
    return text_ + "\n]}\n";
  }

 private:
  /*! \brief Of several hosts: what the times of each may be wrong by. */
  std::string Clocks() const {
    std::string text;
    for (const auto& [host, uncertainty_ns] : trace_.clocks) {
      text += (text.empty() ? "" : ", ") + JsonText(host) + ": " + std::to_string(uncertainty_ns);
    }
    return text.empty() ? "" : ", \"clock_uncertainty_ns\": {" + text + "}";
  }

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
    const std::vector<int32_t> first_sides = program_.FirstSides();
    for (size_t q = 0; q < program_.queues.size(); ++q) {
      const Queue& queue = program_.queues[q];
      Name("thread_name", kQueues, static_cast<int>(q) + 1,
           queue.name + " (" + DeviceName(queue.device) + ")");
      for (int32_t side = 0; queue.HasSideStreams() && side < kSideStreams; ++side) {
        Name(
            "thread_name", kQueues, first_sides[q] + side + 1,
            queue.name + " beside " + std::to_string(side) + " (" + DeviceName(queue.device) + ")");
      }
    }
    Name("process_name", kRequests, 0, "requests");
    if (!serial_.empty()) Name("process_name", kSerial, 0, "requests by one thread");
    for (const int slot : serial_slots_) {
      Name("thread_name", kSerial, slot + 1, "slot " + std::to_string(slot));
    }
  }

  std::string NameOf(const Instruction& at) const {
    if (at.opcode == Opcode::kJoin) {
      return "helps " + program_.queues[static_cast<size_t>(at.leader_queue)].name;
    }
    if (at.opcode == Opcode::kGroup) return "branches side by side";
    const auto step = static_cast<size_t>(at.step);
    if (step < step_names_.size()) return step_names_[step];
    if (at.IsCopy()) return "copy of tensor " + std::to_string(at.tensors[0]);
    if (at.tag >= 0) return "message " + std::to_string(at.tag);
    return program_.KernelName(at.kernel);
  }

  bool IsSerial(const TraceEvent& event) const { return serial_.contains(event.request); }

  /*! \brief Process and row of whoever did it. */
  std::pair<int, int> RowOf(const TraceEvent& event) const {
    if (IsSerial(event)) return {kSerial, event.slot + 1};
    return {kQueues, (event.core < 0 ? event.queue : event.core) + 1};
  }

  /*! \brief Begins an event in the row of another one. */
  void EventInRowOf(const TraceEvent& other, std::string_view phase, std::string_view name,
                    int64_t ns) {
    const auto [process, row] = RowOf(other);
    Event(phase, process, row, name, ns);
  }

  void WaitSlice(const TraceEvent& event) {
    if (event.wait_ns < kMinWaitNs) return;
    const Instruction& at = At(program_, event.queue, event.instruction);
    std::string awaited;
    for (const Wait& wait : at.waits) {
      awaited +=
          (awaited.empty() ? "" : ", ") + program_.queues[static_cast<size_t>(wait.queue)].name;
    }
    Event("X", kQueues, event.queue + 1, "wait", event.start_ns - event.wait_ns);
    text_ += ", \"cat\": \"wait\", \"dur\": " + Microseconds(event.wait_ns) +
             ", \"args\": {\"request\": " + std::to_string(event.request) +
             ", \"for\": " + JsonText(awaited) + ", \"before\": " + JsonText(NameOf(at)) + "}}";
  }

  void Slice(const TraceEvent& event) {
    const Instruction& at = At(program_, event.queue, event.instruction);
    const char* kinds[] = {"run", "join", "copy", "send", "recv", "run", "copy", "group"};
    std::string name = event.is_done ? "" : "given up: ";
    name += NameOf(at);
    EventInRowOf(event, "X", name, event.start_ns);
    text_ += ", \"cat\": \"" +
             std::string(event.is_done ? kinds[static_cast<size_t>(at.opcode)] : "failed") +
             "\", \"dur\": " + Microseconds(event.finish_ns - event.start_ns) +
             ", \"args\": {\"request\": " + std::to_string(event.request) +
             ", \"slot\": " + std::to_string(event.slot) +
             ", \"instruction\": " + std::to_string(event.instruction) +
             ", \"step\": " + std::to_string(at.step);
    if (at.IsCall()) {
      text_ += ", \"kernel\": " + JsonText(program_.KernelName(at.kernel)) +
               ", \"threads\": " + std::to_string(at.threads);
    } else if (at.opcode == Opcode::kGroup) {
      text_ += ", \"threads\": " + std::to_string(at.threads);
    } else if (at.opcode != Opcode::kJoin) {
      const Tensor& tensor = program_.tensors[static_cast<size_t>(at.tensors[0])];
      text_ += ", \"bytes\": " + std::to_string(tensor.bytes);
      if (at.tag >= 0) text_ += ", \"message\": " + std::to_string(at.tag);
    }
    text_ += "}}";
  }

  /*! \brief Another instruction of the same request; null if it was not done. */
  const TraceEvent* Find(int64_t request, Place place) const {
    const auto key = std::make_tuple(request, place.first, place.second);
    const auto at = std::ranges::lower_bound(trace_.events, key, {}, [](const TraceEvent& event) {
      return std::make_tuple(event.request, event.queue, event.instruction);
    });
    if (at == trace_.events.end() || !at->is_done) return nullptr;
    return std::tie(at->request, at->queue, at->instruction) == key ? &*at : nullptr;
  }

  void Arrows(const TraceEvent& event) {
    const auto sources = arrows_.find({event.queue, event.instruction});
    if (sources == arrows_.end() || IsSerial(event)) return;
    for (const Place& source : sources->second) {
      const TraceEvent* before = Find(event.request, source);
      if (before == nullptr) continue;
      const std::string id = ", \"cat\": \"data\", \"id\": " + std::to_string(num_arrows_++);
      // Viewers tie an arrow to the slice around its time, so it leaves just before the end.
      EventInRowOf(*before, "s", "data", std::max(before->start_ns, before->finish_ns - 1));
      text_ += id + "}";
      EventInRowOf(event, "f", "data", event.start_ns);
      text_ += id + ", \"bp\": \"e\"}";
    }
  }

  void RequestEvents(const TraceRequest& request) {
    const std::string name = "request " + std::to_string(request.request);
    const std::string id = ", \"cat\": \"request\", \"id\": " + std::to_string(request.request);
    Event("b", kRequests, 0, name, request.start_ns);
    text_ += id + ", \"args\": {\"slot\": " + std::to_string(request.slot) +
             ", \"failed\": " + (request.has_failed ? "true" : "false") +
             ", \"serial\": " + (request.is_serial ? "true" : "false") + "}}";
    Event("e", kRequests, 0, name, request.finish_ns);
    text_ += id + "}";
  }

  void Counters() {
    const std::vector<SpaceUse> uses = UsesOf(program_);
    std::map<int64_t, int64_t> changes;
    for (const TraceRequest& request : trace_.requests) {
      ++changes[request.start_ns];
      --changes[request.finish_ns];
    }
    int64_t in_use = 0;
    for (const auto& [ns, change] : changes) {
      in_use += change;
      Event("C", kRequests, 0, "slots in use", ns);
      text_ += ", \"args\": {\"slots\": " + std::to_string(in_use) + "}}";
      for (size_t s = 0; s < uses.size(); ++s) {
        Event("C", kRequests, 0, "memory " + program_.spaces[s].name, ns);
        text_ += ", \"args\": {\"bytes\": " +
                 std::to_string(uses[s].weights_bytes + in_use * uses[s].request_bytes) + "}}";
      }
    }
  }

  const Program& program_;
  const Trace& trace_;
  const std::vector<std::string>& step_names_;
  const std::map<Place, std::set<Place>> arrows_;
  /*! \brief Serial requests, and their slots. */
  std::set<int64_t> serial_;
  std::set<int> serial_slots_;
  int64_t num_arrows_ = 0;
  bool is_first_ = true;
  std::string text_;
};

}  // namespace

std::string TraceJson(const Program& program, const Trace& trace,
                      const std::vector<std::string>& step_names) {
  return TraceWriter(program, trace, step_names).Json();
}

}  // namespace heteroplace::exec
