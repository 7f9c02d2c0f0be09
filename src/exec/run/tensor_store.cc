#include "exec/run/tensor_store.h"

#include <algorithm>
#include <cstring>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

bool IsHost(const DLDevice& device) { return device.device_type == kDLCPU; }

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

}  // namespace

TensorStore::TensorStore(const TvmAbi* abi, const Program& program, Blob blob)
    : abi_(abi),
      program_(program),
      space_bytes_(program.spaces.size()),
      arenas_(program.spaces.size()),
      constants_(program.constants.size()),
      externals_(program.tensors.size()),
      tensors_(program.tensors.size()) {
  CheckBlob(program, blob);
  // All devices before any memory: "no GPU" must not be hidden by a failed allocation.
  for (const Space& space : program.spaces) DeviceOf(space.device);
  for (const Queue& queue : program.queues) DeviceOf(queue.device);
  for (size_t s = 0; s < program.spaces.size(); ++s) AllocateSpace(static_cast<int32_t>(s));
  PlaceConstants(blob);
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const Tensor& tensor = program.tensors[t];
    const size_t place = static_cast<size_t>(tensor.place);
    char* data = tensor.storage == Storage::kArena
                     ? arenas_[static_cast<size_t>(tensor.space)] + place
                 : tensor.storage == Storage::kConstant ? constants_[place]
                                                        : externals_[t];
    tensors_[t] = {data,
                   program.spaces[static_cast<size_t>(tensor.space)].device,
                   static_cast<int32_t>(tensor.shape.size()),
                   tensor.dtype,
                   const_cast<int64_t*>(tensor.shape.data()),
                   nullptr,
                   0};
  }
}

Device* TensorStore::DeviceOf(const DLDevice& device) {
  std::unique_ptr<Device>& slot = devices_[{device.device_type, device.device_id}];
  if (slot == nullptr) {
    slot = IsHost(device) ? MakeCpuDevice() : MakeCudaDevice(abi_, device.device_id);
  }
  return slot.get();
}

void TensorStore::AllocateSpace(int32_t space) {
  const Space& info = program_.spaces[static_cast<size_t>(space)];
  Device* device = DeviceOf(info.device);
  int64_t external_bytes = 0;
  bool has_external = false;
  for (const Tensor& tensor : program_.tensors) {
    if (tensor.space == space && tensor.storage == Storage::kExternal) {
      external_bytes += AlignUp(tensor.bytes);
      has_external = true;
    }
  }
  // A tensor of no elements has an address too: one byte at least where there is any tensor.
  const size_t first_block = buffers_.size();
  buffers_.emplace_back(device, std::max<int64_t>(info.arena_bytes, 1));
  arenas_[static_cast<size_t>(space)] = buffers_.back().data();
  if (has_external) buffers_.emplace_back(device, std::max<int64_t>(external_bytes, 1));
  char* next = buffers_.back().data();
  for (size_t b = first_block; b < buffers_.size(); ++b) {
    space_bytes_[static_cast<size_t>(space)].arena += buffers_[b].held_bytes();
  }
  for (size_t t = 0; t < program_.tensors.size(); ++t) {
    const Tensor& tensor = program_.tensors[t];
    if (tensor.space == space && tensor.storage == Storage::kExternal) {
      externals_[t] = next;
      next += AlignUp(tensor.bytes);
    }
  }
  const bool has_cuda = devices_.rbegin()->first.first == kDLCUDA;
  if (IsHost(info.device) && has_cuda) {
    // Copies between pageable memory and a GPU are not asynchronous.
    for (size_t b = first_block; b < buffers_.size(); ++b) {
      pinned_.push_back(std::make_unique<PinnedMemory>(abi_, devices_.rbegin()->first.second,
                                                       buffers_[b].data(), buffers_[b].bytes()));
    }
  }
}

void TensorStore::PlaceConstants(Blob blob) {
  const char* base = static_cast<const char*>(blob.data);
  const bool is_aligned = reinterpret_cast<uintptr_t>(base) % kTensorAlignmentBytes == 0;
  const bool has_host = std::any_of(
      program_.constants.begin(), program_.constants.end(), [&](const Constant& constant) {
        return IsHost(program_.spaces[static_cast<size_t>(constant.space)].device);
      });
  if (!is_aligned && has_host) {
    buffers_.emplace_back(DeviceOf({kDLCPU, 0}), blob.bytes);
    std::memcpy(buffers_.back().data(), base, static_cast<size_t>(blob.bytes));
    base = buffers_.back().data();
  }
  for (size_t s = 0; s < program_.spaces.size(); ++s) {
    const bool is_host = IsHost(program_.spaces[s].device);
    int64_t bytes = 0;
    for (const Constant& constant : program_.constants) {
      if (static_cast<size_t>(constant.space) == s) bytes += AlignUp(constant.bytes);
    }
    space_bytes_[s].weights = bytes;
    Device* device = DeviceOf(program_.spaces[s].device);
    if (!is_host) buffers_.emplace_back(device, std::max<int64_t>(bytes, 1));
    char* next = is_host ? nullptr : buffers_.back().data();
    for (size_t c = 0; c < program_.constants.size(); ++c) {
      const Constant& constant = program_.constants[c];
      if (static_cast<size_t>(constant.space) != s) continue;
      const char* src = base + constant.blob_offset;
      if (is_host) {
        // Kernels take all arguments alike, and never write to a weight.
        constants_[c] = const_cast<char*>(src);
      } else {
        device->Upload(next, src, constant.bytes);
        constants_[c] = next;
        next += AlignUp(constant.bytes);
      }
    }
  }
}

void TensorStore::Write(int32_t tensor, const void* data) {
  DLTensor* to = Get(tensor);
  DeviceOf(to->device)->Upload(to->data, data, program_.tensors[static_cast<size_t>(tensor)].bytes);
}

void TensorStore::Read(int32_t tensor, void* data) {
  DLTensor* from = Get(tensor);
  DeviceOf(from->device)
      ->Download(data, from->data, program_.tensors[static_cast<size_t>(tensor)].bytes);
}

void TensorStore::TouchArena(int32_t space) {
  const Space& info = program_.spaces[static_cast<size_t>(space)];
  std::memset(arenas_[static_cast<size_t>(space)], 0, static_cast<size_t>(info.arena_bytes));
}

}  // namespace heteroplace::exec
