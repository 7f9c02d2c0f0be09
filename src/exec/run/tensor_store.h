// All bytes of a program: arenas, weights, inputs and outputs, with one DLTensor per tensor.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exec/devices/device.h"
#include "exec/program/program.h"

namespace heteroplace::exec {

/*! \brief Weights in host memory: the artefact's mapped section, or a caller's buffer. */
struct Blob {
  const void* data = nullptr;
  int64_t bytes = 0;
};

/*! \brief Bytes of one space that an executor holds. */
struct SpaceBytes {
  /*! \brief Values, inputs and outputs. */
  int64_t arena = 0;
  /*! \brief Constants, where they lie. */
  int64_t weights = 0;
  /*! \brief Scratch memory of kernels. */
  int64_t workspace = 0;
};

/*! \brief Memory of a device, freed with the object. */
class DeviceBuffer {
 public:
  DeviceBuffer(Device* device, int64_t bytes)
      : device_(device), bytes_(bytes), data_(device->Allocate(bytes)) {}
  ~DeviceBuffer() {
    if (data_ != nullptr) device_->Free(data_, bytes_);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(other.device_), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;

  char* data() const { return static_cast<char*>(data_); }
  int64_t bytes() const { return bytes_; }
  int64_t held_bytes() const { return device_->HeldBytes(bytes_); }

 private:
  Device* device_;
  int64_t bytes_;
  void* data_;
};

/*!
 * \brief Owns the memory of an executor. Built once; the addresses never change after.
 *
 * The weights of host spaces are used where they lie (a blob that is not aligned for kernels is
 * copied once); those of other devices are uploaded by the constructor.
 */
class TensorStore {
 public:
  /*!
   * \param program must outlive the store.
   * \param blob must outlive the store.
   * \throws Error kArtifact when the blob is too small; kExecution when memory is.
   */
  TensorStore(const TvmAbi* abi, const Program& program, Blob blob);

  /*! \brief The tensor as kernels take it. */
  DLTensor* Get(int32_t tensor) { return &tensors_[static_cast<size_t>(tensor)]; }

  /*! \brief The device of a space or of a queue; made at first use. */
  Device* DeviceOf(const DLDevice& device);

  /*! \brief Copies a host buffer of the tensor's size into it, or back. Blocks. */
  void Write(int32_t tensor, const void* data);
  void Read(int32_t tensor, void* data);

  /*! \brief What arenas and constants take; no workspace. [num_spaces] */
  const std::vector<SpaceBytes>& space_bytes() const { return space_bytes_; }

  /*! \brief Writes zeros to a host arena: its pages then belong to the caller's memory node. */
  void TouchArena(int32_t space);

 private:
  void AllocateSpace(int32_t space);
  void PlaceConstants(Blob blob);

  const TvmAbi* abi_;
  const Program& program_;
  /*! \brief By device type and id: hosts come first, GPUs last. */
  std::map<std::pair<int32_t, int32_t>, std::unique_ptr<Device>> devices_;
  std::vector<DeviceBuffer> buffers_;  // after devices_, which free them
  std::vector<std::unique_ptr<PinnedMemory>> pinned_;
  std::vector<SpaceBytes> space_bytes_;
  std::vector<char*> arenas_;      // [num_spaces]
  std::vector<char*> constants_;   // [num_constants]
  std::vector<char*> externals_;   // [num_tensors], null if the tensor is not external
  std::vector<DLTensor> tensors_;  // [num_tensors]
};

}  // namespace heteroplace::exec
