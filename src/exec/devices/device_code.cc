#include "exec/devices/device_code.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

constexpr std::array<std::string_view, 7> kLaunchTags = {"blockIdx.x",
                                                         "blockIdx.y",
                                                         "blockIdx.z",
                                                         "threadIdx.x",
                                                         "threadIdx.y",
                                                         "threadIdx.z",
                                                         "tir.use_dyn_shared_memory"};

/*! \brief Stands behind the NUL that ends the PTX, before capability, length and machine code. */
constexpr std::string_view kMachineCodeMark = "HPMCODE1";

/*! \brief Between the symbol of a kernel and the number of the functions that it launches. */
constexpr std::string_view kFunctionSuffix = "_kernel";

/*! \brief Reads numbers and texts as dmlc's streams write them: little endian, lengths first. */
class CodeReader {
 public:
  explicit CodeReader(std::string_view bytes) : bytes_(bytes) {}

  std::string_view Take(uint64_t size, const char* what) {
    if (size > bytes_.size()) {
      throw Error(ErrorKind::kArtifact, std::string("the library's code for GPUs ends within ") +
                                            what + "; the file is damaged: build it again");
    }
    const std::string_view taken = bytes_.substr(0, static_cast<size_t>(size));
    bytes_.remove_prefix(taken.size());
    return taken;
  }

  template <typename Value>
  Value Number(const char* what) {
    Value value;
    const std::string_view bytes = Take(sizeof(value), what);
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }

  std::string Text(const char* what) { return std::string(Take(Number<uint64_t>(what), what)); }

  bool IsAtEnd() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

LaunchParameter ParameterOf(const std::string& tag, const std::string& function) {
  const auto* found = std::ranges::find(kLaunchTags, tag);
  if (found == kLaunchTags.end()) {
    throw Error(ErrorKind::kArtifact, "GPU function '" + function + "' has the launch parameter '" +
                                          tag +
                                          "', which this executor does not know; build the "
                                          "model with the version that runs it");
  }
  return static_cast<LaunchParameter>(found - kLaunchTags.begin());
}

DeviceFunction ReadFunction(CodeReader* reader) {
  constexpr const char* kWhat = "the table of functions";
  DeviceFunction function;
  function.name = reader->Text(kWhat);
  reader->Text(kWhat);  // again, or empty: the name that TVM's own launch puts into messages
  for (uint64_t left = reader->Number<uint64_t>(kWhat); left > 0; --left) {
    DLDataType type{};
    type.code = reader->Number<uint8_t>(kWhat);
    type.bits = reader->Number<uint8_t>(kWhat);
    type.lanes = reader->Number<uint16_t>(kWhat);
    function.arguments.push_back(type);
  }
  for (uint64_t left = reader->Number<uint64_t>(kWhat); left > 0; --left) {
    function.parameters.push_back(ParameterOf(reader->Text(kWhat), function.name));
  }
  return function;
}

/*! \brief Splits what the compiler returned: PTX alone, or PTX, NUL and machine code. */
DeviceImage ReadImage(const std::string& data) {
  DeviceImage image;
  const size_t end = std::min(data.find('\0'), data.size());
  image.ptx = data.substr(0, end);
  if (end == data.size()) return image;
  CodeReader reader(std::string_view(data).substr(end + 1));
  if (reader.Take(kMachineCodeMark.size(), "the mark of machine code") != kMachineCodeMark) {
    throw Error(ErrorKind::kArtifact,
                "the library's code for GPUs goes on behind its PTX with unknown bytes; the file "
                "is damaged: build it again");
  }
  image.capability = reader.Number<int32_t>("machine code");
  image.machine_code = reader.Text("machine code");
  return image;
}

}  // namespace

bool DeviceFunction::HasDynamicShared() const {
  return !parameters.empty() && parameters.back() == LaunchParameter::kDynamicSharedBytes;
}

DeviceCode::DeviceCode(const char* modules) {
  uint64_t size = 0;
  std::memcpy(&size, modules, sizeof(size));
  CodeReader reader(std::string_view(modules + sizeof(size), static_cast<size_t>(size)));
  reader.Number<uint64_t>("the number of modules");
  while (!reader.IsAtEnd()) {
    const std::string kind = reader.Text("the kind of a module");
    if (kind == "_lib") continue;
    if (kind == "_import_tree") break;  // comes last
    if (kind != "cuda") {
      throw Error(ErrorKind::kArtifact, "the library holds a module of kind '" + kind +
                                            "'; only code for CPUs and CUDA can be run");
    }
    reader.Text("the format of an image");
    const size_t first = functions_.size();
    for (uint64_t left = reader.Number<uint64_t>("the number of functions"); left > 0; --left) {
      functions_.push_back(ReadFunction(&reader));
      functions_.back().image = images_.size();
    }
    // TVM keeps them in a table without an order.
    std::sort(functions_.begin() + static_cast<int64_t>(first), functions_.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    images_.push_back(ReadImage(reader.Text("an image")));
  }
  for (size_t f = 0; f < functions_.size(); ++f) by_name_.emplace(functions_[f].name, f);
}

int64_t DeviceCode::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? -1 : static_cast<int64_t>(found->second);
}

std::vector<size_t> DeviceCode::FunctionsOf(const std::string& symbol) const {
  std::vector<size_t> found;
  const std::string first = symbol + std::string(kFunctionSuffix);
  for (int64_t f = Find(first); f >= 0; f = Find(first + "_" + std::to_string(found.size()))) {
    found.push_back(static_cast<size_t>(f));
  }
  return found;
}

}  // namespace heteroplace::exec
