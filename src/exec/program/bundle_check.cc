// Messages of all programs together: each has two ends that fit, and they all end.
#include <map>
#include <string>
#include <utility>

#include "exec/devices/device.h"
#include "exec/program/bundle.h"
#include "exec/program/issue_order.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

[[noreturn]] void FailBundle(const std::string& what) {
  throw Error(ErrorKind::kArtifact, "the programs of several hosts: " + what);
}

/*! \brief One end of a message. */
struct MessageSide {
  const Program* program = nullptr;
  const Queue* queue = nullptr;
  const Instruction* at = nullptr;
};

/*! \brief A message, by its tag. */
struct MessagePair {
  MessageSide send;
  MessageSide receive;
};

/*! \brief "line 12 (host 'a')". */
std::string DescribeSide(const MessageSide& end) {
  return "line " + std::to_string(end.at->line) + " (host '" + end.program->host + "')";
}

void CheckRanks(const std::vector<Program>& programs) {
  std::map<std::string, int32_t> ranks;
  for (size_t r = 0; r < programs.size(); ++r) {
    const Program& program = programs[r];
    if (static_cast<size_t>(program.num_hosts) != programs.size()) {
      FailBundle("that of " + program.DescribeHost() + " is one of " +
                 std::to_string(program.num_hosts) + ", and there are " +
                 std::to_string(programs.size()));
    }
    if (static_cast<size_t>(program.rank) != r) {
      FailBundle("expected that of rank " + std::to_string(r) + ", got that of " +
                 program.DescribeHost() + "; they are in the order of ranks");
    }
    const auto [other, is_new] = ranks.emplace(program.host, program.rank);
    if (!is_new) {
      FailBundle("ranks " + std::to_string(other->second) + " and " + std::to_string(r) +
                 " are both of host '" + program.host + "'");
    }
  }
}

/*! \brief Both ends of each message, each there once. [num_messages] */
std::vector<MessagePair> FindEnds(const std::vector<Program>& programs) {
  size_t num_sends = 0;
  const auto for_each = [&](const auto& visit) {
    for (const Program& program : programs) {
      for (const Queue& queue : program.queues) {
        if (!queue.HasMessages()) continue;
        for (const Instruction& at : queue.instructions) visit(MessageSide{&program, &queue, &at});
      }
    }
  };
  for_each([&](const MessageSide& end) { num_sends += end.at->opcode == Opcode::kSend ? 1 : 0; });
  std::vector<MessagePair> messages(num_sends);
  for_each([&](const MessageSide& end) {
    const bool is_send = end.at->opcode == Opcode::kSend;
    const std::string name = "message " + std::to_string(end.at->tag);
    if (static_cast<size_t>(end.at->tag) >= num_sends) {
      FailBundle(DescribeSide(end) + (is_send ? " sends " : " receives ") + name +
                 ", and there are " + std::to_string(num_sends) + " sends; tags are dense from 0");
    }
    MessagePair& ends = messages[static_cast<size_t>(end.at->tag)];
    MessageSide& place = is_send ? ends.send : ends.receive;
    if (place.at != nullptr) {
      FailBundle(name + " is " + (is_send ? "sent" : "received") +
                 " twice: " + DescribeSide(place) + ", " + DescribeSide(end));
    }
    place = end;
  });
  return messages;
}

/*! \brief The two ends of a message are on hosts that mean each other, and of one form. */
void CheckEnds(const MessagePair& ends) {
  const auto& [send, receive] = ends;
  const std::string name = "message " + std::to_string(send.at->tag);
  if (receive.at == nullptr) {
    FailBundle(name + ", which " + DescribeSide(send) + " sends, is received by nobody");
  }
  if (send.queue->peer != receive.program->rank || receive.queue->peer != send.program->rank) {
    FailBundle(name + " is sent to rank " + std::to_string(send.queue->peer) + " by " +
               DescribeSide(send) + ", and received from rank " +
               std::to_string(receive.queue->peer) + " by " + DescribeSide(receive));
  }
  const auto tensor_of = [](const MessageSide& end) -> const Tensor& {
    return end.program->tensors[static_cast<size_t>(end.at->tensors[0])];
  };
  const Tensor &from = tensor_of(send), &to = tensor_of(receive);
  const bool is_same_type = from.dtype.code == to.dtype.code && from.dtype.bits == to.dtype.bits;
  if (!is_same_type || from.shape != to.shape) {
    FailBundle(name + " is sent as " + DescribeTensor(from.dtype, from.shape) + " by " +
               DescribeSide(send) + ", and received as " + DescribeTensor(to.dtype, to.shape) +
               " by " + DescribeSide(receive));
  }
}

/*! \brief Receives of a pair of ranks are in the order of their sends. */
void CheckOrder(const Program& program, const std::vector<MessagePair>& messages) {
  for (const Queue& queue : program.queues) {
    if (queue.kind != QueueKind::kReceive || queue.instructions.empty()) continue;
    const auto send_of = [&](size_t i) -> const MessageSide& {
      return messages[static_cast<size_t>(queue.instructions[i].tag)].send;
    };
    const std::vector<Instruction>& sends = send_of(0).queue->instructions;
    for (size_t i = 0; i < queue.instructions.size(); ++i) {
      // As many on both sides: each message of one is in the other.
      if (sends[i].tag == queue.instructions[i].tag) continue;
      FailBundle("from rank " + std::to_string(queue.peer) + " to rank " +
                 std::to_string(program.rank) + ", message " + std::to_string(sends[i].tag) +
                 " is sent (line " + std::to_string(sends[i].line) + ") where message " +
                 std::to_string(queue.instructions[i].tag) + " is received (line " +
                 std::to_string(queue.instructions[i].line) + "); both ends need one order");
    }
  }
}

/*!
 * \brief Does all programs at once, as far as waits and messages allow: all of them, or there is a
 * circle.
 *
 * A message is done when both ends have come to it: no send counts on being buffered, and no end on
 * coming to the next one earlier. A GPU's queues are one, in the order in which its thread issues
 * them (`IssueOrder`), as it waits for messages itself. Whatever really happens asks for less, so
 * it comes to its end too. An instruction is looked at again only when what it waited for is done.
 */
class Rehearsal {
 public:
  Rehearsal(const std::vector<Program>& programs, const std::vector<MessagePair>& messages)
      : programs_(programs), messages_(messages), arrived_(messages.size(), -1) {
    for (size_t r = 0; r < programs.size(); ++r) {
      first_queue_.push_back(done_.size());
      done_.resize(done_.size() + programs[r].queues.size());
      for (const Queue& queue : programs[r].queues) {
        followers_.emplace_back(queue.instructions.size() + 1);
      }
      AddSequences(r);
    }
  }

  void Run() {
    for (size_t s = 0; s < sequences_.size(); ++s) ready_.push_back(s);
    while (!ready_.empty()) {
      const size_t s = ready_.back();
      ready_.pop_back();
      while (MayFinish(s)) Finish(s);
    }
    std::string stuck;
    for (const Sequence& sequence : sequences_) {
      if (sequence.next == sequence.order.size()) continue;
      stuck += (stuck.empty() ? "" : "; ") + DescribeStuck(sequence);
    }
    if (!stuck.empty()) FailBundle("they would deadlock: " + stuck);
  }

 private:
  /*! \brief What one thread does, or one direction between two ranks. */
  struct Sequence {
    size_t program;
    std::vector<InstructionId> order;
    size_t next = 0;
  };

  void AddSequences(size_t rank) {
    const Program& program = programs_[rank];
    std::map<int32_t, size_t> of_gpu;
    for (size_t q = 0; q < program.queues.size(); ++q) {
      const Queue& queue = program.queues[q];
      if (queue.device.device_type == kDLCUDA) {
        of_gpu.emplace(queue.device.device_id, 0);
        continue;
      }
      Sequence& sequence = sequences_.emplace_back(Sequence{rank, {}});
      for (size_t i = 0; i < queue.instructions.size(); ++i) {
        sequence.order.push_back({static_cast<int32_t>(q), static_cast<int32_t>(i)});
      }
    }
    if (of_gpu.empty()) return;
    for (auto& [gpu, place] : of_gpu) {
      place = sequences_.size();
      sequences_.push_back({rank, {}});
    }
    for (const InstructionId& id : IssueOrder(program)) {
      const Queue& queue = program.queues[static_cast<size_t>(id.queue)];
      if (queue.device.device_type != kDLCUDA) continue;
      sequences_[of_gpu.at(queue.device.device_id)].order.push_back(id);
    }
  }

  const Instruction& Next(const Sequence& sequence) const {
    const InstructionId id = sequence.order[sequence.next];
    const Queue& queue = programs_[sequence.program].queues[static_cast<size_t>(id.queue)];
    return queue.instructions[static_cast<size_t>(id.index)];
  }

  size_t PlaceOf(const Sequence& sequence, int32_t queue) const {
    return first_queue_[sequence.program] + static_cast<size_t>(queue);
  }

  /*! \brief The first wait of the next instruction that is not over; else of queue -1. */
  Wait FindWait(const Sequence& sequence) const {
    const Instruction& at = Next(sequence);
    const auto is_left = [&](const Wait& wait) {
      return done_[PlaceOf(sequence, wait.queue)] < static_cast<size_t>(wait.count);
    };
    for (const Wait& wait : at.waits) {
      if (is_left(wait)) return wait;
    }
    const Wait join{at.leader_queue, at.leader_index + 1};
    return at.opcode == Opcode::kJoin && is_left(join) ? join : Wait{-1, 0};
  }

  bool MayFinish(size_t s) {
    const Sequence& sequence = sequences_[s];
    if (sequence.next == sequence.order.size()) return false;
    const Wait wait = FindWait(sequence);
    if (wait.queue >= 0) {
      followers_[PlaceOf(sequence, wait.queue)][static_cast<size_t>(wait.count)].push_back(s);
      return false;
    }
    const Instruction& at = Next(sequence);
    if (at.opcode != Opcode::kSend && at.opcode != Opcode::kReceive) return true;
    int64_t& other = arrived_[static_cast<size_t>(at.tag)];
    if (other < 0) {
      other = static_cast<int64_t>(s);
      return false;
    }
    Finish(static_cast<size_t>(other));
    ready_.push_back(static_cast<size_t>(other));
    return true;
  }

  void Finish(size_t s) {
    Sequence& sequence = sequences_[s];
    const size_t place = PlaceOf(sequence, sequence.order[sequence.next++].queue);
    std::vector<size_t>& followers = followers_[place][++done_[place]];
    ready_.insert(ready_.end(), followers.begin(), followers.end());
    followers.clear();
  }

  std::string DescribeStuck(const Sequence& sequence) const {
    const Program& program = programs_[sequence.program];
    const Instruction& at = Next(sequence);
    const Wait wait = FindWait(sequence);
    const int32_t own = sequence.order[sequence.next].queue;
    std::string awaited;
    if (wait.queue >= 0) {
      awaited = "queue '" + program.queues[static_cast<size_t>(wait.queue)].name + "'";
    } else {
      const MessagePair& ends = messages_[static_cast<size_t>(at.tag)];
      awaited = DescribeSide(at.opcode == Opcode::kSend ? ends.receive : ends.send);
    }
    return "queue '" + program.queues[static_cast<size_t>(own)].name + "' of host '" +
           program.host + "' at line " + std::to_string(at.line) + " waits for " + awaited;
  }

  const std::vector<Program>& programs_;
  const std::vector<MessagePair>& messages_;
  std::vector<Sequence> sequences_;
  std::vector<size_t> ready_;        // sequences to look at
  std::vector<size_t> first_queue_;  // [num_programs] of all queues
  std::vector<size_t> done_;         // [num_queues]
  /*! \brief Sequences to look at again when a queue has come so far. [num_queues][instructions + 1]
   */
  std::vector<std::vector<std::vector<size_t>>> followers_;
  std::vector<int64_t> arrived_;  // [num_messages] the sequence that has come to its end; -1: none
};

}  // namespace

void CheckBundle(const std::vector<Program>& programs) {
  CheckRanks(programs);
  const std::vector<MessagePair> messages = FindEnds(programs);
  for (const MessagePair& ends : messages) CheckEnds(ends);
  for (const Program& program : programs) CheckOrder(program, messages);
  Rehearsal(programs, messages).Run();
}

}  // namespace heteroplace::exec
