#include "cli/model.h"

#include <unistd.h>

#include <algorithm>

#include "cli/exit_codes.h"
#include "parts/hosts/group.h"
#include "support/shown_text.h"

namespace heteroplace::cli {

namespace {

ExitCode CodeOf(heteroplace_status status) {
  switch (status) {
    case HETEROPLACE_BAD_ARGUMENT:
      return ExitCode::kBadArray;
    case HETEROPLACE_BAD_FILE:
      return ExitCode::kBadFile;
    case HETEROPLACE_NO_TVM:
      return ExitCode::kNoTvm;
    case HETEROPLACE_FAILED:
      return ExitCode::kFailed;
    case HETEROPLACE_TIMED_OUT:
      return ExitCode::kTimedOut;
    case HETEROPLACE_OUT_OF_MEMORY:
      return ExitCode::kOutOfMemory;
    default:
      return ExitCode::kInternal;
  }
}

/*! \brief At once: a launcher may end this process before the failed call returns. */
void Tell(void* job, const char* text, int32_t is_first) {
  static_cast<Job*>(job)->has_failed.store(true);
  if (is_first == 0) return;
  const std::string line = "heteroplace-run: " + ShownText(text) + "\n";
  // One write: lines of several ranks do not mix.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

template <typename Count, typename DescribeOne>
std::vector<Port> PortsOf(const heteroplace_model* model, Count count, DescribeOne describe) {
  int32_t number = 0;
  Expect(count(model, &number));
  std::vector<Port> ports(static_cast<size_t>(number));
  for (int32_t i = 0; i < number; ++i) {
    Port& port = ports[static_cast<size_t>(i)];
    port.tensor.struct_size = sizeof(port.tensor);
    Expect(describe(model, i, &port.tensor));
  }
  return ports;
}

}  // namespace

void Expect(heteroplace_status status) {
  if (status != HETEROPLACE_OK) throw Stop(CodeOf(status), heteroplace_last_error());
}

exec::DLDataType Port::dtype() const {
  return {tensor.type_code, tensor.type_bits, tensor.type_lanes};
}

std::vector<int64_t> Port::shape() const { return {tensor.shape, tensor.shape + tensor.ndim}; }

bool Model::IsFeeding() const {
  int32_t is_feeding = 0;
  Expect(heteroplace_is_feeding(handle(), &is_feeding));
  return is_feeding != 0;
}

void Model::Fail(const char* text) const { Expect(heteroplace_fail(handle(), text)); }

Model::Model(const RunOptions& options, Job* job) {
  std::vector<const char*> keys;
  keys.reserve(options.trusted_keys.size());
  for (const std::string& key : options.trusted_keys) keys.push_back(key.c_str());
  heteroplace_load_options how{};
  how.struct_size = sizeof(how);
  how.tvm_library = options.tvm_library.empty() ? nullptr : options.tvm_library.c_str();
  how.max_in_flight = options.requests_in_flight;
  how.num_trusted_keys = static_cast<int32_t>(keys.size());
  how.is_rank = job == nullptr ? 0 : 1;
  how.hosts = options.hosts.c_str();
  how.mpi_library = options.mpi_library.c_str();
  if (job != nullptr && options.timeout_s > 0) {
    how.silence_s =
        std::clamp(options.timeout_s, exec::kMinSilenceSeconds, exec::kMaxSilenceSeconds);
  }
  how.tell = Tell;
  how.tell_context = job;
  how.helping = options.helping;
  how.keeps_plan = options.adapts ? 0 : 1;
  how.trusted_keys = keys.empty() ? nullptr : keys.data();
  heteroplace_model* model = nullptr;
  Expect(heteroplace_load(options.model.c_str(), &how, &model));
  handle_.reset(model);
  inputs = PortsOf(model, heteroplace_num_inputs, heteroplace_describe_input);
  outputs = PortsOf(model, heteroplace_num_outputs, heteroplace_describe_output);
}

}  // namespace heteroplace::cli
