// Bytes on devices: weights as they are given, and buffers that are freed with their owner.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "exec/devices/device.h"

namespace heteroplace::exec {

/*! \brief Weights in host memory: the artefact's mapped section, or a caller's buffer. */
struct Blob {
  const void* data = nullptr;
  int64_t bytes = 0;
  /*! \brief Keeps the bytes alive; null: they outlive the executor. */
  std::shared_ptr<const void> owner;
};

/*! \brief Bytes of one space that an executor holds. */
struct SpaceBytes {
  /*! \brief Values, inputs and outputs: of all slots. */
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

}  // namespace heteroplace::exec
