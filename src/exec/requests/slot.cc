#include "exec/requests/slot.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "support/error.h"

namespace heteroplace::exec {

Slot::Slot(const Image* image, int index)
    : input_versions(image->program().inputs.size()),
      is_input_given(image->program().inputs.size()),
      image_(image),
      index_(index),
      held_bytes_(image->program().spaces.size()),
      arenas_(image->program().spaces.size()),
      tensors_(image->program().tensors.size()),
      arguments_(image->program().queues.size()),
      events_(image->program().queues.size()),
      side_ends_(image->program().queues.size()),
      recorded_(image->program().queues.size()),
      timers_(image->program().queues.size()) {
  const std::vector<Queue>& queues = image->program().queues;
  has_timers = std::ranges::none_of(queues, [](const Queue& q) { return q.IsAsync(); });
  std::vector<char*> externals(tensors_.size());
  for (size_t s = 0; s < arenas_.size(); ++s) AllocateSpace(s, &externals);
  BindTensors(externals);
  BindArguments();
  for (size_t q = 0; q < queues.size(); ++q) {
    branch_arguments_.emplace_back(image->branch_steps(q), &tensors_);
  }
  predicted.resize(image->program().NumRoutedBranches());
}

void Slot::AllocateSpace(size_t space, std::vector<char*>* externals) {
  const Program& program = image_->program();
  const Space& info = program.spaces[space];
  Device* device = image_->DeviceOf(info.device);
  int64_t external_bytes = 0;
  bool has_external = false;
  for (const Tensor& tensor : program.tensors) {
    if (static_cast<size_t>(tensor.space) == space && tensor.storage == Storage::kExternal) {
      external_bytes += AlignUp(tensor.bytes);
      has_external = true;
    }
  }
  // A tensor of no elements has an address too: one byte at least where there is any tensor.
  const size_t first_block = buffers_.size();
  buffers_.emplace_back(device, std::max<int64_t>(info.arena_bytes, 1));
  arenas_[space] = buffers_.back().data();
  if (has_external) buffers_.emplace_back(device, std::max<int64_t>(external_bytes, 1));
  char* next = buffers_.back().data();
  for (size_t b = first_block; b < buffers_.size(); ++b) {
    held_bytes_[space] += buffers_[b].held_bytes();
    // Copies between pageable memory and a GPU are not asynchronous.
    if (IsHost(info.device) && image_->HasGpu()) {
      pinned_.push_back(std::make_unique<PinnedMemory>(&image_->abi(), image_->gpu(),
                                                       buffers_[b].data(), buffers_[b].bytes()));
      is_pinned_ = is_pinned_ && pinned_.back()->is_pinned();
    }
  }
  for (size_t t = 0; t < program.tensors.size(); ++t) {
    const Tensor& tensor = program.tensors[t];
    if (static_cast<size_t>(tensor.space) == space && tensor.storage == Storage::kExternal) {
      (*externals)[t] = next;
      next += AlignUp(tensor.bytes);
    }
  }
}

void Slot::BindTensors(const std::vector<char*>& externals) {
  const Program& program = image_->program();
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const Tensor& tensor = program.tensors[t];
    const size_t space = static_cast<size_t>(tensor.space);
    char* data = tensor.storage == Storage::kSession    ? nullptr  // see BindState
                 : tensor.storage == Storage::kArena    ? arenas_[space] + tensor.place
                 : tensor.storage == Storage::kConstant ? image_->constant(tensor.place)
                                                        : externals[t];
    tensors_[t] = {data,
                   program.spaces[space].device,
                   static_cast<int32_t>(tensor.shape.size()),
                   tensor.dtype,
                   const_cast<int64_t*>(tensor.shape.data()),
                   nullptr,
                   0};
  }
}

void Slot::BindArguments() {
  const Program& program = image_->program();
  for (size_t q = 0; q < program.queues.size(); ++q) {
    for (const Instruction& at : program.queues[q].instructions) {
      if (at.opcode != Opcode::kCall) continue;
      for (int32_t id : at.tensors) {
        TVMValue value;
        value.v_handle = tensor(id);
        arguments_[q].push_back(value);
      }
    }
  }
}

void Slot::Use(std::shared_ptr<Session> session) {
  if (image_->program().kept_states.empty()) return;
  if (session != nullptr) {
    session->Take(image_);
    session_ = std::move(session);
  } else if (own_state_ == nullptr) {
    own_state_ = std::make_unique<Session>(image_);
    has_own_state_.store(true);
  }
  BindState(session_ != nullptr ? *session_ : *own_state_);
}

int64_t Slot::HeldBytes(size_t space) const {
  return held_bytes_[space] + (has_own_state_.load() ? own_state_->held_bytes()[space] : 0);
}

void Slot::LeaveSession() {
  if (session_ == nullptr) return;
  session_->GiveBack();
  session_.reset();
}

void Slot::BindState(const Session& state) {
  const Program& program = image_->program();
  std::vector<char*> blocks;
  for (const Space& space : program.spaces) blocks.push_back(state.Block(space));
  bool is_new = false;
  for (size_t t = 0; t < program.tensors.size(); ++t) {
    const Tensor& tensor = program.tensors[t];
    if (tensor.storage != Storage::kSession) continue;
    char* data = blocks[static_cast<size_t>(tensor.space)] + tensor.place;
    is_new = is_new || tensors_[t].data != data;
    tensors_[t].data = data;
  }
  if (!is_new) return;
  // Launches that are issued together have the addresses of before.
  for (std::vector<std::unique_ptr<RecordedWork>>& recorded : recorded_) recorded.clear();
}

void Slot::KeepState() {
  const Program& program = image_->program();
  std::vector<std::vector<MovedBytes>> moved(program.spaces.size());
  std::vector<std::pair<int32_t, std::vector<char>>> values;
  for (const KeptState& state : program.kept_states) {
    if (state.is_in_place) continue;
    const int32_t input = program.inputs[state.input].tensor;
    const int32_t output = program.outputs[state.output].tensor;
    const Tensor& from = program.tensors[static_cast<size_t>(output)];
    const size_t space = static_cast<size_t>(from.space);
    const bool is_here = from.space == program.tensors[static_cast<size_t>(input)].space;
    if (is_here && from.storage != Storage::kSession) {
      moved[space].push_back({tensor(input)->data, tensor(output)->data, from.bytes});
      continue;
    }
    // What another state was is read before anything is written.
    values.emplace_back(input, static_cast<size_t>(from.bytes));
    Read(output, values.back().second.data());
  }
  for (size_t s = 0; s < moved.size(); ++s) {
    if (!moved[s].empty()) image_->DeviceOf(program.spaces[s].device)->CopyWithin(moved[s]);
  }
  for (const auto& [input, value] : values) Write(input, value.data());
}

void Slot::Write(int32_t id, const void* data) {
  DLTensor* to = tensor(id);
  const int64_t bytes = image_->program().tensors[static_cast<size_t>(id)].bytes;
  image_->DeviceOf(to->device)->Upload(to->data, data, bytes);
}

void Slot::Read(int32_t id, void* data) {
  DLTensor* from = tensor(id);
  const int64_t bytes = image_->program().tensors[static_cast<size_t>(id)].bytes;
  image_->DeviceOf(from->device)->Download(data, from->data, bytes);
}

void Slot::ForgetState() {
  const Program& program = image_->program();
  for (size_t i = 0; i < input_versions.size(); ++i) {
    if (!program.IsState(program.inputs[i])) continue;
    input_versions[i] = 0;
    is_input_given[i] = false;  // else the request, submitted again, would run on what is left
  }
}

void Slot::ForgetChanged() {
  for (const KeptState& state : image_->program().kept_states) {
    if (!state.is_in_place) continue;
    input_versions[state.input] = 0;
    is_input_given[state.input] = false;
  }
}

void Slot::Prepare(RequestKind next, std::shared_ptr<Measurement> measured) {
  kind = next;
  measurement = std::move(measured);
  mode.reset();
  chooser = nullptr;
  interruption = nullptr;  // of a request that nobody has finished: not this one's
}

void Slot::TouchArena(int32_t space) {
  const size_t place = static_cast<size_t>(space);
  std::memset(arenas_[place], 0, static_cast<size_t>(image_->program().spaces[place].arena_bytes));
}

void Slot::Fail(std::string_view text, FailureCause cause) noexcept {
  std::scoped_lock lock(mutex_);
  KeepFailure(text, cause);
}

/*! \brief With the lock. Raises the flag whatever becomes of the text: others wait for it. */
void Slot::KeepFailure(std::string_view text, FailureCause cause) {
  if (failure_.empty()) cause_ = cause;
  try {
    if (failure_.empty()) failure_ = text;
  } catch (const std::bad_alloc&) {
    failure_ = kMemoryIsShort;
  }
  has_failed_.store(true);
}

std::string Slot::failure() {
  std::scoped_lock lock(mutex_);
  return failure_;
}

FailureCause Slot::cause() {
  std::scoped_lock lock(mutex_);
  return cause_;
}

bool Slot::CancelRequest(int64_t number, std::string_view text) noexcept {
  std::scoped_lock lock(mutex_);
  if (number != this->number()) return false;
  KeepFailure(text, FailureCause::kCancelled);
  return true;
}

void Slot::Begin(int64_t number) {
  std::scoped_lock lock(mutex_);
  number_.store(number, std::memory_order_relaxed);
  failure_.clear();
  cause_ = FailureCause::kFault;
  has_failed_.store(false, std::memory_order_relaxed);
  has_outputs = false;
}

}  // namespace heteroplace::exec
