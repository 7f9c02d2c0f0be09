#include "parts/hosts/transports/mpi_transport.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "exec/engine/sync.h"
#include "parts/hosts/message_check.h"
#include "parts/hosts/transports/mpi_process.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Bytes of a reason to abort: so few that any library takes them at once. */
constexpr int kReasonBytes = sizeof(KeptBytes::outgoing);

/*! \brief Every so many looks at messages that have not come, for a reason to abort. */
constexpr int kLooksPerNotice = 16;

/*! \brief How long what is given up is waited for, all of it together. */
constexpr int64_t kGiveUpNs = 200'000'000;

/*! \brief The communicators of one transport. Its messages keep it. */
class MpiPlanes {
 public:
  explicit MpiPlanes(const MpiOptions& options);
  ~MpiPlanes();
  MpiPlanes(const MpiPlanes&) = delete;
  MpiPlanes& operator=(const MpiPlanes&) = delete;

  MpiProcess& process() { return process_; }
  const MpiAbi& abi() const { return process_.abi(); }
  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }
  int64_t part_bytes() const { return part_bytes_; }

  /*! \brief The communicator of a plane. */
  MpiHandle Of(Plane plane) const { return communicators_[plane == Plane::kProgram ? 0 : 1]; }

  /*! \brief A tag as MPI takes it. The largest one is that of reasons to abort. */
  int TagOf(int64_t tag) const { return static_cast<int>(tag % largest_tag_); }

  /*! \brief Throws what ended the transport, here or on another rank. Needs the process's lock. */
  void CheckAlive() const {
    if (is_aborted_) throw Error(ErrorKind::kExecution, reason_->outgoing.data());
  }

  /*! \brief Looks now and then whether another rank has aborted. Needs the process's lock. */
  void LookForReason();

  /*! \brief Tests a request until it is complete or the time for that is over; says which. */
  bool Finish(MpiHandle* request);

  void Abort(const std::string& reason) noexcept;

 private:
  void MakeCommunicators(const MpiOptions& options);
  void ListenForReason();
  void End();

  MpiProcess& process_;
  const int64_t part_bytes_;
  int rank_ = 0;
  int num_ranks_ = 1;
  int largest_tag_ = 0;
  std::array<MpiHandle, 2> communicators_ = {};
  // Guarded by the process's lock:
  bool is_aborted_ = false;
  bool is_listening_ = false;  // the receive of a reason is in flight
  int num_looks_ = 0;
  int64_t give_up_ns_ = 0;  // after a failure: until when to wait for what is given up
  std::unique_ptr<KeptBytes> reason_ = std::make_unique<KeptBytes>();  // texts that end with a 0
  MpiHandle reason_request_ = 0;
  std::vector<MpiHandle> notices_;  // [num_ranks - 1] sends of the reason to the others
};

MpiPlanes::MpiPlanes(const MpiOptions& options)
    : process_(MpiProcess::Get(options.library, options.communicator.has_value())),
      part_bytes_(options.part_bytes) {
  const auto lock = process_.Lock();
  MakeCommunicators(options);
  ListenForReason();
}

void MpiPlanes::MakeCommunicators(const MpiOptions& options) {
  const MpiHandle all = options.communicator.value_or(abi().comm_world);
  if (all == abi().comm_null) {
    throw Error(ErrorKind::kExecution,
                "the communicator is MPI_COMM_NULL: this is none of its ranks");
  }
  int is_inter = 0;
  abi().Check(abi().Comm_test_inter(all, &is_inter), "MPI_Comm_test_inter");
  if (is_inter != 0) {
    throw Error(ErrorKind::kExecution,
                "the communicator is between two groups of ranks; pass one of a single group");
  }
  abi().Check(abi().Comm_rank(all, &rank_), "MPI_Comm_rank");
  abi().Check(abi().Comm_size(all, &num_ranks_), "MPI_Comm_size");
  const MpiProcess::LongCall waiting(&process_);
  for (MpiHandle& own : communicators_) {
    abi().Check(abi().Comm_dup(all, &own), "MPI_Comm_dup");
    abi().Check(abi().Comm_set_errhandler(own, abi().errors_return), "MPI_Comm_set_errhandler");
  }
  int* largest_tag = nullptr;
  int has_largest_tag = 0;
  const int code =
      abi().Comm_get_attr(abi().comm_world, abi().tag_ub, &largest_tag, &has_largest_tag);
  abi().Check(code, "the largest tag");
  largest_tag_ = has_largest_tag != 0 ? *largest_tag : 32767;  // the least that MPI allows
}

void MpiPlanes::ListenForReason() {
  if (num_ranks_ == 1) return;
  notices_.resize(static_cast<size_t>(num_ranks_) - 1, 0);
  const MpiHandle control = Of(Plane::kControl);
  size_t next = 0;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) continue;
    abi().Check(abi().Send_init(reason_->outgoing.data(), kReasonBytes, abi().byte, peer,
                                largest_tag_, control, &notices_[next++]),
                "MPI_Send_init");
  }
  abi().Check(abi().Recv_init(reason_->incoming.data(), kReasonBytes, abi().byte, abi().any_source,
                              largest_tag_, control, &reason_request_),
              "MPI_Recv_init");
  abi().Check(abi().Start(&reason_request_), "MPI_Start");
  is_listening_ = true;
}

MpiPlanes::~MpiPlanes() {
  if (!process_.IsUsable()) return;
  const auto lock = process_.Lock();
  if (is_listening_) {
    abi().Cancel(&reason_request_);
    is_listening_ = !Finish(&reason_request_);
  }
  if (!is_listening_ && num_ranks_ > 1) abi().Request_free(&reason_request_);
  // Left as they are after a failure: else MPI could give their numbers to others, whom late
  // messages would reach.
  if (is_aborted_) {
    process_.Keep(std::move(reason_));
    return;
  }
  for (MpiHandle& notice : notices_) abi().Request_free(&notice);
  for (MpiHandle& own : communicators_) abi().Comm_free(&own);
}

void MpiPlanes::LookForReason() {
  if (++num_looks_ % kLooksPerNotice != 0 || !is_listening_) return;
  int flag = 0;
  MpiStatus status;
  abi().Check(abi().Test(&reason_request_, &flag, &status), "MPI_Test");
  if (flag == 0) return;
  is_listening_ = false;
  reason_->outgoing = reason_->incoming;
  End();
  CheckAlive();
}

void MpiPlanes::End() {
  is_aborted_ = true;
  process_.EndIfHung();
  give_up_ns_ = NowNs() + kGiveUpNs;
  process_.LeaveOpen();
}

bool MpiPlanes::Finish(MpiHandle* request) {
  const int64_t until_ns = is_aborted_ ? give_up_ns_ : NowNs() + kGiveUpNs;
  int flag = 0;
  MpiStatus status;
  do {
    if (abi().Test(request, &flag, &status) != 0) return false;
    if (flag == 0) std::this_thread::yield();
  } while (flag == 0 && NowNs() < until_ns);
  return flag != 0;
}

void MpiPlanes::Abort(const std::string& reason) noexcept {
  if (process_.IsForked()) return;
  // Before the lock: a call that never returns holds it.
  process_.EndIfHung();
  const auto lock = process_.Lock();
  if (is_aborted_) return;
  End();
  // Whole characters of UTF-8.
  size_t length = std::min(reason.size(), size_t{kReasonBytes - 1});
  while (length < reason.size() && length > 0 && (reason[length] & 0xC0) == 0x80) --length;
  std::memcpy(reason_->outgoing.data(), reason.data(), length);
  if (!process_.IsUsable()) return;
  // Errors are passed over: those ranks are gone.
  for (MpiHandle& notice : notices_) abi().Start(&notice);
  for (MpiHandle& notice : notices_) Finish(&notice);
}

/*! \brief A message, in parts if it is large. */
class MpiMessage : public Message {
 public:
  MpiMessage(std::shared_ptr<MpiPlanes> planes, Plane plane, const MessageEnds& ends, char* data);
  ~MpiMessage() override;
  void Start() override;
  bool Test() override;

 private:
  /*! \brief MPI's name for one part. */
  struct Part {
    MpiHandle request = 0;
    int bytes = 0;
  };

  const std::shared_ptr<MpiPlanes> lanes_;
  const MessageEnds ends_;
  std::vector<Part> parts_;  // all of one tag: MPI keeps their order
  size_t num_done_ = 0;      // the first parts, which are complete; all: not in flight
};

MpiMessage::MpiMessage(std::shared_ptr<MpiPlanes> planes, Plane plane, const MessageEnds& ends,
                       char* data)
    : lanes_(std::move(planes)), ends_(ends) {
  const MpiAbi& abi = lanes_->abi();
  const int tag = lanes_->TagOf(ends.tag);
  int64_t begin = 0;
  do {
    Part part;
    part.bytes = static_cast<int>(std::min(ends.bytes - begin, lanes_->part_bytes()));
    char* from = part.bytes > 0 ? data + begin : nullptr;
    const int code = ends.is_send ? abi.Send_init(from, part.bytes, abi.byte, ends.peer, tag,
                                                  lanes_->Of(plane), &part.request)
                                  : abi.Recv_init(from, part.bytes, abi.byte, ends.peer, tag,
                                                  lanes_->Of(plane), &part.request);
    if (code != 0) {
      for (Part& made : parts_) abi.Request_free(&made.request);
      abi.Check(code, DescribeMessage(ends));
    }
    parts_.push_back(part);
    begin += part.bytes;
  } while (begin < ends.bytes);
  num_done_ = parts_.size();
}

MpiMessage::~MpiMessage() {
  if (!lanes_->process().IsUsable()) return;
  const auto lock = lanes_->process().Lock();
  const MpiAbi& abi = lanes_->abi();
  for (size_t i = num_done_; i < parts_.size() && !ends_.is_send; ++i) {
    abi.Cancel(&parts_[i].request);
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    // One that is not complete in time stays MPI's: freeing it would not stop it.
    if (i < num_done_ || lanes_->Finish(&parts_[i].request)) abi.Request_free(&parts_[i].request);
  }
}

void MpiMessage::Start() {
  lanes_->process().CheckNotForked(ends_.rank);
  const auto lock = lanes_->process().Lock();
  lanes_->CheckAlive();
  if (num_done_ < parts_.size()) RefuseSecondStart(ends_);
  num_done_ = 0;
  for (Part& part : parts_) {
    const int code = lanes_->abi().Start(&part.request);
    if (code != 0) lanes_->abi().Check(code, DescribeMessage(ends_));
  }
}

bool MpiMessage::Test() {
  lanes_->process().CheckNotForked(ends_.rank);
  const auto lock = lanes_->process().Lock();
  lanes_->CheckAlive();
  const MpiAbi& abi = lanes_->abi();
  while (num_done_ < parts_.size()) {
    Part& part = parts_[num_done_];
    int flag = 0;
    MpiStatus status;
    const int code = abi.Test(&part.request, &flag, &status);
    if (code == 0 && flag == 0) {
      lanes_->LookForReason();
      return false;
    }
    ++num_done_;  // also one that failed
    if (code != 0) abi.Check(code, DescribeMessage(ends_));
    if (ends_.is_send) continue;
    int received = 0;
    abi.Get_count(&status, abi.byte, &received);
    if (received != part.bytes) CheckReceivedBytes(ends_, ends_.bytes - part.bytes + received);
  }
  return true;
}

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(const MpiOptions& options) : lanes_(std::make_shared<MpiPlanes>(options)) {}

  int rank() const override { return lanes_->rank(); }
  int num_ranks() const override { return lanes_->num_ranks(); }
  std::string name() const override { return lanes_->abi().name; }

  std::unique_ptr<Message> MakeSend(Plane plane, int peer, int64_t tag, const void* data,
                                    int64_t bytes) override {
    // MPI takes all addresses as writable and writes to none of these.
    char* from = const_cast<char*>(static_cast<const char*>(data));
    return Make(plane, {rank(), peer, tag, bytes, /*is_send=*/true}, from);
  }

  std::unique_ptr<Message> MakeReceive(Plane plane, int peer, int64_t tag, void* data,
                                       int64_t bytes) override {
    return Make(plane, {rank(), peer, tag, bytes, /*is_send=*/false}, static_cast<char*>(data));
  }

  void Abort(const std::string& reason) noexcept override { lanes_->Abort(reason); }

 private:
  std::unique_ptr<Message> Make(Plane plane, const MessageEnds& ends, char* data) {
    CheckMessage(ends, num_ranks());
    lanes_->process().CheckNotForked(ends.rank);
    const auto lock = lanes_->process().Lock();
    lanes_->CheckAlive();
    return std::make_unique<MpiMessage>(lanes_, plane, ends, data);
  }

  const std::shared_ptr<MpiPlanes> lanes_;
};

}  // namespace

std::unique_ptr<Transport> MakeMpiTransport(const MpiOptions& options) {
  return std::make_unique<MpiTransport>(options);
}

void EndMpiAtExit() { MpiProcess::EndWithProcess(); }

}  // namespace heteroplace::exec
