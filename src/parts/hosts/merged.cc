#include "parts/hosts/merged.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace heteroplace::exec {

namespace {

/*! \brief What the ids of one program become larger by. */
struct Shift {
  int32_t queue, tensor, kernel, space, constant;
};

Queue Shifted(Queue queue, const Shift& by, const std::string& host) {
  if (!host.empty()) queue.name = host + "/" + queue.name;
  if (queue.space >= 0) queue.space += by.space;
  for (Instruction& at : queue.instructions) {
    if (at.kernel >= 0) at.kernel += by.kernel;
    if (at.leader_queue >= 0) at.leader_queue += by.queue;
    for (int32_t& tensor : at.tensors) tensor += by.tensor;
    for (Wait& wait : at.waits) wait.queue += by.queue;
  }
  return queue;
}

Tensor Shifted(Tensor tensor, const Shift& by) {
  tensor.space += by.space;
  if (tensor.storage == Storage::kConstant) tensor.place += by.constant;
  return tensor;
}

/*!
 * \brief The queue or stream of a merged program that did a call.
 * \param core as the program of its host counts.
 * \param own, merged `FirstSides` of that program, and of the merged one.
 */
int32_t ShiftedCore(int32_t core, size_t queue, const std::vector<int32_t>& own,
                    const std::vector<int32_t>& merged, int32_t first_queue) {
  if (core < static_cast<int32_t>(own.size())) return core + first_queue;
  // Streams beside queues are counted behind all queues, here those of all hosts.
  return merged[queue + static_cast<size_t>(first_queue)] + (core - own[queue]);
}

/*! \brief How many ranks have each request that is recorded. */
std::map<int64_t, size_t> CountRequests(const std::vector<RankTrace>& traces) {
  std::map<int64_t, size_t> counts;
  for (const RankTrace& rank : traces) {
    for (const TraceRequest& request : rank.trace.requests) ++counts[request.request];
  }
  return counts;
}

}  // namespace

Program MergedPrograms(const std::vector<Program>& programs) {
  Program all;
  all.num_hosts = static_cast<int32_t>(programs.size());
  const auto count = [](const auto& items) { return static_cast<int32_t>(items.size()); };
  for (const Program& one : programs) {
    const Shift by{count(all.queues), count(all.tensors), count(all.kernels), count(all.spaces),
                   count(all.constants)};
    if (all.step_names.empty()) all.step_names = one.step_names;
    all.spaces.insert(all.spaces.end(), one.spaces.begin(), one.spaces.end());
    all.kernels.insert(all.kernels.end(), one.kernels.begin(), one.kernels.end());
    all.library_kernels.insert(all.library_kernels.end(), one.library_kernels.begin(),
                               one.library_kernels.end());
    for (Constant constant : one.constants) {
      constant.space += by.space;
      all.constants.push_back(constant);
    }
    for (const Tensor& tensor : one.tensors) all.tensors.push_back(Shifted(tensor, by));
    for (const Queue& queue : one.queues) all.queues.push_back(Shifted(queue, by, one.host));
    for (Port port : one.inputs) {
      port.tensor += by.tensor;
      all.inputs.push_back(std::move(port));
    }
    for (Port port : one.outputs) {
      port.tensor += by.tensor;
      all.outputs.push_back(std::move(port));
    }
  }
  return all;
}

Trace MergedTraces(const std::vector<Program>& programs, const Program& merged,
                   const std::vector<RankTrace>& traces, int own) {
  const std::map<int64_t, size_t> counts = CountRequests(traces);
  const auto is_whole = [&](int64_t request) { return counts.at(request) == traces.size(); };
  const Trace& mine = traces[static_cast<size_t>(own)].trace;
  Trace all;
  all.origin_ns = mine.origin_ns;
  all.duration_ns = mine.duration_ns;
  for (const TraceRequest& request : mine.requests) {
    if (is_whole(request.request)) all.requests.push_back(request);
  }
  const auto num_left_out = static_cast<int64_t>(mine.requests.size() - all.requests.size());
  all.num_dropped = mine.num_dropped + num_left_out;
  const std::vector<int32_t> merged_sides = merged.FirstSides();
  int32_t first_queue = 0;
  for (size_t host = 0; host < traces.size(); ++host) {
    const auto& [trace, first, last] = traces[host];
    const std::vector<int32_t> own_sides = programs[host].FirstSides();
    const OwnTime own_time(first, last);
    const auto own_ns = [&, shift_ns = trace.origin_ns](int64_t ns) {
      return own_time(shift_ns + ns) - all.origin_ns;
    };
    for (TraceEvent event : trace.events) {
      if (!is_whole(event.request)) continue;
      if (event.core >= 0) {
        event.core = ShiftedCore(event.core, static_cast<size_t>(event.queue), own_sides,
                                 merged_sides, first_queue);
      }
      event.queue += first_queue;
      const int64_t length_ns = event.finish_ns - event.start_ns;
      event.start_ns = own_ns(event.start_ns);
      event.finish_ns = event.start_ns + length_ns;
      all.events.push_back(event);
    }
    all.num_unfinished = std::max(all.num_unfinished, trace.num_unfinished);
    all.clocks.push_back({programs[host].host, own_time.uncertainty_ns()});
    first_queue += static_cast<int32_t>(programs[host].queues.size());
  }
  std::ranges::stable_sort(all.events, [](const TraceEvent& left, const TraceEvent& right) {
    return left.request < right.request;
  });
  return all;
}

}  // namespace heteroplace::exec
