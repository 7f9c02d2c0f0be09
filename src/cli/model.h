// A compiled file by its C interface: what other programs have is enough for this one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capi/heteroplace.h"
#include "cli/run_options.h"
#include "exec/devices/tvm_abi.h"

namespace heteroplace::cli {

/*! \brief \throws Stop with the code that stands for a status, unless it is HETEROPLACE_OK. */
void Expect(heteroplace_status status);

/*! \brief An input or output: what the model says of it, and memory for it. */
struct Port {
  heteroplace_tensor tensor;
  std::string data;

  std::string name() const { return tensor.name; }
  exec::DLDataType dtype() const;
  std::vector<int64_t> shape() const;
  /*! \brief "float32 (1, 3)". */
  std::string Describe() const { return exec::DescribeTensor(dtype(), shape()); }
};

/*! \brief The job of a rank, as main has to know of it. */
struct Job {
  /*! \brief A failure of any rank has been shown, by this one or by another. */
  std::atomic<bool> has_failed{false};
};

struct UnloadModel {
  void operator()(heteroplace_model* model) const { heteroplace_unload(model); }
};
struct CloseRequest {
  void operator()(heteroplace_request* request) const { heteroplace_close(request); }
};
using Request = std::unique_ptr<heteroplace_request, CloseRequest>;

/*! \brief A loaded model with its ports. */
class Model {
 public:
  /*! \param job null: this process is alone. */
  Model(const RunOptions& options, Job* job);

  heteroplace_model* handle() const { return handle_.get(); }
  /*! \brief Whether it reads the inputs and writes the outputs. */
  bool IsFeeding() const;
  /*! \brief Ends the job of several ranks on all of them, and says why. */
  void Fail(const char* text) const;

  /*! \brief Without memory. */
  std::vector<Port> inputs;
  std::vector<Port> outputs;

 private:
  std::unique_ptr<heteroplace_model, UnloadModel> handle_;
};

}  // namespace heteroplace::cli
