// Capture of a stream's work as a graph, and the graph's launch.
#include "fake.h"

using namespace fake;

FAKE_EXPORT int cudaStreamBeginCapture(void* handle, int) {
  if (const int error = Begin(__func__, kNotInCapture); error != 0) return error;
  auto stream = FindStream(handle, __func__);
  if (stream == nullptr) return kInvalidHandle;
  if (handle == nullptr)
    return Broken("cudaStreamBeginCapture: the default stream", kCaptureUnsupported);
  std::lock_guard lock(Get().mutex);
  stream->capture = std::make_unique<Graph>();
  stream->is_capture_broken = false;
  ++Get().num_captures;
  return 0;
}

FAKE_EXPORT int cudaStreamEndCapture(void* handle, void** graph) {
  if (const int error = Begin(__func__, kPlain); error != 0) return error;
  auto stream = FindStream(handle, __func__);
  if (stream == nullptr) return kInvalidHandle;
  std::lock_guard lock(Get().mutex);
  *graph = nullptr;
  if (stream->capture == nullptr) return kInvalidValue;
  std::shared_ptr<Graph> taken = std::move(stream->capture);
  --Get().num_captures;
  if (stream->is_capture_broken) return kCaptureInvalidated;
  *graph = taken.get();
  Get().graphs[*graph] = std::move(taken);
  return 0;
}

FAKE_EXPORT int cudaGraphInstantiate(void** executable, void* graph, uint64_t) {
  if (const int error = Begin(__func__, kChangesMemory | kNotInCapture); error != 0) return error;
  std::lock_guard lock(Get().mutex);
  const auto found = Get().graphs.find(graph);
  if (found == Get().graphs.end()) return kInvalidValue;
  auto copy = std::make_shared<Graph>();
  copy->work = found->second->work;
  *executable = copy.get();
  Get().graphs[*executable] = std::move(copy);
  return 0;
}

FAKE_EXPORT int cudaGraphLaunch(void* executable, void* handle) {
  if (const int error = Begin(__func__, kPlain); error != 0) return error;
  auto stream = FindStream(handle, __func__);
  if (stream == nullptr) return kInvalidHandle;
  std::shared_ptr<Graph> graph;
  {
    std::lock_guard lock(Get().mutex);
    const auto found = Get().graphs.find(executable);
    if (found == Get().graphs.end()) return kInvalidValue;
    graph = found->second;
  }
  for (const Work& work : graph->work) Issue(stream.get(), work);
  return 0;
}

FAKE_EXPORT int cudaGraphDestroy(void* graph) {
  if (const int error = Begin(__func__, kReleases); error != 0) return error;
  std::lock_guard lock(Get().mutex);
  return Get().graphs.erase(graph) == 1 ? 0 : kInvalidValue;
}

FAKE_EXPORT int cudaGraphExecDestroy(void* executable) { return cudaGraphDestroy(executable); }
