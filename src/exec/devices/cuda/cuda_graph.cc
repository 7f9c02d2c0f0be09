#include "exec/devices/cuda/cuda_graph.h"

#include <string>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Other threads go on: callers copy, and make slots, at any time. */
constexpr int kCaptureThreadLocal = 1;

/*! \brief The graph of a capture; it is needed only until it is instantiated. */
class Template {
 public:
  explicit Template(const CudaRuntime& cuda) : cuda_(cuda) {}
  ~Template() {
    if (graph_ != nullptr) cuda_.Ignore(cuda_.GraphDestroy(graph_));
  }
  Template(const Template&) = delete;
  Template& operator=(const Template&) = delete;

  CudaGraph* place() { return &graph_; }
  CudaGraph get() const { return graph_; }

 private:
  const CudaRuntime& cuda_;
  CudaGraph graph_ = nullptr;
};

}  // namespace

CudaGraphObject::CudaGraphObject(const CudaRuntime& cuda, int device, CudaStream stream,
                                 const std::function<void()>& issue)
    : cuda_(cuda), device_(device) {
  const std::string on = " on " + DeviceName({kDLCUDA, device_});
  Template graph(cuda_);
  cuda_.Check(cuda_.StreamBeginCapture(stream, kCaptureThreadLocal), "cudaStreamBeginCapture", on);
  try {
    issue();
  } catch (...) {
    cuda_.Ignore(cuda_.StreamEndCapture(stream, graph.place()));
    throw;
  }
  cuda_.Check(cuda_.StreamEndCapture(stream, graph.place()), "cudaStreamEndCapture", on);
  cuda_.Check(cuda_.GraphInstantiateWithFlags(&executable_, graph.get(), 0),
              "cudaGraphInstantiateWithFlags", on);
  // Else the first launch would bring it to the device, in a run.
  const int error = cuda_.GraphUpload(executable_, stream);
  if (error == 0) return;
  cuda_.Ignore(cuda_.GraphExecDestroy(executable_));
  cuda_.Check(error, "cudaGraphUpload", on);
}

CudaGraphObject::~CudaGraphObject() {
  const DeviceScope scope(cuda_, device_);
  cuda_.Ignore(cuda_.GraphExecDestroy(executable_));
}

void CudaGraphObject::Launch(CudaStream stream) const {
  cuda_.Check(cuda_.GraphLaunch(executable_, stream), "cudaGraphLaunch on cuda:", device_);
}

}  // namespace heteroplace::exec
