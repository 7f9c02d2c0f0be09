#include "cli/model.h"

#include "cli/exit_codes.h"

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

Model::Model(const std::string& path, const std::string& tvm_library, int max_in_flight) {
  heteroplace_load_options options{};
  options.struct_size = sizeof(options);
  options.tvm_library = tvm_library.empty() ? nullptr : tvm_library.c_str();
  options.max_in_flight = max_in_flight;
  heteroplace_model* model = nullptr;
  Expect(heteroplace_load(path.c_str(), &options, &model));
  handle_.reset(model);
  inputs = PortsOf(model, heteroplace_num_inputs, heteroplace_describe_input);
  outputs = PortsOf(model, heteroplace_num_outputs, heteroplace_describe_output);
}

}  // namespace heteroplace::cli
