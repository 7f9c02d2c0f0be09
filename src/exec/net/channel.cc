#include "exec/net/channel.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "exec/engine/engine.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Whether a request's messages are sent; in others the workers are busy alone. */
bool HasMessages(const Slot& slot) {
  return slot.kind == RequestKind::kRun || slot.kind == RequestKind::kCpuTimed;
}

/*! \brief Who wrote the bytes of a region last, as ranges that do not overlap. */
class LastWriters {
 public:
  /*! \brief Makes `number` the writer of a range; returns the highest number in it before, or 0. */
  size_t Write(int64_t begin, int64_t end, size_t number) {
    size_t highest = 0;
    auto at = ranges_.lower_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second.end > begin) --at;
    while (at != ranges_.end() && at->first < end) {
      const auto [first, old] = *at;
      highest = std::max(highest, old.number);
      at = ranges_.erase(at);
      if (first < begin) ranges_[first] = {begin, old.number};
      if (old.end > end) ranges_[end] = old;
    }
    ranges_[begin] = {end, number};
    return highest;
  }

 private:
  struct Range {
    int64_t end;
    size_t number;
  };

  std::map<int64_t, Range> ranges_;  // by their first byte
};

std::vector<size_t> CountBefore(const Program& program, const Queue& queue) {
  std::vector<size_t> counts(queue.instructions.size());
  if (queue.kind == QueueKind::kSend) return counts;        // which only reads
  std::map<std::pair<bool, int32_t>, LastWriters> regions;  // arenas, and tensors of their own
  for (size_t i = 0; i < counts.size(); ++i) {
    const int32_t id = queue.instructions[i].tensors[0];
    const Tensor& tensor = program.tensors[static_cast<size_t>(id)];
    if (tensor.bytes == 0) continue;
    const bool is_arena = tensor.storage == Storage::kArena;
    LastWriters& region = regions[{is_arena, is_arena ? tensor.space : id}];
    counts[i] = region.Write(tensor.place, tensor.place + tensor.bytes, i + 1);
  }
  return counts;
}

}  // namespace

Channel::Channel(Engine* engine, const Image* image, Worker* worker)
    : engine_(engine),
      image_(image),
      worker_(worker),
      queue_(worker->queue()),
      length_(queue_.instructions.size()),
      num_before_(CountBefore(image->program(), queue_)) {}

void Channel::MakeMessages(Slot* slot) {
  const auto place = static_cast<size_t>(slot->index());
  if (messages_.size() <= place) messages_.resize(place + 1);
  std::vector<std::unique_ptr<Message>> made;
  for (const Instruction& at : queue_.instructions) {
    void* data = slot->tensor(at.tensors[0])->data;
    const int64_t bytes = image_->program().tensors[static_cast<size_t>(at.tensors[0])].bytes;
    Transport& transport = *image_->transport();
    made.push_back(is_receiving()
                       ? transport.MakeReceive(Plane::kProgram, queue_.peer, at.tag, data, bytes)
                       : transport.MakeSend(Plane::kProgram, queue_.peer, at.tag, data, bytes));
  }
  messages_[place] = std::move(made);
}

bool Channel::Move() {
  const bool has_started = StartSome();
  const bool has_ended = EndSome();
  worker_->SetUnderWay(ended_.request < next_.request || ended_.index < next_.index);
  return has_started || has_ended;
}

bool Channel::StartSome() {
  bool has_started = false;
  while (next_.request < engine_->num_submitted()) {
    Slot* slot = engine_->SlotOf(next_.request);
    if (HasMessages(*slot)) {
      BeginTrace(slot);
      for (; next_.index < length_; ++next_.index, has_started = true) {
        if (!MayStart(slot, next_.index)) return has_started;
        Start(slot);
      }
    }
    next_ = {next_.request + 1, 0};
  }
  return has_started;
}

/*! \brief Whether all waits are over: the bytes may be read, or written. */
bool Channel::MayStart(Slot* slot, size_t index) {
  const size_t num_ended = ended_.request == next_.request ? ended_.index : 0;
  if (num_ended < num_before_[index]) return false;
  for (const BoundWait& wait : worker_->instructions()[index].waits) {
    if (HasReached(wait, slot)) continue;
    ThrowIfFailed(slot);
    return false;
  }
  // A queue that gives a request up raises its counter too, and the failure before.
  ThrowIfFailed(slot);
  return true;
}

bool Channel::HasReached(const BoundWait& wait, Slot* slot) {
  const int64_t target = next_.request * wait.length + wait.count;
  if (wait.progress->done.load() < target) return false;
  // The counter of an asynchronous queue says only that the work was issued.
  if (wait.has_word) return wait.progress->HasReached(target);
  if (wait.event < 0) return true;
  const auto other = static_cast<size_t>(wait.queue);
  try {
    return slot->events(other)[static_cast<size_t>(wait.event)]->IsReached();
  } catch (const Error& error) {
    const Program& program = image_->program();
    throw RequestError(program.DescribeHost() + ": a step failed on queue '" +
                           program.queues[other].name + "': " + error.what(),
                       FailureCause::kFault);
  }
}

void Channel::Start(Slot* slot) {
  message(slot, next_.index).Start();
  if (slot->trace == nullptr || slot->kind != RequestKind::kRun) return;
  slot->trace->spans(worker_->index(), slot->trace_place)[next_.index].start = slot->trace->Now();
}

/*! \brief Ends what is complete, in the order of the starts. */
bool Channel::EndSome() {
  bool has_ended = false;
  // A request is over here only after `next_` has gone on: that it has come is known by then.
  while (ended_.request < next_.request || ended_.index < next_.index) {
    Slot* slot = engine_->SlotOf(ended_.request);
    const size_t end = ended_.request < next_.request ? length_ : next_.index;
    if (!HasMessages(*slot)) ended_.index = length_;
    for (; ended_.index < end; ++ended_.index, has_ended = true) {
      if (!message(slot, ended_.index).Test()) {
        ThrowIfFailed(slot);
        return has_ended;
      }
      End(slot);
    }
    if (ended_.request == next_.request) return has_ended;
    EndPart(slot);
    has_ended = true;
  }
  return has_ended;
}

/*! \brief A message is complete: those who wait for it go on. */
void Channel::End(Slot* slot) {
  const size_t index = ended_.index;
  if (slot->trace != nullptr && slot->kind == RequestKind::kRun) {
    RecordedPart* part = slot->trace->part(worker_->index(), slot->trace_place);
    RecordedSpan* spans = slot->trace->spans(worker_->index(), slot->trace_place);
    // One after the other, however many are under way.
    part->begin = index == 0 ? std::max(part->begin, last_end_) : part->begin;
    spans[index] = {std::max(spans[index].start, last_end_), slot->trace->Now()};
    last_end_ = spans[index].finish;
    part->num_done = static_cast<int64_t>(index) + 1;
  }
  worker_->TellMessage(ended_.request, index);
}

void Channel::EndPart(Slot* slot) {
  ended_ = {ended_.request + 1, 0};
  worker_->EndMessages(slot);
}

void Channel::BeginTrace(Slot* slot) {
  if (num_traced_ > next_.request) return;
  num_traced_ = next_.request + 1;
  if (slot->trace == nullptr || slot->kind != RequestKind::kRun) return;
  if (slot->trace_number == 0) last_end_ = 0;  // another recording has a clock of its own
  *slot->trace->part(worker_->index(), slot->trace_place) = {slot->trace->Now(), 0, 0, 0};
}

void Channel::ThrowIfFailed(Slot* slot) const {
  if (!slot->HasFailed()) return;
  throw RequestError(image_->program().DescribeHost() + ": " + slot->failure(), slot->cause());
}

void Channel::GiveUp(std::string_view reason) noexcept {
  while (ended_.request < engine_->num_submitted()) {
    Slot* slot = engine_->SlotOf(ended_.request);
    engine_->Fail(slot, reason);
    const bool is_traced = slot->trace != nullptr && slot->kind == RequestKind::kRun;
    if (is_traced && num_traced_ > ended_.request) {
      slot->trace->part(worker_->index(), slot->trace_place)->given_up =
          std::max(slot->trace->Now(), last_end_);
    }
    EndPart(slot);
  }
  next_ = ended_;
}

}  // namespace heteroplace::exec
