// A compiled file -> a loaded model: of a process alone, or of one rank of several.
#include <exception>
#include <memory>

#include "capi/find_tvm.h"
#include "capi/model.h"
#include "exec/devices/own_runtime.h"
#include "parts/hosts/job.h"
#include "parts/hosts/transports/mpi_transport.h"
#include "parts/kernels/registration.h"
#include "support/error.h"

namespace heteroplace::capi {

Model::Model(const LoadPlan& plan) {
  exec::RegisterNvidiaKernels();
  if (plan.is_rank) {
    LoadAsRank(plan);
    return;
  }
  const exec::ExecutorSource source = Open(plan);
  exec::ExpectOneHost(plan.path, source.program_text);
  file_->CheckGpus();
  executor_ = std::make_unique<exec::Executor>(source);
}

/*! \brief Reads and checks the file; what an executor is made from. */
exec::ExecutorSource Model::Open(const LoadPlan& plan) {
  file_ = std::make_shared<exec::CompiledFile>(plan.path, plan.file);
  file_->Load();
  exec::ExecutorSource source;
  source.library_path = file_->code_path();
  source.program_text = file_->program_text();
  if (exec::NeedsTvm(source.library_path, source.program_text)) {
    source.libtvm_path = FindTvm(plan.tvm_library);
  }
  source.max_in_flight = plan.max_in_flight;
  source.helping = plan.helping;
  if (plan.adapts) source.serial = exec::SerialRule::kWhereFaster;
  const std::shared_ptr<const exec::WeightsMap>& weights = file_->weights();
  source.blob = {weights->data(), weights->bytes(), file_};
  return source;
}

void Model::LoadAsRank(const LoadPlan& plan) {
  const auto group =
      exec::Group::Meet(exec::MakeMpiTransport({plan.mpi_library, {}}), plan.group, {});
  exec::ForgetSharedFiles();
  exec::JobFile job{plan.path, "", "", ""};
  exec::ExecutorSource source;
  std::exception_ptr thrown;
  try {
    source = Open(plan);
    job = exec::JobFileOf(plan.path, *file_);
  } catch (const std::exception& error) {
    thrown = std::current_exception();
    job.fault = CauseOf(error);
  }
  try {
    exec::AgreeOnFile(group.get(), job, plan.hosts, plan.max_in_flight, {});
    exec::ExpectNoServedState(group.get(), job);
  } catch (const Error&) {
    if (thrown != nullptr) std::rethrow_exception(thrown);
    throw;
  }
  const auto check = [&](int host) { file_->CheckHost(host); };
  ranked_ = std::make_unique<exec::RankedExecutor>(group, source, check, exec::Limit{});
}

void Model::CheckFeeding(const char* function) const {
  if (ranked_ != nullptr) ranked_->CheckFeeding(function);
}

void Model::Serve() {
  if (ranked_ == nullptr) {
    throw Error(ErrorKind::kExecution,
                "heteroplace_serve is for one of several ranks; this process is alone: call "
                "heteroplace_run");
  }
  ranked_->Serve({});
}

void Model::Fail(const char* text) {
  if (ranked_ == nullptr) return;
  exec::Group& group = ranked_->group();
  group.Fail(group.NameOf(group.rank()) + ": " + text);
}

void Model::Close() {
  if (ranked_ != nullptr) ranked_->Close();
}

}  // namespace heteroplace::capi
