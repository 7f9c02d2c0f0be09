// Capture of a stream's work as a graph, and the graph's launch.
#include "fake.h"

using namespace fake;

namespace {

/*! \brief A live graph or executable graph; null after a report. */
std::shared_ptr<Graph> FindGraph(void* handle, bool is_executable, const char* function) {
  {
    std::lock_guard lock(Get().mutex);
    const auto found = Get().graphs.find(handle);
    if (found != Get().graphs.end() && found->second->is_executable == is_executable) {
      return found->second;
    }
  }
  Broken(std::string(function) + ": a graph that does not live", 0);
  return nullptr;
}

int Destroy(void* handle, bool is_executable, const char* function) {
  if (const int error = Begin(function, kReleases); error != 0) return error;
  if (FindGraph(handle, is_executable, function) == nullptr) return kInvalidValue;
  std::lock_guard lock(Get().mutex);
  Get().graphs.erase(handle);
  return 0;
}

}  // namespace

FAKE_EXPORT int cudaStreamBeginCapture(void* handle, int mode) {
  if (const int error = Begin(__func__, kPlain); error != 0) return error;
  auto stream = FindStream(handle, __func__);
  if (stream == nullptr) return kInvalidHandle;
  if (handle == nullptr)
    return Broken("cudaStreamBeginCapture: the default stream", kCaptureUnsupported);
  std::lock_guard lock(Get().mutex);
  if (stream->capture != nullptr) {
    Get().reports.push_back("cudaStreamBeginCapture: the stream is captured already");
    return kInvalidValue;
  }
  stream->capture = std::make_unique<Graph>();
  stream->capture->device = stream->device;
  stream->is_capture_broken = false;
  stream->capture_mode = static_cast<CaptureMode>(mode);
  stream->capturer = std::this_thread::get_id();
  return 0;
}

FAKE_EXPORT int cudaStreamEndCapture(void* handle, void** graph) {
  const int failed = Begin(__func__, kPlain);
  auto stream = FindStream(handle, __func__);
  if (stream == nullptr) return kInvalidHandle;
  std::lock_guard lock(Get().mutex);
  *graph = nullptr;
  if (stream->capture == nullptr) return kInvalidValue;
  if (stream->capture_mode != kRelaxed && stream->capturer != std::this_thread::get_id()) {
    Get().reports.push_back("cudaStreamEndCapture: another thread began the capture");
    return 908;
  }
  std::shared_ptr<Graph> taken = std::move(stream->capture);
  if (failed != 0) return failed;
  if (stream->is_capture_broken) return kCaptureInvalidated;
  *graph = taken.get();
  Get().graphs[*graph] = std::move(taken);
  return 0;
}

FAKE_EXPORT int cudaGraphInstantiateWithFlags(void** executable, void* handle, uint64_t flags) {
  if (const int error = Begin(__func__, kChangesMemory | kNotInCapture); error != 0) return error;
  if (flags != 0) return Broken("cudaGraphInstantiateWithFlags: unknown flags", kInvalidValue);
  auto graph = FindGraph(handle, /*is_executable=*/false, __func__);
  if (graph == nullptr) return kInvalidValue;
  auto copy = std::make_shared<Graph>(*graph);
  copy->is_executable = true;
  *executable = copy.get();
  std::lock_guard lock(Get().mutex);
  Get().graphs[*executable] = std::move(copy);
  return 0;
}

FAKE_EXPORT int cudaGraphUpload(void* executable, void* handle) {
  if (const int error = Begin(__func__, kChangesMemory); error != 0) return error;
  auto stream = FindStream(handle, __func__);
  auto graph = FindGraph(executable, /*is_executable=*/true, __func__);
  if (stream == nullptr || graph == nullptr) return kInvalidHandle;
  graph->is_uploaded = true;
  return 0;
}

FAKE_EXPORT int cudaGraphLaunch(void* executable, void* handle) {
  if (const int error = Begin(__func__, kPlain); error != 0) return error;
  auto stream = FindStream(handle, __func__);
  auto graph = FindGraph(executable, /*is_executable=*/true, __func__);
  if (stream == nullptr || graph == nullptr) return kInvalidHandle;
  if (stream->device != graph->device) {
    return Broken("cudaGraphLaunch: a graph of another device", kInvalidHandle);
  }
  if (!graph->is_uploaded) {
    std::lock_guard lock(Get().mutex);
    if (Get().is_running && std::this_thread::get_id() != Get().caller) {
      Get().reports.push_back("cudaGraphLaunch: brings the graph to the device in a run");
    }
    graph->is_uploaded = true;
  }
  for (const Work& work : graph->work) Issue(stream.get(), work);
  return 0;
}

FAKE_EXPORT int cudaGraphDestroy(void* graph) {
  return Destroy(graph, /*is_executable=*/false, __func__);
}

FAKE_EXPORT int cudaGraphExecDestroy(void* executable) {
  return Destroy(executable, /*is_executable=*/true, __func__);
}

/*! \brief As CUDA 12 has it; TVM is linked to it. */
FAKE_EXPORT int cudaGraphInstantiate(void** executable, void* graph, uint64_t flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}
