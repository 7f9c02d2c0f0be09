#include "capi/model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "capi/status.h"
#include "exec/trace/trace_json.h"
#include "support/error.h"
#include "support/files.h"

namespace heteroplace::capi {

namespace {

std::string Named(const char* kind, const std::string& name) {
  return std::string(kind) + " '" + name + "'";
}

std::string NamesOf(const std::vector<exec::Port>& ports) {
  std::string text;
  for (const exec::Port& port : ports) text += (text.empty() ? "'" : ", '") + port.name + "'";
  return text.empty() ? "none" : text;
}

/*! \brief What is wrong with an array for a tensor; "": nothing. */
std::string FaultOf(const exec::Tensor& expected, const heteroplace_tensor& got) {
  if (got.ndim < 0 || (got.ndim > 0 && got.shape == nullptr)) {
    return "its shape is NULL or of negative length";
  }
  const exec::DLDataType dtype{got.type_code, got.type_bits, got.type_lanes};
  const exec::DLDataType type = TypeForCallers(expected.dtype);
  const bool is_same_type =
      dtype.code == type.code && dtype.bits == type.bits && dtype.lanes == type.lanes;
  const std::vector<int64_t> shape(got.shape, got.shape + got.ndim);
  if (!is_same_type || shape != expected.shape) {
    return "expected " + exec::DescribeTensor(type, expected.shape) + ", got " +
           exec::DescribeTensor(dtype, shape);
  }
  if (got.bytes != static_cast<uint64_t>(expected.bytes)) {
    return "expected " + std::to_string(expected.bytes) + " bytes, got " +
           std::to_string(got.bytes);
  }
  return got.data == nullptr && got.bytes > 0 ? "its data is NULL" : "";
}

/*! \brief Collects faults, to tell all of them. */
class Faults {
 public:
  void Add(const std::string& text) { text_ += (text_.empty() ? "" : "; ") + text; }
  void ThrowIfAny() const {
    if (!text_.empty()) throw Fault(HETEROPLACE_BAD_ARGUMENT, text_);
  }

 private:
  std::string text_;
};

}  // namespace

void Model::StartTrace(int64_t max_requests) {
  CheckFeeding("heteroplace_start_trace");
  const auto most = max_requests == 0 ? std::nullopt : std::optional(max_requests);
  ranked_ == nullptr ? executor_->StartTrace(most) : ranked_->StartTrace(most);
  std::scoped_lock lock(mutex_);
  unsaved_.reset();
}

void Model::StopTrace(const std::string& path, const exec::Limit& limit) {
  CheckFeeding("heteroplace_stop_trace");
  std::unique_lock lock(mutex_);
  std::optional<exec::Trace> trace = std::exchange(unsaved_, std::nullopt);
  lock.unlock();
  if (!trace.has_value()) {
    trace = ranked_ == nullptr ? executor_->StopTrace(limit) : ranked_->MergedTrace(limit);
  }
  const auto keep = [&] {
    lock.lock();
    unsaved_ = std::move(trace);
  };
  const exec::Program& drawn = ranked_ == nullptr ? program() : ranked_->merged();
  try {
    WriteWhole(path, exec::TraceJson(drawn, *trace));
  } catch (const Error& error) {
    keep();
    throw Fault(HETEROPLACE_BAD_ARGUMENT, std::string(error.what()) +
                                              "; the recording has ended, and is written by "
                                              "another call with another path");
  } catch (...) {
    keep();
    throw;
  }
}

exec::DLDataType TypeForCallers(const exec::DLDataType& dtype) {
  if (dtype.code == exec::kDLUInt && dtype.bits == 1) return {exec::kDLBool, 8, dtype.lanes};
  return dtype;
}

void Model::Describe(const exec::Port& port, heteroplace_tensor* tensor) const {
  const exec::Tensor& found = TensorOf(port);
  const exec::DLDataType type = TypeForCallers(found.dtype);
  tensor->name = port.name.c_str();
  tensor->type_code = type.code;
  tensor->type_bits = type.bits;
  tensor->type_lanes = type.lanes;
  tensor->ndim = static_cast<int32_t>(found.shape.size());
  tensor->shape = found.shape.data();
  tensor->bytes = static_cast<uint64_t>(found.bytes);
  tensor->data = nullptr;
}

std::vector<const heteroplace_tensor*> Match(const Model& model,
                                             const std::vector<exec::Port>& ports, const char* kind,
                                             const heteroplace_tensor* tensors, int32_t count,
                                             bool is_complete) {
  if (count < 0) {
    throw Fault(HETEROPLACE_BAD_ARGUMENT, std::string("the number of ") + kind + "s is " +
                                              std::to_string(count) + "; expected at least 0");
  }
  if (count > 0) ExpectNotNull(tensors, (std::string("the array of ") + kind + "s").c_str());
  std::vector<const heteroplace_tensor*> matched(ports.size());
  Faults faults;
  const auto* bytes = reinterpret_cast<const char*>(tensors);
  for (int32_t i = 0; i < count; ++i) {
    // A program of a later header has larger structs, of which the first fields are these.
    const auto* tensor = reinterpret_cast<const heteroplace_tensor*>(
        bytes + static_cast<size_t>(i) * tensors->struct_size);
    ExpectStruct(tensor, sizeof(heteroplace_tensor), sizeof(heteroplace_tensor),
                 std::string(kind) + " " + std::to_string(i));
    const std::string name = tensor->name == nullptr ? "" : tensor->name;
    const auto port =
        std::ranges::find_if(ports, [&](const exec::Port& other) { return other.name == name; });
    if (port == ports.end()) {
      faults.Add("the program has no " + Named(kind, name) + "; it has " + NamesOf(ports));
      continue;
    }
    const heteroplace_tensor*& place = matched[static_cast<size_t>(port - ports.begin())];
    if (place != nullptr) faults.Add(Named(kind, name) + " is given twice");
    place = tensor;
    const std::string fault = FaultOf(model.TensorOf(*port), *tensor);
    if (!fault.empty()) faults.Add(Named(kind, name) + ": " + fault);
  }
  for (size_t i = 0; i < ports.size() && is_complete; ++i) {
    if (matched[i] == nullptr) faults.Add(Named(kind, ports[i].name) + " is missing");
  }
  faults.ThrowIfAny();
  return matched;
}

exec::Limit LimitOf(double timeout_s) {
  if (std::isnan(timeout_s)) {
    throw Fault(HETEROPLACE_BAD_ARGUMENT,
                "timeout_s is no number; pass seconds, or HETEROPLACE_NO_LIMIT");
  }
  if (timeout_s < 0) return {};
  constexpr double kMaxSeconds = 1e9;
  return exec::Limit{}.Within(static_cast<int64_t>(std::min(timeout_s, kMaxSeconds) * 1e9));
}

Call::Call(std::shared_ptr<Model> model, const exec::Limit& limit)
    : model_((model->CheckFeeding("heteroplace_run"), std::move(model))),
      request_(model_->executor().Begin(limit)) {
  if (request_ == nullptr) {
    throw Fault(HETEROPLACE_TIMED_OUT,
                "all " + std::to_string(model_->executor().max_in_flight()) +
                    " requests of the model were at work for the whole limit; allow more time, or "
                    "load it with a higher max_in_flight");
  }
}

void Call::SetInput(size_t input, const void* data) {
  const exec::Port& port = model_->program().inputs[input];
  const exec::Tensor& tensor = model_->TensorOf(port);
  request_->SetInput(port.name, tensor.dtype, tensor.shape, data);
}

void Call::Submit(bool is_waited, const exec::Limit& limit) {
  // Else it would take what the last request in the executor's first memory was given.
  Faults faults;
  for (const std::string& name : request_->InputsNotGiven()) {
    faults.Add(Named("input", name) + " is missing");
  }
  faults.ThrowIfAny();
  request_->Submit(limit, is_waited);
}

void Call::Wait(const exec::Limit& limit) {
  if (request_->Wait(limit)) return;
  throw Fault(HETEROPLACE_TIMED_OUT, "the request is still at work; it goes on");
}

void Call::Finish(const exec::Limit& limit) {
  const bool is_late = !request_->Wait(limit);
  try {
    request_->Finish(limit);
  } catch (const Error& error) {
    const auto* failed = dynamic_cast<const exec::RequestError*>(&error);
    if (failed != nullptr && failed->cause() == exec::FailureCause::kCancelled) {
      throw Fault(HETEROPLACE_CANCELLED, error.what());
    }
    if (is_late) throw Fault(HETEROPLACE_TIMED_OUT, error.what());
    model_->CheckFeeding("heteroplace_run");  // names the rank that failed, if one has
    throw;
  }
}

void Call::Cancel() { request_->Cancel("the request was cancelled by its caller"); }

void Call::GetOutput(size_t output, void* data) {
  request_->GetOutput(model_->program().outputs[output].name, data);
}

}  // namespace heteroplace::capi
