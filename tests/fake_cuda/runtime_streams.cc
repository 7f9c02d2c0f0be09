// The functions of libcudart: streams and events.
#include "runtime.h"

using namespace fake;

namespace {

int MakeStream(void** out) {
  auto stream = std::make_shared<Stream>(CurrentDevice());
  *out = stream.get();
  std::lock_guard lock(Get().mutex);
  Get().streams[*out] = std::move(stream);
  return Return(0);
}

int MakeEvent(void** out, bool is_timed) {
  auto event = std::make_shared<Event>();
  event->device = CurrentDevice();
  event->is_timed = is_timed;
  *out = event.get();
  std::lock_guard lock(Get().mutex);
  Get().events[*out] = std::move(event);
  return Return(0);
}

/*! \brief Whether a stream is captured: nobody may ask about it then, or wait for it. */
bool IsCaptured(Stream* stream, const char* function) {
  std::lock_guard lock(Get().mutex);
  if (stream->capture == nullptr) return false;
  stream->is_capture_broken = true;
  Get().reports.push_back(std::string(function) + ": the stream is captured");
  return true;
}

int64_t ClockAheadNs() {
  std::lock_guard lock(Get().mutex);
  return Get().clock_ahead_ns;
}

/*! \brief The number of an event's last record; 0 and a report if there is none. */
uint64_t LastRecord(Event* event, const char* function) {
  std::lock_guard lock(event->mutex);
  if (event->issued == 0) {
    Broken(std::string(function) + ": the event was never recorded", 0);
  }
  return event->issued;
}
}  // namespace

FAKE_EXPORT int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  BEGIN(kChangesMemory | kNotInCapture, -1);
  if (flags != 1) Broken("cudaStreamCreateWithFlags: the stream waits for the default one", 0);
  return MakeStream(stream);
}

FAKE_EXPORT int cudaStreamCreate(void** stream) {
  BEGIN(kChangesMemory | kNotInCapture, -1);
  return MakeStream(stream);
}

FAKE_EXPORT int cudaStreamDestroy(void* handle) {
  BEGIN(kChangesMemory | kNotInCapture | kReleases, -1);
  auto stream = FindStream(handle, __func__);
  if (stream == nullptr || handle == nullptr) return Return(kInvalidHandle);
  if (!stream->IsIdle() && !HasFault(stream->device)) {
    Broken("cudaStreamDestroy: work of the stream is pending", 0);
  }
  stream->Drain();
  {
    std::lock_guard lock(Get().mutex);
    Get().streams.erase(handle);
  }
  return Return(0);  // and the last user of the stream ends its thread
}

FAKE_EXPORT int cudaStreamSynchronize(void* handle) {
  auto stream = FindStream(handle, __func__);
  BEGIN(kBlocks | kNotInCapture, stream == nullptr ? -1 : stream->device);
  if (stream == nullptr) return Return(kInvalidHandle);
  if (IsCaptured(stream.get(), __func__)) return Return(kCaptureUnsupported);
  stream->Drain();
  return Return(Begin("", kPlain, stream->device));
}

FAKE_EXPORT int cudaStreamQuery(void* handle) {
  auto stream = FindStream(handle, __func__);
  BEGIN(kNotInCapture, stream == nullptr ? -1 : stream->device);
  if (stream == nullptr) return Return(kInvalidHandle);
  if (IsCaptured(stream.get(), __func__)) return Return(kCaptureUnsupported);
  if (!stream->IsIdle()) return kNotReady;
  return Return(Begin("", kPlain, stream->device));
}

FAKE_EXPORT int cudaStreamWaitEvent(void* handle, void* event_handle, unsigned) {
  BEGIN(kPlain, -1);
  auto stream = FindStream(handle, __func__);
  auto event = FindEvent(event_handle, __func__);
  if (stream == nullptr || event == nullptr) return Return(kInvalidHandle);
  if (stream->capture != nullptr && !event->is_captured) {
    stream->is_capture_broken = true;
    return Return(
        Broken("cudaStreamWaitEvent: a captured stream waits for work outside", kCaptureIsolation));
  }
  const uint64_t number = LastRecord(event.get(), __func__);
  if (number != 0) Issue(stream.get(), {[=] { event->WaitFor(number); }, /*is_control=*/true});
  return Return(0);
}

FAKE_EXPORT int cudaEventCreateWithFlags(void** event, unsigned flags) {
  BEGIN(kChangesMemory, -1);
  return MakeEvent(event, (flags & 2) == 0);
}

FAKE_EXPORT int cudaEventCreate(void** event) {
  BEGIN(kChangesMemory, -1);
  return MakeEvent(event, true);
}

FAKE_EXPORT int cudaEventDestroy(void* handle) {
  BEGIN(kChangesMemory | kReleases, -1);
  auto event = FindEvent(handle, __func__);
  if (event == nullptr) return Return(kInvalidHandle);
  std::lock_guard lock(Get().mutex);
  Get().events.erase(handle);
  return Return(0);
}

FAKE_EXPORT int cudaEventRecord(void* handle, void* stream_handle) {
  BEGIN(kPlain, -1);
  auto event = FindEvent(handle, __func__);
  auto stream = FindStream(stream_handle, __func__);
  if (event == nullptr || stream == nullptr) return Return(kInvalidHandle);
  if (event->device != stream->device) {
    return Return(Broken("cudaEventRecord: an event of another device", kInvalidHandle));
  }
  event->is_captured = stream->capture != nullptr;
  uint64_t number;
  {
    std::lock_guard lock(event->mutex);
    number = ++event->issued;
  }
  const auto reach = [=] {
    const std::chrono::nanoseconds ahead(ClockAheadNs());
    std::lock_guard lock(event->mutex);
    event->reached = number;
    event->time = std::chrono::steady_clock::now() + ahead;
    event->reached_changed.notify_all();
  };
  Issue(stream.get(), {reach, /*is_control=*/true, /*is_mark=*/true});
  return Return(0);
}

FAKE_EXPORT int cudaEventQuery(void* handle) {
  auto event = FindEvent(handle, __func__);
  BEGIN(kNotInCapture, event == nullptr ? -1 : event->device);
  if (event == nullptr) return Return(kInvalidHandle);
  if (!event->IsReached(LastRecord(event.get(), __func__))) return kNotReady;
  return Return(Begin("", kPlain, event->device));
}

FAKE_EXPORT int cudaEventSynchronize(void* handle) {
  auto event = FindEvent(handle, __func__);
  BEGIN(kBlocks | kNotInCapture, event == nullptr ? -1 : event->device);
  if (event == nullptr) return Return(kInvalidHandle);
  event->WaitFor(LastRecord(event.get(), __func__));
  return Return(Begin("", kPlain, event->device));
}

FAKE_EXPORT int cudaEventElapsedTime(float* milliseconds, void* start, void* end) {
  BEGIN(kPlain, -1);
  auto first = FindEvent(start, __func__);
  auto last = FindEvent(end, __func__);
  if (first == nullptr || last == nullptr) return Return(kInvalidHandle);
  if (first->device != last->device || !first->is_timed || !last->is_timed) {
    return Return(Broken("cudaEventElapsedTime: not two timed events of a device", kInvalidHandle));
  }
  for (const auto& event : {first, last}) {
    if (!event->IsReached(LastRecord(event.get(), __func__))) {
      return Return(Broken("cudaEventElapsedTime: an event is not reached", kNotReady));
    }
  }
  *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
  return Return(0);
}
