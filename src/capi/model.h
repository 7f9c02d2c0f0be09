// The handles of the C interface: a loaded file, and a request of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "capi/heteroplace.h"
#include "exec/engine/executor.h"
#include "exec/file/compiled_file.h"
#include "parts/hosts/group.h"
#include "parts/hosts/ranked_executor.h"

namespace heteroplace::capi {

/*! \brief How a model is loaded; see heteroplace_load_options. */
struct LoadPlan {
  std::string path;
  exec::FileOptions file;
  std::string tvm_library;
  int max_in_flight = 1;
  std::optional<bool> helping;
  bool adapts = true;
  bool is_rank = false;
  std::string hosts;
  std::string mpi_library;
  exec::GroupOptions group;
};

/*! \brief A loaded file. Any thread may call any function. */
class Model {
 public:
  /*! \throws Fault, Error as `heteroplace_load`. */
  explicit Model(const LoadPlan& plan);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  exec::Executor& executor() { return ranked_ == nullptr ? *executor_ : ranked_->executor(); }
  const exec::Program& program() const {
    return ranked_ == nullptr ? executor_->program() : ranked_->executor().program();
  }
  bool is_helping() const {
    return ranked_ == nullptr ? executor_->is_helping() : ranked_->executor().is_helping();
  }
  bool is_feeding() const { return ranked_ == nullptr || ranked_->is_feeding(); }
  /*! \brief Throws Error kExecution on a rank that does not feed the model, or if any has failed.
   */
  void CheckFeeding(const char* function) const;
  /*! \throws Error as `heteroplace_serve`. */
  void Serve();
  /*! \brief Ends the job of several ranks on all of them, for a fault of the caller's. */
  void Fail(const char* text);
  /*! \brief Ends the job of several ranks in order. */
  void Close();
  const exec::Tensor& TensorOf(const exec::Port& port) const {
    return program().tensors[static_cast<size_t>(port.tensor)];
  }

  /*! \param max_requests 0: the executor's own choice. \throws Fault, Error. */
  void StartTrace(int64_t max_requests);
  /*! \throws Fault HETEROPLACE_BAD_ARGUMENT if the file cannot be written: the next call writes
   * the recording; Error. */
  void StopTrace(const std::string& path, const exec::Limit& limit);

  /*! \brief Writes what is known of a port but the size of the struct and the data. */
  void Describe(const exec::Port& port, heteroplace_tensor* tensor) const;

 private:
  exec::ExecutorSource Open(const LoadPlan& plan);
  void LoadAsRank(const LoadPlan& plan);

  /*! \brief Loaders know its code by a path, which is given away with the file: after all that
   * runs. Shared with an executor that a step which does not end keeps. */
  std::shared_ptr<exec::CompiledFile> file_;
  /*! \brief The one of a process alone, or of a rank. */
  std::unique_ptr<exec::Executor> executor_;
  std::unique_ptr<exec::RankedExecutor> ranked_;
  std::mutex mutex_;
  /*! \brief A recording that has ended and could not be written; guarded by mutex_. */
  std::optional<exec::Trace> unsaved_;
};

/*! \brief DLPack's type of a caller's data for it: bool has 8 bits there. */
exec::DLDataType TypeForCallers(const exec::DLDataType& dtype);

/*!
 * \brief Checks arrays of a caller against the ports that they name: all faults of them at once.
 *
 * \param kind "input" or "output", for the text.
 * \param tensors [count], by the size that the first one says.
 * \param is_complete whether every port must have an array.
 * \return the array of each port; null where it has none. [num_ports]
 * \throws Fault HETEROPLACE_BAD_ARGUMENT: each name, expected and got.
 */
std::vector<const heteroplace_tensor*> Match(const Model& model,
                                             const std::vector<exec::Port>& ports, const char* kind,
                                             const heteroplace_tensor* tensors, int32_t count,
                                             bool is_complete);

/*! \brief A limit of so many seconds from now; none if negative. \throws Fault if it is no number.
 */
exec::Limit LimitOf(double timeout_s);

/*! \brief A request of a model, which it keeps loaded. */
class Call {
 public:
  /*! \throws Fault HETEROPLACE_TIMED_OUT if none is free until the limit. */
  Call(std::shared_ptr<Model> model, const exec::Limit& limit);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const Model& model() const { return *model_; }
  void SetInput(size_t input, const void* data);
  /*! \param is_waited whether Finish follows at once. */
  void Submit(bool is_waited, const exec::Limit& limit = {});
  /*! \throws Fault HETEROPLACE_TIMED_OUT if it goes on. */
  void Wait(const exec::Limit& limit);
  void Finish(const exec::Limit& limit);
  void Cancel();
  void GetOutput(size_t output, void* data);
  /*! \throws Error kExecution if another thread is in a call. */
  void Close() { request_->Close(); }

 private:
  std::shared_ptr<Model> model_;
  std::unique_ptr<exec::Request> request_;  // before the model
};

}  // namespace heteroplace::capi

struct heteroplace_model {
  std::shared_ptr<heteroplace::capi::Model> model;
};

struct heteroplace_request {
  heteroplace::capi::Call call;
};
