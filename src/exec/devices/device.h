// What the executor asks of a device: memory, and ordered queues of asynchronous work.
//
// Work on the processor itself does not pass here: CPU queues call kernels directly.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "exec/devices/tvm_abi.h"

namespace heteroplace::exec {

/*! \brief Distance of tensors and of scratch memory: two cache lines, so that none is shared. */
template <typename Bytes>
Bytes AlignUp(Bytes bytes) {
  constexpr Bytes kDistance = 128;
  return (bytes + kDistance - 1) / kDistance * kDistance;
}

/*! \brief A kernel with its arguments, built once and kept by the executor. */
struct KernelCall {
  KernelFunction function;
  TVMValue* arguments = nullptr;  // [num_arguments]
  int* type_codes = nullptr;      // [num_arguments]
  int num_arguments = 0;
};

/*!
 * \brief Calls a kernel on this thread. Returns 0, or leaves a message in TVM's last error.
 *
 * A kernel of a library is called at its address: that is faster, and its failure is a mere return
 * code, where TVMFuncCall would throw inside TVM and print a stack trace into the message.
 */
inline int CallKernel(const TvmAbi& abi, const KernelCall& call) {
  TVMValue result;
  int result_code = 0;
  if (call.function.address != nullptr) {
    return call.function.address(call.arguments, call.type_codes, call.num_arguments, &result,
                                 &result_code, nullptr);
  }
  return abi.FuncCall(call.function.handle, call.arguments, call.type_codes, call.num_arguments,
                      &result, &result_code);
}

/*! \brief A point in a stream. Recorded anew in every request of its slot. */
class Event {
 public:
  virtual ~Event() = default;

  /*!
   * \brief Whether the work before the last record has finished; does not block.
   * \throws Error kExecution with what went wrong in that work.
   */
  virtual bool IsReached() = 0;

  /*! \brief Blocks the calling thread until the work before the last record has finished. */
  virtual void HostWait() = 0;

  /*! \brief Time on the device from `earlier` to this event, both timed and finished. */
  virtual int64_t ElapsedNs(const Event& earlier) const = 0;
};

/*!
 * \brief An ordered queue of asynchronous work. Used by one worker thread.
 *
 * All functions throw Error kExecution with the device's message.
 */
class Stream {
 public:
  virtual ~Stream() = default;

  /*! \brief Makes this the stream of the calling thread; called once, by its worker. */
  virtual void Attach() = 0;

  /*! \brief Issues a kernel. */
  virtual void Launch(const KernelCall& call) = 0;

  /*! \brief Issues a copy of `bytes` between any two devices. */
  virtual void Copy(const DLTensor& dst, const DLTensor& src, int64_t bytes) = 0;

  /*! \brief Makes an event for this device; a timed one can be asked for ElapsedNs. */
  virtual std::unique_ptr<Event> MakeEvent(bool is_timed) = 0;

  /*! \brief Marks the work issued so far. */
  virtual void Record(Event* event) = 0;

  /*!
   * \brief As Record, at the end of a request: this event tells of a fault of the work since the
   * last such end, and later work is none the worse for it where the device survived it.
   */
  virtual void RecordEnd(Event* event) = 0;

  /*!
   * \brief Holds back what is issued later until `event` is reached, without blocking the caller.
   * \return false if the event is of another kind of device; the caller then waits on the host.
   */
  virtual bool Wait(Event* event) = 0;

  /*! \brief Blocks until all issued work has finished; throws what went wrong in it. */
  virtual void Synchronise() = 0;
};

/*! \brief A device's memory, and the source of its streams. Any thread may call it. */
class Device {
 public:
  virtual ~Device() = default;

  /*! \brief Allocates memory, aligned for kernels and vectors; freed by Free. */
  virtual void* Allocate(int64_t bytes) = 0;
  virtual void Free(void* data, int64_t bytes) = 0;
  /*! \brief What a block of `bytes` really takes: whole pages of a host. */
  virtual int64_t HeldBytes(int64_t bytes) const { return bytes; }

  /*! \brief Copies host memory to the device, and back; blocks. */
  virtual void Upload(void* dst, const void* src, int64_t bytes) = 0;
  virtual void Download(void* dst, const void* src, int64_t bytes) = 0;

  /*! \brief Makes a stream; fails on a device whose work is not asynchronous. */
  virtual std::unique_ptr<Stream> MakeStream() = 0;
};

/*! \brief Host memory. `MakeStream` is an error. */
std::unique_ptr<Device> MakeCpuDevice();

/*!
 * \brief Host memory with streams of threads: every task lasts at least `delay_ns`.
 *
 * Kernels are CPU kernels. They run when the stream comes to them, so a missing wait gives wrong
 * numbers here as it would on a GPU.
 */
std::unique_ptr<Device> MakeFakeDevice(const TvmAbi* abi, int64_t delay_ns);

/*!
 * \brief A CUDA device.
 * \throws Error kExecution when the machine has no such device or driver.
 */
std::unique_ptr<Device> MakeCudaDevice(const TvmAbi* abi, int32_t index);

/*! \brief Pins host memory for copies to CUDA devices as long as the object lives. */
class PinnedMemory {
 public:
  PinnedMemory(const TvmAbi* abi, void* data, int64_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

 private:
  const TvmAbi* abi_;
  void* data_;
};

}  // namespace heteroplace::exec
