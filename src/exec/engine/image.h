// What an executor loads once and never changes: TVM, kernels, program, devices, weights.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/devices/device.h"
#include "exec/engine/device_memory.h"
#include "exec/engine/kernel_library.h"
#include "exec/engine/mode_chooser.h"
#include "exec/net/transport.h"
#include "exec/program/program.h"
#include "exec/requests/order.h"
#include "exec/workers/branch_steps.h"

namespace heteroplace::exec {

/*! \brief What an executor is made from. */
struct ExecutorSource {
  /*! \brief Path of the libtvm.so in use; "": none, which is for programs that do not need it (see
   * `NeedsTvm`). */
  std::string libtvm_path;
  /*! \brief Absolute path of the library of kernels (`CompiledFile::code_path`), or "". */
  std::string library_path;
  /*! \brief Instead of a file: a TVM module in memory, of which a reference is taken. */
  TVMModuleHandle module = nullptr;
  /*! \brief The program, or those of all hosts; see src/exec/program/format.md. */
  std::string program_text;
  /*! \brief Messages to the other hosts: this one is that of its rank. Of this executor alone; null
   * for a program of one host. */
  std::shared_ptr<Transport> transport;
  /*! \brief Told what callers have the engine do, in that order and before the workers see it; what
   * it throws is thrown to the caller, and nothing is done. */
  std::function<void(const Order&)> on_order;
  /*! \brief The weights. */
  Blob blob;
  /*! \brief Most requests in flight: slots that may be made; the first is made at load. */
  int max_in_flight = 1;
  /*!
   * \brief Whether cores that wait do parts of others' kernels. None: those that share a cache do,
   * if every worker has a core; true: all do.
   */
  std::optional<bool> helping;
  /*! \brief Which requests one thread does alone, of a program of several cores; of others none. */
  SerialRule serial = SerialRule::kNever;
  /*! \brief Whether kernels of a GPU that follow each other with no wait between are issued as one
   * CUDA graph. */
  bool has_cuda_graphs = false;
  /*! \brief Whether cores and GPUs wait for each other by words in pinned memory, where the system
   * and the driver allow it; else by events. */
  bool has_cuda_words = true;
};

/*!
 * \brief A loaded program. Constant after the constructor; any thread may use it. Sessions share it
 * with the executor.
 *
 * The weights of host spaces are used where they lie (a blob that is not aligned for kernels is
 * copied once); those of other devices are uploaded by the constructor.
 */
class Image : public std::enable_shared_from_this<Image> {
 public:
  /*! \throws Error kArtifact for a wrong file, program or blob; kExecution for a missing device or
   * memory that is short. */
  explicit Image(const ExecutorSource& source);
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  const TvmAbi& abi() const { return abi_; }
  const Program& program() const { return program_; }
  KernelLibrary& library() const { return *library_; }
  /*! \brief The program's kernels. [num_kernels] */
  const std::vector<KernelFunction>& kernels() const { return kernels_; }
  /*! \brief The device of a space or of a queue, or the host. */
  Device* DeviceOf(const DLDevice& device) const {
    return devices_.at({device.device_type, device.device_id}).get();
  }
  /*! \brief Whether host memory is to be pinned, as copies between it and a GPU need. */
  bool HasGpu() const { return devices_.rbegin()->first.first == kDLCUDA; }
  /*! \brief Index of a CUDA device that the program uses. */
  int32_t gpu() const { return devices_.rbegin()->first.second; }
  /*! \brief Guarded instructions of a queue, in order. */
  const std::vector<BranchStep>& branch_steps(size_t queue) const { return branch_steps_[queue]; }
  bool uses_cuda_graphs() const { return has_cuda_graphs_; }
  bool uses_cuda_words() const { return has_cuda_words_; }
  /*! \brief Messages to the other hosts; null: there are none. */
  const std::shared_ptr<Transport>& transport() const { return transport_; }
  char* constant(int64_t id) const { return constants_[static_cast<size_t>(id)]; }
  /*! \brief Bytes of the constants of each space. [num_spaces] */
  const std::vector<int64_t>& weight_bytes() const { return weight_bytes_; }

 private:
  void AddDevice(const DLDevice& device);
  void CheckKernelsInMemory() const;
  void PrepareCuda();
  void PlaceConstants();
  void PlaceConstantsOf(size_t space, const char* base);

  bool has_cuda_graphs_;
  bool has_cuda_words_;
  std::shared_ptr<Transport> transport_;
  TvmAbi abi_;
  std::unique_ptr<KernelLibrary> library_;
  Program program_;
  std::vector<KernelFunction> kernels_;
  std::vector<std::vector<BranchStep>> branch_steps_;  // [num_queues]; they point into program_
  /*! \brief By device type and id: hosts come first, GPUs last. */
  std::map<std::pair<int32_t, int32_t>, std::unique_ptr<Device>> devices_;
  Blob blob_;
  std::vector<DeviceBuffer> buffers_;  // after devices_, which free them
  std::vector<char*> constants_;       // [num_constants]
  std::vector<int64_t> weight_bytes_;
};

}  // namespace heteroplace::exec
