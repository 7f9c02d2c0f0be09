// What the fakes of NVIDIA's libraries share.
#include "library_objects.h"

#include <cmath>
#include <cstring>

int64_t fake::NumLibraryObjects() {
  std::lock_guard lock(TheLibraries().mutex);
  return static_cast<int64_t>(TheLibraries().objects.size());
}

void fake::ForgetLibraryCode() {
  std::lock_guard lock(TheLibraries().mutex);
  TheLibraries().loaded.clear();
}

float fake::RoundedToTenBits(float value, bool is_half) {
  if (!std::isfinite(value)) return value;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits += 0x0fff + (bits >> 13 & 1);
  bits &= ~uint32_t{0x1fff};
  std::memcpy(&value, &bits, sizeof(value));
  if (is_half && std::fabs(value) > 65504.0f) return std::copysign(INFINITY, value);
  return value;
}

int fake::TakeExecutionFault(const char* function) {
  std::lock_guard lock(Get().mutex);
  const auto fault = Get().faults.find(std::string("kernel ") + function);
  if (fault == Get().faults.end() || --fault->second.after_calls >= 0) return 0;
  const int code = fault->second.code;
  Get().faults.erase(fault);
  return code;
}

void fake::LoadCode(const Stream& stream, const char* function, uint64_t algorithm) {
  {
    const std::string name = std::string(function) + " " + std::to_string(algorithm);
    std::lock_guard lock(TheLibraries().mutex);
    if (!TheLibraries().loaded.insert({stream.device, name}).second) return;
  }
  State& state = Get();
  std::lock_guard lock(state.mutex);
  const bool is_run = state.is_running && std::this_thread::get_id() != state.caller;
  if (is_run || stream.capture != nullptr) {
    state.reports.push_back(std::string(function) + ": loads the code of an algorithm in a " +
                            (is_run ? "run" : "capture"));
  }
}
