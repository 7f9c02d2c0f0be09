// What the executor asks of a device: memory, and ordered queues of asynchronous work.
//
// Work on the processor itself does not pass here: CPU queues call kernels directly.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

/*! \brief Launches of a stream that were recorded once, to be issued together. */
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
};

/*! \brief A point in a stream. Recorded anew in every request of its slot. */
class Event {
 public:
  virtual ~Event() = default;

  /*! \brief Whether the work before the last record has finished; throws what went wrong in it. */
  virtual bool IsReached() = 0;

  /*! \brief Holds up the calling thread until then. */
  virtual void HostWait() = 0;

  /*! \brief When it was reached, by the host's monotonic clock; none: by the device's alone. */
  virtual std::optional<int64_t> HostNs() const { return {}; }

  /*! \brief Time on the device from `earlier` to this event, both timed and finished. */
  virtual int64_t ElapsedNs(const Event& earlier) const = 0;
};

/*!
 * \brief An ordered queue of asynchronous work. Used by one worker thread.
 *
 * All functions throw Error kExecution with the device's message, or std::bad_alloc where memory is
 * short. IsIdle and Synchronise, and those of events, throw for a fault only.
 */
class Stream {
 public:
  virtual ~Stream() = default;

  /*! \brief Makes its device that of the calling thread; called once, by the thread that uses it.
   */
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
   * last such end. Where the device survives it, later work is none the worse for it.
   */
  virtual void RecordEnd(Event* event) = 0;

  /*!
   * \brief Holds back what is issued later until `event` is reached, without blocking the caller.
   * \return false if the event is of another kind of device; the caller then waits on the host.
   */
  virtual bool Wait(Event* event) = 0;

  /*!
   * \brief What a word of the host is to the device in the two functions below; 0: it cannot use
   * words, or not this one. The word must be in pinned memory.
   */
  virtual uint64_t WordAddress(const void*) { return 0; }
  /*! \brief Holds back what is issued later until the word less `value`, as a signed number, is 0
   * or more. Such words may wrap around. */
  virtual void WaitWord(uint64_t, uint32_t) {}
  /*! \brief Lets the device write the word when all work that was issued before has finished. */
  virtual void WriteWord(uint64_t, uint32_t) {}

  /*!
   * \brief Records what `issue` launches on this stream instead of doing it; null where the device
   * has no such thing. Scratch memory is fixed from then on: kernels that need more fail.
   */
  virtual std::unique_ptr<RecordedWork> Capture(const std::function<void()>&) { return nullptr; }
  /*! \brief Issues all of it. */
  virtual void Replay(const RecordedWork&) {}

  /*! \brief Whether all issued work has finished; throws what went wrong in it. */
  virtual bool IsIdle() = 0;

  /*! \brief Holds up the calling thread until then. */
  virtual void Synchronise() = 0;

  /*! \brief Takes so much scratch memory for the kernels at once, where it is not the host's. */
  virtual void ReserveWorkspace(int64_t) {}
  /*! \brief Scratch memory that is held on the device. */
  virtual int64_t workspace_bytes() const { return 0; }
};

class DeviceFunctionTable;

/*! \brief Bytes of the host on their way to a device. */
struct HostBytes {
  void* dst;
  const void* src;
  int64_t bytes;
};

/*! \brief Bytes on their way from one place of a device's memory to another one. */
struct MovedBytes {
  void* dst;
  const void* src;
  int64_t bytes;
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
  /*! \brief The same for many: reading one goes on while others travel. */
  virtual void UploadAll(const std::vector<HostBytes>& all) {
    for (const HostBytes& each : all) Upload(each.dst, each.src, each.bytes);
  }
  virtual void Download(void* dst, const void* src, int64_t bytes) = 0;
  /*! \brief Copies within the device's memory, where no two ranges overlap; blocks. */
  virtual void CopyWithin(const std::vector<MovedBytes>& all) = 0;

  /*!
   * \brief Brings the code of all kernels that a program calls here, so that no run does.
   * \param table of the kernels' library, as long as the device lives; null if it has no such code.
   * \param symbols of the kernels. At most one call, before the first launch.
   */
  virtual void LoadKernels(const DeviceFunctionTable*, const std::vector<std::string>&) {}

  /*!
   * \brief Makes all that a program's kernels of NVIDIA's libraries need, so that no run does.
   * \param kernels they must outlive the device's streams. At most one call, before the first
   * stream is made.
   */
  virtual void LoadLibraryKernels(const std::vector<const LibraryKernel*>&) {}

  /*! \brief Lets copies between this and another device of its kind go directly, if they can. */
  virtual void EnablePeer(int32_t) {}

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

/*!
 * \brief Pins host memory for copies to CUDA devices as long as the object lives.
 *
 * A system may refuse (limits of locked memory): copies then are staged by CUDA, which holds up the
 * worker that issues them, and all else is the same.
 */
class PinnedMemory {
 public:
  /*! \param device index of a CUDA device that the program uses; all can use the memory. */
  PinnedMemory(const TvmAbi* abi, int32_t device, void* data, int64_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  bool is_pinned() const { return is_pinned_; }

 private:
  const TvmAbi* abi_;
  int32_t device_;
  void* data_;
  bool is_pinned_;
};

}  // namespace heteroplace::exec
