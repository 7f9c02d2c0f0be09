#include "parts/hosts/packed.h"

#include <cstring>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

constexpr size_t kHeadNumbers = 5;
constexpr size_t kEventNumbers = 9;
constexpr size_t kRequestNumbers = 5;

[[noreturn]] void Refuse(size_t bytes) {
  throw Error(ErrorKind::kExecution, "another rank answered " + std::to_string(bytes) +
                                         " bytes that are none of this version");
}

}  // namespace

std::string Packed(const std::vector<int64_t>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t)};
}

std::vector<int64_t> UnpackedNumbers(const std::string& bytes) {
  if (bytes.size() % sizeof(int64_t) != 0) Refuse(bytes.size());
  std::vector<int64_t> numbers(bytes.size() / sizeof(int64_t));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

std::string Packed(const Trace& trace) {
  std::vector<int64_t> all = {trace.origin_ns, trace.duration_ns, trace.num_dropped,
                              trace.num_unfinished, static_cast<int64_t>(trace.events.size())};
  for (const TraceEvent& at : trace.events) {
    all.insert(all.end(), {at.request, at.slot, at.queue, at.instruction, at.is_done ? 1 : 0,
                           at.wait_ns, at.start_ns, at.finish_ns, at.core});
  }
  for (const TraceRequest& at : trace.requests) {
    all.insert(all.end(), {at.request, at.slot, at.has_failed ? 1 : 0, at.start_ns, at.finish_ns});
  }
  return Packed(all);
}

Trace UnpackedTrace(const std::string& bytes) {
  const std::vector<int64_t> all = UnpackedNumbers(bytes);
  if (all.size() < kHeadNumbers) Refuse(bytes.size());
  Trace trace{all[0], all[1], {}, {}, all[2], all[3], {}};
  const auto num_events = static_cast<size_t>(all[4]);
  const size_t left = all.size() - kHeadNumbers;
  if (num_events > left / kEventNumbers ||
      (left - num_events * kEventNumbers) % kRequestNumbers != 0) {
    Refuse(bytes.size());
  }
  const int64_t* at = all.data() + kHeadNumbers;
  for (size_t i = 0; i < num_events; ++i, at += kEventNumbers) {
    trace.events.push_back({at[0], static_cast<int32_t>(at[1]), static_cast<int32_t>(at[2]),
                            static_cast<int32_t>(at[3]), at[4] != 0, at[5], at[6], at[7],
                            static_cast<int32_t>(at[8])});
  }
  for (; at != all.data() + all.size(); at += kRequestNumbers) {
    trace.requests.push_back({at[0], static_cast<int32_t>(at[1]), at[2] != 0, at[3], at[4]});
  }
  return trace;
}

}  // namespace heteroplace::exec
