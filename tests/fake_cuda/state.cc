// Counting, faults, reports, memory; and what tests call.
#include <sys/mman.h>

#include <cctype>
#include <cstdlib>
#include <cstring>

#include "fake.h"

namespace fake {

namespace {

constexpr unsigned char kZone = 0xA5;
/*! \brief What fresh memory holds: no number as float32, so that what nobody wrote shows. */
constexpr unsigned char kFresh = 0xFF;

bool IsSticky(int code) {
  return code == 214 || (code >= 700 && code <= 719 && code != 701 && code != 704 && code != 705 &&
                         code != 712 && code != 713);
}

}  // namespace

State& Get() {
  static State* state = new State;  // never destroyed: threads of streams may outlive main
  return *state;
}

int Broken(const std::string& text, int code) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (state.reports.size() < 50) state.reports.push_back(text);
  return code;
}

bool HasFault(int device) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  return state.device_errors[device] != 0;
}

void SetFault(int device, int code) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (state.device_errors[device] == 0) state.device_errors[device] = code;
}

int Begin(const char* function, unsigned kind, int device) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (device < 0) device = CurrentDevice();
  ++state.calls[function];
  const auto report = [&](const std::string& text) {
    if (state.reports.size() < 50) state.reports.push_back(function + text);
  };
  if (state.is_running && std::this_thread::get_id() != state.caller) {
    if (*function != 0 && std::strstr(function, "Query") == nullptr) {
      state.issued[device] += function + std::string("\n");
      state.issuers[device].insert(std::this_thread::get_id());
    }
    if (kind & kBlocks) report(": a worker blocks in the driver during a run");
    if (kind & kChangesMemory) report(": memory or code changes during a run");
  }
  for (auto& [handle, stream] : state.streams) {
    if (!(kind & kNotInCapture) || stream->capture == nullptr) continue;
    const bool is_capturer = std::this_thread::get_id() == stream->capturer;
    if (stream->capture_mode == kRelaxed) continue;
    if (stream->capture_mode == kThreadLocal && !is_capturer) continue;
    report(": not allowed while a stream is captured");
    stream->is_capture_broken = true;
    return kCaptureUnsupported;
  }
  const auto fault = state.faults.find(function);
  if (fault != state.faults.end() && --fault->second.after_calls < 0) {
    const int code = fault->second.code;
    state.faults.erase(fault);
    if (IsSticky(code)) state.device_errors[device] = code;
    if (!(kind & kReleases)) return code;
  }
  if (!HasCurrentContext()) {
    const bool is_of_driver = function[0] == 'c' && function[1] == 'u' && std::isupper(function[2]);
    if (is_of_driver && !(kind & kSurvives)) return kInvalidContext;
    if (kind & kChangesMemory) MakeChosenContext();
  }
  if (state.device_errors[device] != 0 && !(kind & (kSurvives | kReleases))) {
    return state.device_errors[device];
  }
  return 0;
}

void Delay() {
  int64_t delay_ns;
  {
    std::lock_guard lock(Get().mutex);
    delay_ns = Get().delay_ns;
  }
  if (delay_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(delay_ns));
}

void* TakeMemory(size_t bytes, int device) {
  void* raw = mmap(nullptr, bytes + 2 * kZoneBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  char* base = static_cast<char*>(raw);
  std::memset(base, kZone, kZoneBytes);
  std::memset(base + kZoneBytes, kFresh, bytes);
  std::memset(base + kZoneBytes + bytes, kZone, kZoneBytes);
  State& state = Get();
  std::lock_guard lock(state.mutex);
  char* data = base + kZoneBytes;
  state.memory[reinterpret_cast<uintptr_t>(data)] = {base, bytes, device};
  return data;
}

bool GiveMemory(void* data, int device) {
  State& state = Get();
  Allocation taken{};
  {
    std::lock_guard lock(state.mutex);
    const auto found = state.memory.find(reinterpret_cast<uintptr_t>(data));
    if (found == state.memory.end() || (found->second.device < 0) != (device < 0)) return false;
    taken = found->second;
    state.memory.erase(found);
  }
  for (size_t i = 0; i < kZoneBytes; ++i) {
    const auto before = static_cast<unsigned char>(taken.base[i]);
    const auto after = static_cast<unsigned char>(taken.base[kZoneBytes + taken.bytes + i]);
    if (before != kZone || after != kZone) {
      Broken(
          "memory beside an allocation of " + std::to_string(taken.bytes) + " bytes was written to",
          0);
      break;
    }
  }
  // Unmapped: a kernel that still reads it ends the process.
  munmap(taken.base, taken.bytes + 2 * kZoneBytes);
  return true;
}

int PlaceOf(const void* data) {
  State& state = Get();
  const auto address = reinterpret_cast<uintptr_t>(data);
  std::lock_guard lock(state.mutex);
  auto next = state.memory.upper_bound(address);
  if (next != state.memory.begin()) {
    const auto& [base, allocation] = *std::prev(next);
    if (address < base + allocation.bytes) return allocation.device;
  }
  auto pinned = state.registered.upper_bound(address);
  if (pinned != state.registered.begin()) {
    const auto& [base, bytes] = *std::prev(pinned);
    if (address < base + bytes) return -1;
  }
  return -2;
}

std::string WhyNotUsable(const void* data, size_t bytes, int device, const char* what) {
  State& state = Get();
  const auto address = reinterpret_cast<uintptr_t>(data);
  std::lock_guard lock(state.mutex);
  uintptr_t end = 0;
  int place = -2;
  auto next = state.memory.upper_bound(address);
  if (next != state.memory.begin()) {
    const auto& [base, allocation] = *std::prev(next);
    if (address < base + allocation.bytes) {
      end = base + allocation.bytes;
      place = allocation.device;
    }
  }
  auto pinned = state.registered.upper_bound(address);
  if (end == 0 && pinned != state.registered.begin()) {
    const auto& [base, size] = *std::prev(pinned);
    if (address < base + size) {
      end = base + size;
      place = -1;
    }
  }
  if (end == 0) return std::string(what) + " is in no live memory of a device, and not pinned";
  if (address + bytes > end) return std::string(what) + " passes the end of its memory";
  if (place >= 0 && device >= 0 && place != device && !state.peers[device][place]) {
    return std::string(what) + " is memory of device " + std::to_string(place) +
           ", used by device " + std::to_string(device) + " without peer access";
  }
  return "";
}

std::shared_ptr<Event> FindEvent(void* handle, const char* function) {
  State& state = Get();
  {
    std::lock_guard lock(state.mutex);
    const auto found = state.events.find(handle);
    if (found != state.events.end()) return found->second;
  }
  Broken(std::string(function) + ": an event that does not live", 0);
  return nullptr;
}

}  // namespace fake

using fake::Get;

FAKE_EXPORT void fake_cuda_fail(const char* function, int after_calls, int code) {
  std::lock_guard lock(Get().mutex);
  Get().faults[function] = {after_calls, code};
}

FAKE_EXPORT int fake_cuda_calls(const char* function) {
  std::lock_guard lock(Get().mutex);
  return Get().calls[function];
}

/*! \brief Whether the fault for a function is still to come. */
FAKE_EXPORT int fake_cuda_is_pending(const char* function) {
  std::lock_guard lock(Get().mutex);
  return Get().faults.count(function) != 0;
}

/*! \brief Rules broken since the last call, a line each. */
FAKE_EXPORT size_t fake_cuda_reports(char* text, size_t size) {
  std::lock_guard lock(Get().mutex);
  std::string all;
  for (const std::string& report : Get().reports) all += report + "\n";
  Get().reports.clear();
  std::strncpy(text, all.c_str(), size - 1);
  return all.size();
}

/*! \brief "N functions called", a line each: name and count. */
FAKE_EXPORT size_t fake_cuda_counts(char* text, size_t size) {
  std::lock_guard lock(Get().mutex);
  std::string all;
  for (const auto& [name, count] : Get().calls) all += name + " " + std::to_string(count) + "\n";
  std::strncpy(text, all.c_str(), size - 1);
  return all.size();
}

/*! \brief Calls for a device during runs since the last question: a line each, polls left out. */
FAKE_EXPORT size_t fake_cuda_issued(int device, char* text, size_t size) {
  std::lock_guard lock(Get().mutex);
  std::strncpy(text, Get().issued[device].c_str(), size - 1);
  Get().issued[device].clear();
  const size_t num_threads = Get().issuers[device].size();
  Get().issuers[device].clear();
  return num_threads;
}

/*! \brief What lives: memory, pinned, streams, events, modules, graphs, of libraries. [7] */
FAKE_EXPORT void fake_cuda_live(int64_t* counts) {
  std::lock_guard lock(Get().mutex);
  std::memset(counts, 0, 7 * sizeof(int64_t));
  for (const auto& [base, allocation] : Get().memory) ++counts[allocation.device < 0 ? 1 : 0];
  counts[1] += static_cast<int64_t>(Get().registered.size());
  for (const auto& [handle, stream] : Get().streams) counts[2] += stream->is_default ? 0 : 1;
  counts[3] = static_cast<int64_t>(Get().events.size());
  counts[4] = Get().num_modules;
  counts[5] = static_cast<int64_t>(Get().graphs.size());
  counts[6] = fake::NumLibraryObjects();
}

/*! \brief Says that a run has begun or ended, from the caller's thread. */
FAKE_EXPORT void fake_cuda_running(int is_running) {
  std::lock_guard lock(Get().mutex);
  Get().is_running = is_running != 0;
  Get().caller = std::this_thread::get_id();
}

/*! \brief num_devices | delay_ns | clock_ahead_ns | can_pin | max_registered_bytes | has_peers |
 * max_peers | has_words | has_one_channel | is_released. */
FAKE_EXPORT void fake_cuda_set(const char* name, int64_t value) {
  std::lock_guard lock(Get().mutex);
  const std::string what = name;
  if (what == "num_devices") Get().num_devices = static_cast<int>(value);
  if (what == "delay_ns") Get().delay_ns = value;
  if (what == "clock_ahead_ns") Get().clock_ahead_ns = value;
  if (what == "can_pin") Get().can_pin = value != 0;
  if (what == "max_registered_bytes") Get().max_registered_bytes = value;
  if (what == "has_peers") Get().has_peers = value != 0;
  if (what == "max_peers") Get().max_peers = value;
  if (what == "has_words") Get().has_words = value != 0;
  if (what == "has_one_channel") Get().has_one_channel = value != 0;
  if (what == "is_released") Get().is_released = value != 0;
}

/*! \brief As a new process: no faults, past or to come, and no broken rules. */
FAKE_EXPORT void fake_cuda_reset() {
  fake::ForgetLibraryCode();
  std::lock_guard lock(Get().mutex);
  Get().faults.clear();
  Get().calls.clear();
  Get().reports.clear();
  std::memset(Get().device_errors, 0, sizeof(Get().device_errors));
  std::memset(Get().peers, 0, sizeof(Get().peers));
  std::memset(Get().has_context, 0, sizeof(Get().has_context));
  Get().is_running = false;
  Get().is_released = false;
  for (int device = 0; device < kMaxDevices; ++device) {
    Get().issued[device].clear();
    Get().issuers[device].clear();
  }
}
