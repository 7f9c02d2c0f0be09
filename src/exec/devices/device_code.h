// Code for GPUs in a library of TVM: its images, and how each of their functions is called.
//
// TVM packs the modules that a library imports into one block of bytes, of which this reads those
// for CUDA. The bytes come from a file: every length is checked.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/devices/tvm_abi.h"

namespace heteroplace::exec {

/*! \brief What the numbers behind the arguments of a launch say; the first six are extents. */
enum class LaunchParameter : uint8_t {
  kGridX,
  kGridY,
  kGridZ,
  kBlockX,
  kBlockY,
  kBlockZ,
  kDynamicSharedBytes
};

/*! \brief A function of an image, as the host part of a kernel calls it. */
struct DeviceFunction {
  std::string name;
  std::vector<DLDataType> arguments;
  /*! \brief They follow the arguments in a call. */
  std::vector<LaunchParameter> parameters;
  /*! \brief Position of the image that holds it. */
  size_t image = 0;

  bool HasDynamicShared() const;
};

/*! \brief Code of one compilation: PTX, and machine code where the compiler has added it. */
struct DeviceImage {
  /*! \brief Text for any later GPU; compiled by the driver when it is loaded. */
  std::string ptx;
  /*! \brief For GPUs of one compute capability (and later minor ones); may be empty. */
  std::string machine_code;
  /*! \brief Ten times the compute capability of the machine code: 80 for sm_80. */
  int32_t capability = 0;
};

/*! \brief All code for GPUs of one library. Immutable. */
class DeviceCode {
 public:
  DeviceCode() = default;

  /*!
   * \param modules the library's `__tvm_dev_mblob`: its length in 8 bytes, then so many.
   * \throws Error kArtifact when the bytes are damaged, or a module of another kind is among them.
   */
  explicit DeviceCode(const char* modules);

  const std::vector<DeviceImage>& images() const { return images_; }
  const std::vector<DeviceFunction>& functions() const { return functions_; }

  /*! \brief Position of a function, or -1. */
  int64_t Find(const std::string& name) const;

  /*! \brief Functions that the kernel `symbol` of the library launches: "symbol_kernel_1". */
  std::vector<size_t> FunctionsOf(const std::string& symbol) const;

 private:
  std::vector<DeviceImage> images_;
  std::vector<DeviceFunction> functions_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace heteroplace::exec
