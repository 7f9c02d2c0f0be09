// Making a worker: its instructions with all pointers resolved, and its streams and events.
#include <algorithm>

#include "exec/engine/engine.h"
#include "exec/workers/worker.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Threads of the largest team that a queue leads. */
uint32_t MaxThreads(const Queue& queue) {
  int32_t threads = 1;
  for (const Instruction& instruction : queue.instructions) {
    if (instruction.IsCall()) threads = std::max(threads, instruction.threads);
  }
  return static_cast<uint32_t>(threads);
}

/*! \brief The calls of a group by branch, which stand next to each other. */
std::vector<Lane> LanesOf(const Queue& queue, size_t group) {
  std::vector<Lane> lanes;
  const size_t end = group + 1 + static_cast<size_t>(queue.instructions[group].num_grouped);
  for (size_t i = group + 1; i < end; ++i) {
    const int32_t branch = queue.instructions[i].work->branch;
    const bool is_new =
        lanes.empty() || queue.instructions[lanes.back().first].work->branch != branch;
    if (is_new) lanes.push_back({i, i});
    lanes.back().end = i + 1;
  }
  return lanes;
}

/*! \brief Whether a tensor is memory of the host that requests change. */
bool IsOfHost(const Program& program, int32_t id) {
  const Tensor& tensor = program.tensors[static_cast<size_t>(id)];
  return tensor.storage != Storage::kConstant &&
         IsHost(program.spaces[static_cast<size_t>(tensor.space)].device);
}

}  // namespace

Worker::Worker(Engine* engine, const Image* image, ProgressTable* progress, size_t queue,
               size_t context)
    : engine_(engine),
      image_(image),
      queue_(image->program().queues[queue]),
      index_(queue),
      context_(static_cast<int64_t>(context)),
      num_contexts_(static_cast<int64_t>(engine->num_contexts())),
      is_serial_(context >= engine->num_contexts()),
      has_teams_(image->library().HasTeams()),
      instructions_(queue_.instructions.size()),
      workspace_(image->DeviceOf({kDLCPU, 0})),
      table_(progress),
      progress_(progress->of(queue, context)),
      team_(&image->abi(), MaxThreads(queue_)) {
  for (size_t i = 0; i < queue_.instructions.size(); ++i) {
    if (queue_.instructions[i].opcode != Opcode::kGroup) continue;
    groups_.push_back(std::make_unique<BoundGroup>(this, groups_.size(), LanesOf(queue_, i)));
  }
}

/*! \brief The group of an instruction; null: it is none. */
BoundGroup* Worker::GroupAt(size_t index) const {
  for (const std::unique_ptr<BoundGroup>& group : groups_) {
    if (group->lanes[0].first == index + 1) return group.get();
  }
  return nullptr;
}

std::unique_ptr<Stream> Worker::MakeOneStream() {
  if (fake_device_ != nullptr) return fake_device_->MakeStream();
  std::unique_ptr<Stream> stream = image_->DeviceOf(queue_.device)->MakeStream();
  if (queue_.workspace_bytes != 0) stream->ReserveWorkspace(queue_.workspace_bytes);
  return stream;
}

void Worker::MakeStream() {
  if (!queue_.IsAsync()) return;
  if (queue_.kind == QueueKind::kFake) {
    fake_device_ = MakeFakeDevice(&image_->abi(), queue_.delay_ns);
  }
  stream_ = MakeOneStream();
  while (!groups_.empty() && sides_.size() < static_cast<size_t>(kSideStreams))
    sides_.push_back(MakeOneStream());
  if (!sides_.empty()) {
    fork_ = stream_->MakeEvent(/*is_timed=*/false);
    first_side_ = image_->program().FirstSides()[index_];
  }
  if (table_->is_pinned()) word_ = stream_->WordAddress(&progress_.reached);
  int32_t event = 0;
  for (size_t i = 0; i < instructions_.size(); ++i) {
    const Instruction& from = queue_.instructions[i];
    const bool has_event = from.is_awaited_by_stream || (from.is_awaited_by_host && word_ == 0);
    if (has_event) instructions_[i].event = event++;
    instructions_[i].writes_word = from.is_awaited_by_host && word_ != 0;
  }
}

/*! \brief Finds the rows of kernel calls with no wait between them, and none for one but the last.
 */
void Worker::MarkRecorded() {
  // A graph takes about as long to launch as two kernels.
  constexpr size_t kMinLaunches = 3;
  if (queue_.kind != QueueKind::kCuda || !image_->uses_cuda_graphs()) return;
  const std::vector<Instruction>& all = queue_.instructions;
  for (size_t first = 0; first < all.size();) {
    size_t end = first;
    while (end < all.size() && all[end].opcode == Opcode::kCall &&
           (end == first || (all[end].waits.empty() && !all[end - 1].is_awaited))) {
      ++end;
    }
    if (end - first >= kMinLaunches) {
      instructions_[first].recorded = static_cast<int32_t>(recorded_.size());
      recorded_.emplace_back(first, end - 1);
      for (size_t i = first + 1; i < end; ++i) instructions_[i].is_in_recorded = true;
    }
    first = std::max(end, first + 1);
  }
}

void Worker::Lead(std::vector<Worker*> members, std::vector<IssueStep> order) {
  members_ = std::move(members);
  order_ = std::move(order);
  for (Worker* member : members_) member->leader_ = this;
  active_.reserve(members_.size());  // nothing is asked for in a run
}

void Worker::Revive() {
  // The thread of before has its turn for a moment after the end of a request. Nobody gives it back
  // here, and a mutex that is held cannot be destroyed.
  static_cast<void>(turn_.release());
  turn_ = std::make_unique<std::mutex>();
  is_lent_.store(false);
  active_.clear();  // it counts a request as completed before it takes it out
  if (fake_device_ == nullptr) return;
  // The thread of the old stream is not there: to end it would take for ever.
  static_cast<void>(stream_.release());
  stream_ = MakeOneStream();
  for (std::unique_ptr<Stream>& side : sides_) {
    static_cast<void>(side.release());
    side = MakeOneStream();
  }
}

void Worker::MakeEvents(Slot* slot) {
  if (stream_ == nullptr) return;
  std::vector<std::unique_ptr<Event>>& events = slot->events(index_);
  for (const BoundInstruction& instruction : instructions_) {
    if (instruction.event >= 0) events.push_back(stream_->MakeEvent(/*is_timed=*/false));
  }
  events.push_back(stream_->MakeEvent(/*is_timed=*/false));
  std::vector<std::unique_ptr<Event>>& ends = slot->side_ends(index_);
  while (ends.size() < groups_.size() * sides_.size()) {
    ends.push_back(stream_->MakeEvent(/*is_timed=*/false));
  }
}

void Worker::Bind(std::span<const std::unique_ptr<Worker>> workers) {
  const Program& program = image_->program();
  size_t num_arguments = 0, most_arguments = 0;
  for (size_t i = 0; i < instructions_.size(); ++i) {
    const Instruction& from = queue_.instructions[i];
    BoundInstruction& to = instructions_[i];
    to.opcode = from.opcode;
    to.is_awaited = from.is_awaited;
    to.is_sent = from.is_awaited_by_message;
    to.has_joins = from.LeadsTeam() && from.threads > 1;
    to.is_grouped = from.is_grouped;
    to.waits_on_host = stream_ != nullptr && from.ReadsLoad();
    to.role = {static_cast<uint32_t>(from.threads), static_cast<uint32_t>(from.rank)};
    for (const Wait& wait : from.waits) {
      Worker& other = *workers[static_cast<size_t>(wait.queue)];
      const BoundInstruction& awaited = other.instructions_[static_cast<size_t>(wait.count - 1)];
      const bool is_host = stream_ == nullptr || to.waits_on_host;
      const bool has_word = is_host && awaited.writes_word;
      uint64_t counter = 0;
      if (!is_host && word_ != 0 && other.stream_ == nullptr && table_->may_streams_wait()) {
        // As far from this queue's word for the device as it is for the host.
        counter = word_ + (reinterpret_cast<uint64_t>(&other.progress_.done) -
                           reinterpret_cast<uint64_t>(&progress_.reached));
      }
      to.waits.push_back({&other.progress_, wait.count,
                          static_cast<int64_t>(other.instructions_.size()), wait.queue,
                          awaited.event, has_word, counter});
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
      to.group = leader.GroupAt(static_cast<size_t>(from.leader_index));
    } else if (from.opcode == Opcode::kGroup) {
      to.group = GroupAt(i);
    } else if (from.IsCopy()) {
      to.src = from.tensors[0];
      to.dst = from.tensors[1];
      to.bytes = program.tensors[static_cast<size_t>(to.src)].bytes;
      to.is_of_host = IsOfHost(program, from.tensors[0]) || IsOfHost(program, from.tensors[1]);
    }
    if (from.work != nullptr) {
      to.branch = static_cast<int32_t>(branches_.size());
      BindBranch(from, workers);
      for (const CapacityCall& call : from.work->calls) {
        most_arguments = std::max(most_arguments, call.operands.size());
      }
    }
  }
  type_codes_.assign(most_arguments, kTVMDLTensorHandle);
  copied_bytes_ = std::make_unique<std::atomic<int64_t>[]>(instructions_.size());
  MarkRecorded();
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

}  // namespace heteroplace::exec
