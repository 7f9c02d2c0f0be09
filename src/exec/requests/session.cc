#include "exec/requests/session.h"

#include <algorithm>

#include "support/error.h"

namespace heteroplace::exec {

Session::Session(const Image* image)
    : image_(image),
      blocks_(image->program().spaces.size()),
      held_bytes_(image->program().spaces.size()) {
  for (size_t s = 0; s < blocks_.size(); ++s) {
    const Space& space = image->program().spaces[s];
    if (space.session_bytes == 0) continue;
    Device* device = image->DeviceOf(space.device);
    blocks_[s] = std::make_unique<DeviceBuffer>(device, space.session_bytes);
    held_bytes_[s] = blocks_[s]->held_bytes();
    if (!IsHost(space.device)) {  // the system's new pages are zeros, a GPU's are not
      const std::vector<char> zeros(static_cast<size_t>(space.session_bytes));
      device->Upload(blocks_[s]->data(), zeros.data(), space.session_bytes);
    } else if (image->HasGpu()) {
      pinned_.push_back(std::make_unique<PinnedMemory>(&image->abi(), image->gpu(),
                                                       blocks_[s]->data(), blocks_[s]->bytes()));
    }
  }
}

Device* Session::DeviceOf(size_t space) const {
  return image_->DeviceOf(image_->program().spaces[space].device);
}

void Session::CopyFrom(const Session& other) {
  std::vector<char> bytes;
  for (size_t s = 0; s < blocks_.size(); ++s) {
    if (blocks_[s] == nullptr) continue;
    const int64_t size = image_->program().spaces[s].session_bytes;
    if (IsHost(image_->program().spaces[s].device)) {
      DeviceOf(s)->Upload(block(s), other.block(s), size);
      continue;
    }
    bytes.resize(static_cast<size_t>(size));
    DeviceOf(s)->Download(bytes.data(), other.block(s), size);
    DeviceOf(s)->Upload(block(s), bytes.data(), size);
  }
}

void Session::Write(const Tensor& tensor, const void* data) {
  const size_t space = static_cast<size_t>(tensor.space);
  DeviceOf(space)->Upload(block(space) + tensor.place, data, tensor.bytes);
}

void Session::Read(const Tensor& tensor, void* data) const {
  const size_t space = static_cast<size_t>(tensor.space);
  DeviceOf(space)->Download(data, block(space) + tensor.place, tensor.bytes);
}

void Session::Take() {
  if (!is_taken_.exchange(true)) return;
  throw Error(ErrorKind::kExecution,
              "the session is in use by another call; wait for its end, or fork the session");
}

}  // namespace heteroplace::exec
