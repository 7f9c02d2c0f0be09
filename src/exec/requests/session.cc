#include "exec/requests/session.h"

#include <algorithm>
#include <cstring>
#include <string>

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
    if (!IsHost(space.device)) {
      ClearSpace(s);  // the system's new pages are zeros, a GPU's are not
    } else if (image->HasGpu()) {
      pinned_.push_back(std::make_unique<PinnedMemory>(&image->abi(), image->gpu(),
                                                       blocks_[s]->data(), blocks_[s]->bytes()));
    }
  }
}

void Session::ClearSpace(size_t place) {
  const Space& space = image_->program().spaces[place];
  const size_t size = static_cast<size_t>(space.session_bytes);
  if (IsHost(space.device)) {
    std::memset(blocks_[place]->data(), 0, size);
  } else {
    const std::vector<char> zeros(size);
    image_->DeviceOf(space.device)
        ->Upload(blocks_[place]->data(), zeros.data(), space.session_bytes);
  }
}

void Session::Clear() {
  for (size_t s = 0; s < blocks_.size(); ++s) {
    if (blocks_[s] != nullptr) ClearSpace(s);
  }
}

char* Session::Block(const Space& space) const {
  const std::vector<Space>& spaces = image_->program().spaces;
  const auto own = std::ranges::find(spaces, space.name, &Space::name);
  const size_t place = static_cast<size_t>(own - spaces.begin());
  return own == spaces.end() || blocks_[place] == nullptr ? nullptr : blocks_[place]->data();
}

void Session::CheckFits(const Program& program) const {
  if (&program == &image_->program()) return;
  const auto states = [](const Program& of) {
    std::vector<std::string> texts;
    for (const KeptState& state : of.kept_states) {
      const Port& port = of.inputs[state.input];
      const Tensor& tensor = of.tensors[static_cast<size_t>(port.tensor)];
      texts.push_back("'" + port.name + "': " + DescribeTensor(tensor.dtype, tensor.shape) +
                      " in " + of.spaces[static_cast<size_t>(tensor.space)].name + " at byte " +
                      std::to_string(tensor.place));
    }
    std::ranges::sort(texts);
    return texts;
  };
  const std::vector<std::string> own = states(image_->program());
  const std::vector<std::string> others = states(program);
  for (size_t i = 0; i < std::max(own.size(), others.size()); ++i) {
    const std::string one = i < own.size() ? own[i] : "nothing";
    const std::string other = i < others.size() ? others[i] : "nothing";
    if (one == other) continue;
    throw Error(ErrorKind::kExecution, "the session keeps " + one + ", and the program " + other +
                                           "; open a session of that program");
  }
}

void Session::CopyFrom(const Session& other) {
  std::vector<char> bytes;
  for (const Space& space : image_->program().spaces) {
    if (space.session_bytes == 0) continue;
    Device* device = image_->DeviceOf(space.device);
    if (IsHost(space.device)) {
      device->Upload(Block(space), other.Block(space), space.session_bytes);
      continue;
    }
    bytes.resize(static_cast<size_t>(space.session_bytes));
    device->Download(bytes.data(), other.Block(space), space.session_bytes);
    device->Upload(Block(space), bytes.data(), space.session_bytes);
  }
}

void Session::Write(const Tensor& tensor, const void* data) {
  const Space& space = SpaceOf(tensor);
  image_->DeviceOf(space.device)->Upload(Block(space) + tensor.place, data, tensor.bytes);
}

void Session::Read(const Tensor& tensor, void* data) const {
  const Space& space = SpaceOf(tensor);
  image_->DeviceOf(space.device)->Download(data, Block(space) + tensor.place, tensor.bytes);
}

void Session::Take() {
  if (!is_taken_.exchange(true)) return;
  throw Error(ErrorKind::kExecution,
              "the session is in use by another call; wait for its end, or fork the session");
}

}  // namespace heteroplace::exec
