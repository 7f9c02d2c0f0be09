// The functions of the C interface, which hold no logic: arguments are checked, faults are kept.
#include "capi/heteroplace.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capi/model.h"
#include "capi/status.h"

using namespace heteroplace;
using namespace heteroplace::capi;

namespace {

constexpr const char* kStatusNames[] = {"ok",        "bad argument",  "bad file",
                                        "no TVM",    "failed",        "timed out",
                                        "cancelled", "out of memory", "internal error"};

/*! \brief What the caller's options say, where his header has them. */
heteroplace_load_options OptionsOf(const heteroplace_load_options* given) {
  heteroplace_load_options options{};
  if (given == nullptr) return options;
  constexpr size_t kOfVersion1 = offsetof(heteroplace_load_options, helping);
  std::memcpy(&options, given, ExpectStruct(given, kOfVersion1, sizeof(options), "the options"));
  if (options.is_rank != 0 && options.is_rank != 1) {
    throw Fault(HETEROPLACE_BAD_ARGUMENT,
                "is_rank is " + std::to_string(options.is_rank) + "; expected 0 or 1");
  }
  if (options.keeps_plan != 0 && options.keeps_plan != 1) {
    throw Fault(HETEROPLACE_BAD_ARGUMENT,
                "keeps_plan is " + std::to_string(options.keeps_plan) + "; expected 0 or 1");
  }
  if (options.max_in_flight < 0) {
    throw Fault(HETEROPLACE_BAD_ARGUMENT, "max_in_flight is " +
                                              std::to_string(options.max_in_flight) +
                                              "; expected at least 1, or 0 for 1");
  }
  if (options.silence_s != 0 && !(options.silence_s >= exec::kMinSilenceSeconds &&
                                  options.silence_s <= exec::kMaxSilenceSeconds)) {
    char shown[32];  // of a number that may be near 0
    std::snprintf(shown, sizeof(shown), "%g", options.silence_s);
    throw Fault(HETEROPLACE_BAD_ARGUMENT, "silence_s is " + std::string(shown) +
                                              "; expected seconds, 0.001 to 1e9, or 0 for 30");
  }
  return options;
}

std::optional<bool> HelpingOf(const heteroplace_load_options& options) {
  switch (options.helping) {
    case HETEROPLACE_HELPING_AUTO:
      return {};
    case HETEROPLACE_HELPING_OFF:
      return false;
    case HETEROPLACE_HELPING_ON:
      return true;
    default:
      throw Fault(HETEROPLACE_BAD_ARGUMENT,
                  "helping is " + std::to_string(options.helping) +
                      "; expected 0 (HETEROPLACE_HELPING_AUTO), 1 (_OFF) or 2 (_ON)");
  }
}

exec::FileOptions FileOptionsOf(const heteroplace_load_options& options) {
  exec::FileOptions how;
  const bool has_keys = options.trusted_keys != nullptr;
  if (options.num_trusted_keys < 0 || (options.num_trusted_keys > 0 && !has_keys)) {
    throw Fault(HETEROPLACE_BAD_ARGUMENT,
                "num_trusted_keys is " + std::to_string(options.num_trusted_keys) +
                    (has_keys ? "" : ", and trusted_keys is NULL") +
                    "; expected how many trusted_keys has, or 0 and NULL to load what nobody has "
                    "signed");
  }
  if (!has_keys) return how;
  how.trusted_keys.emplace();
  for (int32_t i = 0; i < options.num_trusted_keys; ++i) {
    ExpectNotNull(options.trusted_keys[i], "a trusted key");
    how.trusted_keys->emplace_back(options.trusted_keys[i]);
  }
  return how;
}

LoadPlan PlanOf(const char* path, const heteroplace_load_options& options) {
  const auto text = [](const char* given) { return std::string(given == nullptr ? "" : given); };
  LoadPlan plan;
  plan.path = path;
  plan.file = FileOptionsOf(options);
  plan.tvm_library = text(options.tvm_library);
  plan.max_in_flight = std::max(options.max_in_flight, 1);
  plan.helping = HelpingOf(options);
  plan.adapts = options.keeps_plan == 0;
  plan.is_rank = options.is_rank != 0;
  plan.hosts = text(options.hosts);
  plan.mpi_library = text(options.mpi_library);
  if (options.silence_s > 0) plan.group.silence_ns = static_cast<int64_t>(options.silence_s * 1e9);
  if (options.tell != nullptr) {
    plan.group.tell = [tell = options.tell, context = options.tell_context](const std::string& told,
                                                                            bool is_first) {
      tell(context, told.c_str(), is_first ? 1 : 0);
    };
  }
  return plan;
}

void Describe(const Model& model, const std::vector<exec::Port>& ports, const char* kind,
              int32_t index, heteroplace_tensor* tensor) {
  ExpectNotNull(tensor, "tensor");
  ExpectStruct(tensor, sizeof(heteroplace_tensor), sizeof(heteroplace_tensor), "the tensor");
  if (index < 0 || static_cast<size_t>(index) >= ports.size()) {
    throw Fault(HETEROPLACE_BAD_ARGUMENT, std::string("there is no ") + kind + " " +
                                              std::to_string(index) + "; there are " +
                                              std::to_string(ports.size()));
  }
  model.Describe(ports[static_cast<size_t>(index)], tensor);
}

/*! \brief The only port that an array names, and its position. */
size_t MatchOne(const Model& model, const std::vector<exec::Port>& ports, const char* kind,
                const heteroplace_tensor* tensor) {
  const auto matched = Match(model, ports, kind, tensor, 1, /*is_complete=*/false);
  size_t position = 0;
  while (matched[position] == nullptr) ++position;
  return position;
}

}  // namespace

int32_t heteroplace_api_version(void) { return HETEROPLACE_API_VERSION; }

const char* heteroplace_status_name(heteroplace_status status) {
  const bool is_known = status >= HETEROPLACE_OK && status <= HETEROPLACE_INTERNAL;
  return is_known ? kStatusNames[status] : "unknown";
}

const char* heteroplace_last_error(void) { return LastError(); }

heteroplace_status heteroplace_load(const char* path, const heteroplace_load_options* options,
                                    heteroplace_model** model) {
  return Guarded([&] {
    ExpectNotNull(model, "model");
    *model = nullptr;
    ExpectNotNull(path, "path");
    const heteroplace_load_options how = OptionsOf(options);
    *model = new heteroplace_model{std::make_shared<Model>(PlanOf(path, how))};
  });
}

void heteroplace_unload(heteroplace_model* model) {
  // It has no status: what closing a job meets is told by the other ranks.
  static_cast<void>(Guarded([&] {
    const std::unique_ptr<heteroplace_model> unloaded(model);
    if (unloaded != nullptr) unloaded->model->Close();
  }));
}

heteroplace_status heteroplace_is_feeding(const heteroplace_model* model, int32_t* is_feeding) {
  return Guarded([&] {
    ExpectNotNull(model, "model");
    ExpectNotNull(is_feeding, "is_feeding");
    *is_feeding = model->model->is_feeding() ? 1 : 0;
  });
}

heteroplace_status heteroplace_serve(heteroplace_model* model) {
  return Guarded([&] {
    ExpectNotNull(model, "model");
    model->model->Serve();
  });
}

heteroplace_status heteroplace_fail(heteroplace_model* model, const char* text) {
  return Guarded([&] {
    ExpectNotNull(model, "model");
    ExpectNotNull(text, "text");
    model->model->Fail(text);
  });
}

heteroplace_status heteroplace_is_helping(const heteroplace_model* model, int32_t* is_helping) {
  return Guarded([&] {
    ExpectNotNull(model, "model");
    ExpectNotNull(is_helping, "is_helping");
    *is_helping = model->model->is_helping() ? 1 : 0;
  });
}

heteroplace_status heteroplace_num_inputs(const heteroplace_model* model, int32_t* count) {
  return Guarded([&] {
    ExpectNotNull(model, "model");
    ExpectNotNull(count, "count");
    *count = static_cast<int32_t>(model->model->program().inputs.size());
  });
}

heteroplace_status heteroplace_num_outputs(const heteroplace_model* model, int32_t* count) {
  return Guarded([&] {
    ExpectNotNull(model, "model");
    ExpectNotNull(count, "count");
    *count = static_cast<int32_t>(model->model->program().outputs.size());
  });
}

heteroplace_status heteroplace_describe_input(const heteroplace_model* model, int32_t index,
                                              heteroplace_tensor* tensor) {
  return Guarded([&] {
    ExpectNotNull(model, "model");
    Describe(*model->model, model->model->program().inputs, "input", index, tensor);
  });
}

heteroplace_status heteroplace_describe_output(const heteroplace_model* model, int32_t index,
                                               heteroplace_tensor* tensor) {
  return Guarded([&] {
    ExpectNotNull(model, "model");
    Describe(*model->model, model->model->program().outputs, "output", index, tensor);
  });
}

heteroplace_status heteroplace_run(heteroplace_model* model, const heteroplace_tensor* inputs,
                                   int32_t num_inputs, const heteroplace_tensor* outputs,
                                   int32_t num_outputs, double timeout_s) {
  return Guarded([&] {
    ExpectNotNull(model, "model");
    const Model& loaded = *model->model;
    const auto given = Match(loaded, loaded.program().inputs, "input", inputs, num_inputs,
                             /*is_complete=*/true);
    const auto asked = Match(loaded, loaded.program().outputs, "output", outputs, num_outputs,
                             /*is_complete=*/false);
    const exec::Limit limit = LimitOf(timeout_s);
    Call call(model->model, limit);
    for (size_t i = 0; i < given.size(); ++i) call.SetInput(i, given[i]->data);
    call.Submit(/*is_waited=*/true, limit);
    call.Finish(limit);
    for (size_t i = 0; i < asked.size(); ++i) {
      if (asked[i] != nullptr) call.GetOutput(i, asked[i]->data);
    }
  });
}

heteroplace_status heteroplace_begin(heteroplace_model* model, double timeout_s,
                                     heteroplace_request** request) {
  return Guarded([&] {
    ExpectNotNull(request, "request");
    *request = nullptr;
    ExpectNotNull(model, "model");
    *request = new heteroplace_request{{model->model, LimitOf(timeout_s)}};
  });
}

heteroplace_status heteroplace_set_input(heteroplace_request* request,
                                         const heteroplace_tensor* tensor) {
  return Guarded([&] {
    ExpectNotNull(request, "request");
    const Model& model = request->call.model();
    const size_t input = MatchOne(model, model.program().inputs, "input", tensor);
    request->call.SetInput(input, tensor->data);
  });
}

heteroplace_status heteroplace_submit(heteroplace_request* request) {
  return Guarded([&] {
    ExpectNotNull(request, "request");
    request->call.Submit(/*is_waited=*/false);
  });
}

heteroplace_status heteroplace_wait(heteroplace_request* request, double timeout_s) {
  return Guarded([&] {
    ExpectNotNull(request, "request");
    request->call.Wait(LimitOf(timeout_s));
  });
}

heteroplace_status heteroplace_finish(heteroplace_request* request, double timeout_s) {
  return Guarded([&] {
    ExpectNotNull(request, "request");
    request->call.Finish(LimitOf(timeout_s));
  });
}

heteroplace_status heteroplace_cancel(heteroplace_request* request) {
  return Guarded([&] {
    ExpectNotNull(request, "request");
    request->call.Cancel();
  });
}

heteroplace_status heteroplace_get_output(heteroplace_request* request,
                                          const heteroplace_tensor* tensor) {
  return Guarded([&] {
    ExpectNotNull(request, "request");
    const Model& model = request->call.model();
    const size_t output = MatchOne(model, model.program().outputs, "output", tensor);
    request->call.GetOutput(output, tensor->data);
  });
}

heteroplace_status heteroplace_close(heteroplace_request* request) {
  return Guarded([&] {
    if (request == nullptr) return;
    request->call.Close();
    delete request;
  });
}

heteroplace_status heteroplace_start_trace(heteroplace_model* model, int64_t max_requests) {
  return Guarded([&] {
    ExpectNotNull(model, "model");
    model->model->StartTrace(max_requests);
  });
}

heteroplace_status heteroplace_stop_trace(heteroplace_model* model, const char* path,
                                          double timeout_s) {
  return Guarded([&] {
    ExpectNotNull(model, "model");
    ExpectNotNull(path, "path");
    model->model->StopTrace(path, LimitOf(timeout_s));
  });
}
