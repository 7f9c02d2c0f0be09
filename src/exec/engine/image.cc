#include "exec/engine/image.h"

#include <algorithm>
#include <cstring>

#include "exec/devices/own_runtime.h"
#include "exec/engine/kernel_arguments.h"
#include "exec/program/bundle.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

void CheckBlob(const Program& program, const Blob& blob) {
  for (size_t c = 0; c < program.constants.size(); ++c) {
    const Constant& constant = program.constants[c];
    if (constant.blob_offset + constant.bytes > blob.bytes) {
      throw Error(ErrorKind::kArtifact,
                  "constant " + std::to_string(c) + " ends at byte " +
                      std::to_string(constant.blob_offset + constant.bytes) +
                      " of the weights, which have " + std::to_string(blob.bytes) +
                      " bytes; the artefact is truncated, or of another program");
    }
  }
}

/*! \brief The kernels of a call, at all capacities. */
std::vector<int32_t> KernelsOf(const Instruction& call) {
  if (call.work == nullptr) return {call.kernel};
  std::vector<int32_t> kernels;
  for (const CapacityCall& each : call.work->calls) kernels.push_back(each.kernel);
  return kernels;
}

/*! \brief The program of this rank, all of them being checked. */
Program OwnProgram(const ExecutorSource& source) {
  std::vector<Program> programs = ParsePrograms(source.program_text);
  const int num_ranks = source.transport == nullptr ? 1 : source.transport->num_ranks();
  if (static_cast<int>(programs.size()) != num_ranks) {
    throw Error(ErrorKind::kExecution,
                "the program is for " + std::to_string(programs.size()) +
                    (programs.size() == 1 ? " host" : " hosts, a rank each") + ", and there " +
                    (num_ranks == 1 ? "is 1 rank" : "are " + std::to_string(num_ranks) + " ranks") +
                    "; start it as mpiexec -n " + std::to_string(programs.size()));
  }
  const int rank = source.transport == nullptr ? 0 : source.transport->rank();
  return std::move(programs[static_cast<size_t>(rank)]);
}

}  // namespace

Image::Image(const ExecutorSource& source)
    : has_cuda_graphs_(source.has_cuda_graphs),
      has_cuda_words_(source.has_cuda_words),
      transport_(source.transport) {
  abi_ = source.libtvm_path.empty() ? OwnRuntime() : LoadTvmAbi(source.libtvm_path);
  library_ = std::make_unique<KernelLibrary>(&abi_, source.library_path, source.module);
  program_ = OwnProgram(source);
  branch_steps_ = MakeBranchSteps(program_);
  if (library_->IsInMemory()) CheckKernelsInMemory();
  const auto* arguments = static_cast<const char*>(library_->Symbol(kKernelArguments));
  if (arguments != nullptr) CheckKernelArguments(program_, arguments);
  blob_ = source.blob;
  CheckBlob(program_, blob_);
  // All devices before any memory: "no GPU" must not be hidden by a failed allocation.
  AddDevice({kDLCPU, 0});
  for (const Space& space : program_.spaces) AddDevice(space.device);
  for (const Queue& queue : program_.queues) AddDevice(queue.device);
  PlaceConstants();
  for (size_t k = 0; k < program_.kernels.size(); ++k) {
    const LibraryKernel* kernel = program_.library_kernels[k].get();
    kernels_.push_back(kernel == nullptr ? library_->Function(program_.kernels[k])
                                         : KernelFunction{nullptr, nullptr, kernel});
  }
  PrepareCuda();
}

void Image::AddDevice(const DLDevice& device) {
  std::unique_ptr<Device>& place = devices_[{device.device_type, device.device_id}];
  if (place != nullptr) return;
  place = IsHost(device) ? MakeCpuDevice() : MakeCudaDevice(&abi_, device.device_id);
}

void Image::CheckKernelsInMemory() const {
  if (abi_.SetMaxConcurrency == nullptr) {
    throw Error(ErrorKind::kExecution,
                "this TVM does not let workers bound its thread pool, so kernels in memory would "
                "use cores of other workers; export the module to a library file");
  }
  for (const Queue& queue : program_.queues) {
    for (const Instruction& at : queue.instructions) {
      if (at.LeadsTeam() && at.threads > 1) {
        throw Error(ErrorKind::kArtifact, "program line " + std::to_string(at.line) +
                                              ": a call has " + std::to_string(at.threads) +
                                              " threads, but kernels in memory have no "
                                              "teams; export the module to a library file");
      }
    }
  }
}

/*! \brief Brings each GPU the code of its kernels, and joins the pairs that copy. */
void Image::PrepareCuda() {
  const auto device_of = [&](int32_t tensor) {
    const int32_t space = program_.tensors[static_cast<size_t>(tensor)].space;
    return program_.spaces[static_cast<size_t>(space)].device;
  };
  std::map<int32_t, std::vector<std::string>> symbols;
  std::map<int32_t, std::vector<const LibraryKernel*>> library_kernels;
  for (const Queue& queue : program_.queues) {
    if (queue.device.device_type != kDLCUDA) continue;
    for (const Instruction& at : queue.instructions) {
      if (at.IsCall()) {
        const int32_t device = queue.device.device_id;
        for (int32_t kernel : KernelsOf(at)) {
          const size_t k = static_cast<size_t>(kernel);
          if (program_.library_kernels[k] == nullptr) {
            symbols[device].push_back(program_.kernels[k]);
          } else {
            library_kernels[device].push_back(program_.library_kernels[k].get());
          }
        }
        continue;
      }
      if (at.opcode == Opcode::kGroup) continue;
      const DLDevice src = device_of(at.tensors[0]);
      const DLDevice dst = device_of(at.tensors[1]);
      if (src.device_type != kDLCUDA || dst.device_type != kDLCUDA || src == dst) continue;
      DeviceOf(src)->EnablePeer(dst.device_id);
      DeviceOf(dst)->EnablePeer(src.device_id);
    }
  }
  for (const auto& [device, each] : library_kernels) {
    DeviceOf({kDLCUDA, device})->LoadLibraryKernels(each);
  }
  if (symbols.empty()) return;
  if (library_->IsInMemory()) {
    throw Error(ErrorKind::kArtifact,
                "kernels for GPUs cannot be run from a module in memory; export it to a library "
                "file");
  }
  for (const auto& [device, names] : symbols) {
    DeviceOf({kDLCUDA, device})->LoadKernels(library_->device_functions(), names);
  }
}

void Image::PlaceConstants() {
  constants_.resize(program_.constants.size());
  weight_bytes_.resize(program_.spaces.size());
  const char* base = static_cast<const char*>(blob_.data);
  const bool is_aligned = reinterpret_cast<uintptr_t>(base) % kTensorAlignmentBytes == 0;
  const bool has_host = std::ranges::any_of(program_.constants, [&](const Constant& constant) {
    return IsHost(program_.spaces[static_cast<size_t>(constant.space)].device);
  });
  if (!is_aligned && has_host) {
    buffers_.emplace_back(DeviceOf({kDLCPU, 0}), blob_.bytes);
    std::memcpy(buffers_.back().data(), base, static_cast<size_t>(blob_.bytes));
    base = buffers_.back().data();
  }
  for (size_t s = 0; s < program_.spaces.size(); ++s) PlaceConstantsOf(s, base);
}

void Image::PlaceConstantsOf(size_t space, const char* base) {
  const bool is_host = IsHost(program_.spaces[space].device);
  int64_t bytes = 0;
  for (const Constant& constant : program_.constants) {
    if (static_cast<size_t>(constant.space) == space) bytes += AlignUp(constant.bytes);
  }
  weight_bytes_[space] = bytes;
  Device* device = DeviceOf(program_.spaces[space].device);
  if (!is_host) buffers_.emplace_back(device, std::max<int64_t>(bytes, 1));
  char* next = is_host ? nullptr : buffers_.back().data();
  std::vector<HostBytes> uploads;
  for (size_t c = 0; c < program_.constants.size(); ++c) {
    const Constant& constant = program_.constants[c];
    if (static_cast<size_t>(constant.space) != space) continue;
    const char* src = base + constant.blob_offset;
    if (is_host) {
      // Kernels take all arguments alike, and never write to a weight.
      constants_[c] = const_cast<char*>(src);
    } else {
      uploads.push_back({next, src, constant.bytes});
      constants_[c] = next;
      next += AlignUp(constant.bytes);
    }
  }
  device->UploadAll(uploads);
}

}  // namespace heteroplace::exec
