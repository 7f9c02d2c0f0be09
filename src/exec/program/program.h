// The program of an executor: what `lower/lower.py` writes and the artefact stores as text.
//
// Ids are positions in the owning vector. A program that ParseProgram returned is sound: every id
// and byte range is checked, and no order of execution of its queues can deadlock, as long as the
// messages of other hosts come; bundle.h says when they do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exec/devices/library_kernel.h"
#include "exec/devices/tvm_abi.h"
#include "exec/program/router.h"
#include "exec/program/wait.h"

namespace heteroplace::exec {

/*! \brief Version of the text form of the program of one host alone. */
inline constexpr int kProgramVersion = 1;

/*! \brief Version of the programs of several hosts, which exchange messages. */
inline constexpr int kBundleVersion = 2;

/*! \brief Version of programs with routers, of one host or of several. */
inline constexpr int kRouterVersion = 3;

/*! \brief Most hosts that have programs together. */
inline constexpr int64_t kMaxHosts = 65536;

/*!
 * \brief Every tensor that a kernel or a port names starts at a multiple of this many bytes, as
 * TVM's kernels assume; one that only copies touch may begin anywhere.
 */
inline constexpr int64_t kTensorAlignmentBytes = 64;

/*! \brief No size in a program is larger, so that sums of two do not overflow. */
inline constexpr int64_t kMaxBytes = int64_t{1} << 60;

/*! \brief Streams beside that of an asynchronous queue, for the branches of its groups. */
inline constexpr int32_t kSideStreams = 4;

/*! \brief Most branches of one group. */
inline constexpr int32_t kMaxLanes = 0x7fff;

/*! \brief One memory of the cluster; its arena holds the values of a run. */
struct Space {
  std::string name;
  DLDevice device;
  int64_t arena_bytes;
  /*! \brief What a session keeps in it: the end of the last tensor there. */
  int64_t session_bytes = 0;
};

/*! \brief Where the bytes of a tensor are. */
enum class Storage {
  kArena,     ///< in the space's arena; the bytes may be reused within one run
  kConstant,  ///< a weight
  kSession,   ///< in what a session keeps in the space from call to call
  kExternal   ///< bytes of its own, kept from run to run: inputs, and outputs that outlive a run
};

/*! \brief Weights: bytes of the artefact's blob, as they are in one space. */
struct Constant {
  int32_t space;
  int64_t blob_offset;
  int64_t bytes;
};

struct Tensor {
  int32_t space;
  Storage storage;
  /*! \brief Bytes from the start of the arena or of the session's block, the id of the constant, or
   * 0 for external. */
  int64_t place;
  DLDataType dtype;
  std::vector<int64_t> shape;  // [ndim]
  int64_t bytes;
};

/*! \brief A named input or output. */
struct Port {
  std::string name;
  int32_t tensor;
};

/*! \brief State of sessions: the value of an output is that of an input in the next call. */
struct KeptState {
  size_t input;   // among the inputs
  size_t output;  // among the outputs
  /*! \brief Whether both are one tensor, which calls change where it lies. */
  bool is_in_place = false;
};

enum class Opcode : uint8_t {
  kCall,
  kJoin,
  kCopy,
  kSend,
  kReceive,
  kBranchCall,
  kBranchCopy,
  kGroup  ///< does the guarded calls that follow it, branches side by side
};

struct Instruction {
  Opcode opcode;
  /*! \brief Whether another queue waits for this instruction, or joins it; and of which kind. */
  bool is_awaited = false;
  bool is_awaited_by_host = false;
  bool is_awaited_by_stream = false;
  /*! \brief Whether one that waits for it is a message: also by the host. */
  bool is_awaited_by_message = false;
  /*! \brief Step of the plan that this instruction carries out. */
  int64_t step;
  /*! \brief Call: the kernel; of a guarded one that of its largest capacity. */
  int32_t kernel = -1;
  /*! \brief Group: how many of the next instructions it does; and whether it is one of them. */
  int32_t num_grouped = 0;
  bool is_grouped = false;
  /*! \brief Size of the team that runs the kernel, or the group, also in its joins; 1 for one core.
   */
  int32_t threads = 1;
  /*!
   * \brief Position in the team, by queue, whoever leads: a core so does the same share of every
   * loop, and reads again what it wrote.
   */
  int32_t rank = 0;
  /*! \brief Call: arguments, of all capacities; copy: source, destination; send, receive: the one;
   * join: none. */
  std::vector<int32_t> tensors;
  /*! \brief Send, receive: the number of the message among those of all hosts. */
  int64_t tag = -1;
  /*! \brief Join: the queue and the instruction to which this core lends itself. */
  int32_t leader_queue = -1;
  int32_t leader_index = -1;
  std::vector<Wait> waits;
  /*! \brief Guarded call or copy: what it is of a branch; else null. */
  std::shared_ptr<const BranchWork> work;
  /*! \brief Line of the text, for messages. */
  int32_t line = 0;

  bool IsCall() const { return opcode == Opcode::kCall || opcode == Opcode::kBranchCall; }
  /*! \brief Whether it has a team. */
  bool LeadsTeam() const { return IsCall() || opcode == Opcode::kGroup; }
  bool IsCopy() const { return opcode == Opcode::kCopy || opcode == Opcode::kBranchCopy; }
  /*! \brief Whether the thread of its queue reads a load, and so has waited for it itself. */
  bool ReadsLoad() const {
    return opcode == Opcode::kGroup || (work != nullptr && work->when != When::kPredicted);
  }
};

enum class QueueKind { kCpu, kCuda, kCopy, kFake, kSend, kReceive };

/*! \brief One worker thread, or the messages to or from one rank, and its instructions in order. */
struct Queue {
  std::string name;
  QueueKind kind;
  DLDevice device;
  /*! \brief The memory that its kernels address, or -1 for a queue of copies. */
  int32_t space;
  /*! \brief The core to which the worker is pinned, or -1 for none. */
  int32_t core;
  /*! \brief Fake queues: what every instruction lasts at least. */
  int64_t delay_ns;
  /*! \brief Queues of messages: the rank to or from which they go; else -1. */
  int32_t peer = -1;
  /*! \brief Scratch memory that its kernels will need; 0: not known, it grows when they run. */
  int64_t workspace_bytes = 0;
  std::vector<Instruction> instructions;

  /*! \brief Whether an instruction is only issued by the worker, and finishes later by itself. */
  bool IsAsync() const {
    return kind == QueueKind::kFake || kind == QueueKind::kCuda ||
           (kind == QueueKind::kCopy && device.device_type == kDLCUDA);
  }
  /*! \brief Whether branches of its groups run on streams beside its own. */
  bool HasSideStreams() const {
    return IsAsync() && std::ranges::any_of(instructions, [](const auto& at) {
             return at.opcode == Opcode::kGroup;
           });
  }
  /*! \brief Whether its instructions are messages: it has no thread of its own. */
  bool HasMessages() const { return kind == QueueKind::kSend || kind == QueueKind::kReceive; }
};

/*! \brief "host 'a' (rank 0)". */
inline std::string DescribeHost(const std::string& host, int32_t rank) {
  return "host '" + host + "' (rank " + std::to_string(rank) + ")";
}

struct Program {
  /*! \brief Which of the hosts it is for, of how many, and that one's name. */
  int32_t rank = 0;
  int32_t num_hosts = 1;
  std::string host;
  std::vector<Space> spaces;
  std::vector<Queue> queues;
  std::vector<Constant> constants;
  std::vector<Tensor> tensors;
  std::vector<std::string> kernels;  // symbols
  /*! \brief Of kernels that NVIDIA's libraries compute; null: it has code. [num_kernels] */
  std::vector<std::shared_ptr<const LibraryKernel>> library_kernels;
  std::vector<Router> routers;
  std::vector<RouterPrediction> predictions;
  /*! \brief What the plan's steps are about, for people; may be shorter than the plan. */
  std::vector<std::string> step_names;
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  std::vector<KeptState> kept_states;
  /*! \brief Whether a session keeps it. [num_inputs] */
  std::vector<bool> is_kept_input;

  /*! \brief "host 'a' (rank 0)", for messages. */
  std::string DescribeHost() const { return exec::DescribeHost(host, rank); }

  /*! \brief What people call a kernel: its symbol, or what it multiplies. */
  std::string KernelName(int32_t kernel) const {
    const size_t place = static_cast<size_t>(kernel);
    return library_kernels[place] == nullptr ? kernels[place] : library_kernels[place]->Describe();
  }

  /*! \brief Whether a port is state, which runs replace in place: an input and an output of one
   * name are one tensor. */
  bool IsState(const Port& port) const;
  /*! \brief Whether any port is. */
  bool HasState() const;
  /*! \brief Whether it has no asynchronous queues and no messages. */
  bool RunsOnCoresAlone() const;
  /*! \brief The number of the first stream beside that of each queue, behind those of queues.
   * [num_queues] */
  std::vector<int32_t> FirstSides() const;
  /*! \brief Branches of all routers, those of one name once. */
  size_t NumRoutedBranches() const;
};

/*!
 * \brief Reads the text form of one program and checks it.
 * \param first_line number of the text's first line, for messages.
 * \throws Error kArtifact, which names the line, what was expected and what was found.
 */
Program ParseProgram(std::string_view text, int first_line = 1);

/*!
 * \brief Checks that inputs can be written, outputs are, and bytes add up to what memory can be.
 * \throws Error kArtifact.
 */
void CheckPorts(const Program& program);

/*!
 * \brief Checks what groups do; sets `is_grouped`. First of all checks.
 * \throws Error kArtifact.
 */
void CheckGroups(Program* program);

/*!
 * \brief Checks waits, teams and the absence of deadlock; sets `is_awaited`, and the ranks in
 * teams. Linear time.
 * \throws Error kArtifact.
 */
void CheckSynchronisation(Program* program);

}  // namespace heteroplace::exec
