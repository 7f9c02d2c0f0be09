#include "exec/requests/session.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

const Port& PortOf(const Program& program, size_t state) {
  return program.inputs[program.kept_states[state].input];
}

const Tensor& TensorOf(const Program& program, size_t state) {
  return program.tensors[static_cast<size_t>(PortOf(program, state).tensor)];
}

const std::string& SpaceName(const Program& program, const Tensor& tensor) {
  return program.spaces[static_cast<size_t>(tensor.space)].name;
}

/*! \brief Whether two programs keep the same as their state of this number. */
bool IsSame(const Program& one, const Program& other, size_t state) {
  if (state >= std::min(one.kept_states.size(), other.kept_states.size())) return false;
  const Tensor& a = TensorOf(one, state);
  const Tensor& b = TensorOf(other, state);
  return PortOf(one, state).name == PortOf(other, state).name && a.place == b.place &&
         a.shape == b.shape && a.dtype.code == b.dtype.code && a.dtype.bits == b.dtype.bits &&
         SpaceName(one, a) == SpaceName(other, b);
}

std::string DescribeState(const Program& program, size_t state) {
  if (state >= program.kept_states.size()) return "nothing else";
  const Tensor& tensor = TensorOf(program, state);
  return "'" + PortOf(program, state).name + "': " + DescribeTensor(tensor.dtype, tensor.shape) +
         " in " + SpaceName(program, tensor) + " at byte " + std::to_string(tensor.place);
}

}  // namespace

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
  const Program& own = image_->program();
  if (&program == &own) return;
  const size_t count = std::max(own.kept_states.size(), program.kept_states.size());
  for (size_t i = 0; i < count; ++i) {
    if (IsSame(own, program, i)) continue;
    throw Error(ErrorKind::kExecution, "the session keeps " + DescribeState(own, i) +
                                           ", and the program " + DescribeState(program, i) +
                                           "; open a session of that program");
  }
}

void Session::CopyFrom(const Session& other) {
  for (const Space& space : image_->program().spaces) {
    if (space.session_bytes == 0) continue;
    image_->DeviceOf(space.device)
        ->CopyWithin({{Block(space), other.Block(space), space.session_bytes}});
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
