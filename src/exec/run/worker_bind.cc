// Making a worker: its instructions with all pointers resolved, and its streams and events.
#include <algorithm>

#include "exec/run/engine.h"
#include "exec/run/worker.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Threads of the largest team that a queue leads. */
uint32_t MaxThreads(const Queue& queue) {
  int32_t threads = 1;
  for (const Instruction& instruction : queue.instructions) {
    if (instruction.opcode == Opcode::kCall) threads = std::max(threads, instruction.threads);
  }
  return static_cast<uint32_t>(threads);
}

}  // namespace

std::string DescribeQueue(const Queue& queue, const std::string& what) {
  return "a step " + what + " on queue '" + queue.name + "' (" + DeviceName(queue.device) + ")";
}

Worker::Worker(Engine* engine, const Image* image, size_t queue)
    : engine_(engine),
      image_(image),
      queue_(image->program().queues[queue]),
      index_(queue),
      has_teams_(image->library().HasTeams()),
      instructions_(queue_.instructions.size()),
      workspace_(image->DeviceOf({kDLCPU, 0})),
      team_(&image->abi(), MaxThreads(queue_)) {}

void Worker::MakeStream() {
  if (!queue_.IsAsync()) return;
  if (queue_.kind == QueueKind::kFake) {
    fake_device_ = MakeFakeDevice(&image_->abi(), queue_.delay_ns);
    stream_ = fake_device_->MakeStream();
  } else {
    stream_ = image_->DeviceOf(queue_.device)->MakeStream();
    if (queue_.workspace_bytes != 0) stream_->ReserveWorkspace(queue_.workspace_bytes);
  }
  int32_t event = 0;
  for (size_t i = 0; i < instructions_.size(); ++i) {
    if (queue_.instructions[i].is_awaited) instructions_[i].event = event++;
  }
}

void Worker::Lead(std::vector<Worker*> members, std::vector<IssueStep> order) {
  members_ = std::move(members);
  order_ = std::move(order);
  for (Worker* member : members_) member->leader_ = this;
}

void Worker::Revive() {
  if (fake_device_ == nullptr) return;
  // The thread of the old stream is not there: to end it would take for ever.
  static_cast<void>(stream_.release());
  stream_ = fake_device_->MakeStream();
}

void Worker::MakeEvents(Slot* slot) {
  if (stream_ == nullptr) return;
  std::vector<std::unique_ptr<Event>>& events = slot->events(index_);
  for (const BoundInstruction& instruction : instructions_) {
    if (instruction.event >= 0) events.push_back(stream_->MakeEvent(/*is_timed=*/false));
  }
  events.push_back(stream_->MakeEvent(/*is_timed=*/false));
}

void Worker::Bind(const std::vector<std::unique_ptr<Worker>>& workers) {
  const Program& program = image_->program();
  size_t num_arguments = 0, most_arguments = 0;
  for (size_t i = 0; i < instructions_.size(); ++i) {
    const Instruction& from = queue_.instructions[i];
    BoundInstruction& to = instructions_[i];
    to.opcode = from.opcode;
    to.is_awaited = from.is_awaited;
    to.role = {static_cast<uint32_t>(from.threads), static_cast<uint32_t>(from.rank)};
    for (const Wait& wait : from.waits) {
      Worker& other = *workers[static_cast<size_t>(wait.queue)];
      const BoundInstruction& awaited = other.instructions_[static_cast<size_t>(wait.count - 1)];
      to.waits.push_back({&other.progress_, wait.count,
                          static_cast<int64_t>(other.instructions_.size()), wait.queue,
                          awaited.event});
    }
    if (from.opcode == Opcode::kCall) {
      to.kernel = image_->kernels()[static_cast<size_t>(from.kernel)];
      to.first_argument = num_arguments;
      to.num_arguments = static_cast<int>(from.tensors.size());
      num_arguments += from.tensors.size();
      most_arguments = std::max(most_arguments, from.tensors.size());
    } else if (from.opcode == Opcode::kJoin) {
      Worker& leader = *workers[static_cast<size_t>(from.leader_queue)];
      to.team = &leader.team_;
      to.leader = &leader.progress_;
      to.leader_count = static_cast<int64_t>(from.leader_index) + 1;
      to.leader_length = static_cast<int64_t>(leader.instructions_.size());
    } else {
      to.src = from.tensors[0];
      to.dst = from.tensors[1];
      to.bytes = program.tensors[static_cast<size_t>(to.src)].bytes;
    }
  }
  type_codes_.assign(most_arguments, kTVMDLTensorHandle);
}

/*! \brief The first worker on a core of each space touches its arena. */
void Worker::TouchArena() {
  if (queue_.kind != QueueKind::kCpu) return;
  for (size_t earlier = 0; earlier < index_; ++earlier) {
    const Queue& other = image_->program().queues[earlier];
    if (other.kind == QueueKind::kCpu && other.space == queue_.space) return;
  }
  slot_->TouchArena(queue_.space);
}

std::string Worker::Where(const std::string& what) const {
  const size_t position = position_.load(std::memory_order_relaxed);
  if (position >= queue_.instructions.size()) return DescribeQueue(queue_, what);
  const Instruction& at = queue_.instructions[position];
  std::string where = "step " + std::to_string(at.step) + " " + what + " on queue '" + queue_.name +
                      "' (" + DeviceName(queue_.device) + ")";
  if (at.opcode == Opcode::kCall) {
    where += " in kernel '" + image_->program().kernels[static_cast<size_t>(at.kernel)] + "'";
  }
  return where;
}

}  // namespace heteroplace::exec
