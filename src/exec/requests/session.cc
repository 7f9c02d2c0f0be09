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

const Space& SpaceOf(const Program& program, size_t state) {
  return program.spaces[static_cast<size_t>(TensorOf(program, state).space)];
}

/*! \brief Whether two programs keep the same as their state of this number. */
bool IsSame(const Program& one, const Program& other, size_t state) {
  if (state >= std::min(one.kept_states.size(), other.kept_states.size())) return false;
  const Tensor& a = TensorOf(one, state);
  const Tensor& b = TensorOf(other, state);
  return PortOf(one, state).name == PortOf(other, state).name && a.shape == b.shape &&
         a.dtype.code == b.dtype.code && a.dtype.bits == b.dtype.bits;
}

/*! \brief Whether two programs, which keep the same, keep it at the same places. */
bool IsAtSamePlaces(const Program& one, const Program& other) {
  for (size_t i = 0; i < one.kept_states.size(); ++i) {
    const Space& a = SpaceOf(one, i);
    const Space& b = SpaceOf(other, i);
    if (TensorOf(one, i).place != TensorOf(other, i).place || a.name != b.name ||
        a.session_bytes != b.session_bytes) {
      return false;
    }
  }
  return true;
}

std::string DescribeState(const Program& program, size_t state) {
  if (state >= program.kept_states.size()) return "nothing else";
  const Tensor& tensor = TensorOf(program, state);
  return "'" + PortOf(program, state).name + "': " + DescribeTensor(tensor.dtype, tensor.shape);
}

void CheckSame(const Program& own, const Program& program) {
  const size_t count = std::max(own.kept_states.size(), program.kept_states.size());
  for (size_t i = 0; i < count; ++i) {
    if (IsSame(own, program, i)) continue;
    throw Error(ErrorKind::kExecution, "the session keeps " + DescribeState(own, i) +
                                           ", and the program " + DescribeState(program, i) +
                                           "; open a session of that program");
  }
}

}  // namespace

/*! \brief Blocks for the state as one program keeps it. Keeps the program's devices alive. */
class Session::Layout {
 public:
  explicit Layout(const Image* image)
      : image_(image->shared_from_this()),
        blocks_(program().spaces.size()),
        held_bytes_(program().spaces.size()) {
    for (size_t s = 0; s < blocks_.size(); ++s) {
      const Space& space = program().spaces[s];
      if (space.session_bytes == 0) continue;
      blocks_[s] = std::make_unique<DeviceBuffer>(DeviceOf(space), space.session_bytes);
      held_bytes_[s] = blocks_[s]->held_bytes();
      num_bytes_ += space.session_bytes;
      if (!IsHost(space.device)) {
        ClearSpace(s);  // the system's new pages are zeros, a GPU's are not
      } else if (image->HasGpu()) {
        pinned_.push_back(std::make_unique<PinnedMemory>(&image->abi(), image->gpu(),
                                                         blocks_[s]->data(), blocks_[s]->bytes()));
      }
    }
  }

  const Program& program() const { return image_->program(); }
  const std::vector<int64_t>& held_bytes() const { return held_bytes_; }
  int64_t num_bytes() const { return num_bytes_; }

  char* Block(const Space& space) const {
    const std::vector<Space>& spaces = program().spaces;
    const auto own = std::ranges::find(spaces, space.name, &Space::name);
    const size_t place = static_cast<size_t>(own - spaces.begin());
    return own == spaces.end() || blocks_[place] == nullptr ? nullptr : blocks_[place]->data();
  }

  void Clear() {
    for (size_t s = 0; s < blocks_.size(); ++s) {
      if (blocks_[s] != nullptr) ClearSpace(s);
    }
  }

  void Write(size_t state, const void* data) {
    DeviceOf(SpaceOf(program(), state))->Upload(Data(state), data, Bytes(state));
  }

  void Read(size_t state, void* data) const {
    DeviceOf(SpaceOf(program(), state))->Download(data, Data(state), Bytes(state));
  }

  /*! \brief Takes the values of another one, which lies elsewhere. */
  void CopyFrom(const Layout& other) {
    for (size_t i = 0; i < program().kept_states.size(); ++i) CopyState(other, i);
  }

 private:
  void CopyState(const Layout& other, size_t state) {
    const Space& to = SpaceOf(program(), state);
    const Space& from = SpaceOf(other.program(), state);
    if (IsHost(from.device)) {
      Write(state, other.Data(state));
    } else if (IsHost(to.device)) {
      other.Read(state, Data(state));
    } else if (to.device.device_type == from.device.device_type &&
               to.device.device_id == from.device.device_id) {
      DeviceOf(to)->CopyWithin({{Data(state), other.Data(state), Bytes(state)}});
    } else {
      std::vector<char> bytes(static_cast<size_t>(Bytes(state)));
      other.Read(state, bytes.data());
      Write(state, bytes.data());
    }
  }

  void ClearSpace(size_t place) {
    const Space& space = program().spaces[place];
    const size_t size = static_cast<size_t>(space.session_bytes);
    if (IsHost(space.device)) {
      std::memset(blocks_[place]->data(), 0, size);
    } else {
      const std::vector<char> zeros(size);
      DeviceOf(space)->Upload(blocks_[place]->data(), zeros.data(), space.session_bytes);
    }
  }

  Device* DeviceOf(const Space& space) const { return image_->DeviceOf(space.device); }
  int64_t Bytes(size_t state) const { return TensorOf(program(), state).bytes; }
  char* Data(size_t state) const {
    const Tensor& tensor = TensorOf(program(), state);
    return blocks_[static_cast<size_t>(tensor.space)]->data() + tensor.place;
  }

  std::shared_ptr<const Image> image_;
  std::vector<std::unique_ptr<DeviceBuffer>> blocks_;  // [num_spaces]; null: it has no state
  std::vector<std::unique_ptr<PinnedMemory>> pinned_;
  std::vector<int64_t> held_bytes_;
  int64_t num_bytes_ = 0;
};

Session::Session(const Image* image) { current_ = LayoutOf(image); }
Session::~Session() = default;

/*! \brief The layout of a program; made where it is new. */
size_t Session::LayoutOf(const Image* image) {
  for (const auto& [known, place] : known_) {
    if (known.get() == image) return place;
  }
  if (!layouts_.empty()) CheckSame(layouts_.front()->program(), image->program());
  const auto same = std::ranges::find_if(layouts_, [&](const std::unique_ptr<Layout>& layout) {
    return IsAtSamePlaces(layout->program(), image->program());
  });
  const size_t place = static_cast<size_t>(same - layouts_.begin());
  if (same == layouts_.end()) {
    layouts_.push_back(std::make_unique<Layout>(image));
    num_bytes_ += layouts_.back()->num_bytes();
  }
  known_.emplace_back(image->shared_from_this(), place);
  return place;
}

void Session::Take(const Image* image) {
  if (is_taken_.exchange(true)) {
    throw Error(ErrorKind::kExecution,
                "the session is in use by another call; wait for its end, or fork the session");
  }
  try {
    Enter(image);
  } catch (...) {
    GiveBack();
    throw;
  }
}

void Session::Enter(const Image* image) {
  const size_t next = LayoutOf(image);
  if (next == current_) return;
  layouts_[next]->CopyFrom(*layouts_[current_]);
  current_ = next;
}

char* Session::Block(const Space& space) const { return layouts_[current_]->Block(space); }
const std::vector<int64_t>& Session::held_bytes() const { return layouts_.front()->held_bytes(); }
void Session::Clear() { layouts_[current_]->Clear(); }

void Session::CopyFrom(const Session& other) {
  layouts_[current_]->CopyFrom(*other.layouts_[other.current_]);
}

void Session::Write(size_t state, const void* data) { layouts_[current_]->Write(state, data); }
void Session::Read(size_t state, void* data) const { layouts_[current_]->Read(state, data); }

}  // namespace heteroplace::exec
