// One transport for several users in a process: a lock around each call, and peers by host.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "exec/net/transport.h"

namespace heteroplace::exec {

/*! \brief A transport and the lock that its users, messages and destruction take. */
class LockedTransport {
 public:
  explicit LockedTransport(std::shared_ptr<Transport> transport)
      : transport_(std::move(transport)) {}
  LockedTransport(const LockedTransport&) = delete;
  LockedTransport& operator=(const LockedTransport&) = delete;

  /*! \brief What a function of the transport returns, called under the lock. */
  template <typename Call>
  auto With(const Call& call) {
    const std::scoped_lock lock(transport_->mutex());
    return call(*transport_);
  }
  /*! \brief Without the lock: `Abort` is for any thread. */
  void Abort(const std::string& reason) noexcept { transport_->Abort(reason); }
  std::mutex& mutex() { return transport_->mutex(); }
  /*! \brief Whether this process is a child of the one that has the transport: any thread of that
   * may have held the lock. */
  bool IsForked() const { return getpid() != owner_; }

 private:
  const pid_t owner_ = getpid();
  std::shared_ptr<Transport> transport_;  // guarded by its mutex, but for Abort
};

/*! \brief A message whose every use takes the lock of its transport, which it keeps. */
std::unique_ptr<Message> LockMessage(std::shared_ptr<LockedTransport> transport,
                                     std::unique_ptr<Message> message);

/*!
 * \brief The transport for a program whose peers are hosts: any thread may call any function.
 *
 * `rank` and `peer` are positions of hosts; which rank runs a host is the constructor's to say.
 */
class SharedTransport : public Transport {
 public:
  /*!
   * \param ranks the rank that runs each host. [num_ranks]
   * \param on_abort told of the reason first, of any thread; must not throw.
   */
  SharedTransport(std::shared_ptr<LockedTransport> transport, std::vector<int> ranks,
                  std::function<void(const std::string&, bool is_waiting)> on_abort);

  int rank() const override { return host_; }
  int num_ranks() const override { return static_cast<int>(ranks_.size()); }
  std::string name() const override;
  std::unique_ptr<Message> MakeSend(Plane plane, int peer, int64_t tag, const void* data,
                                    int64_t bytes) override;
  std::unique_ptr<Message> MakeReceive(Plane plane, int peer, int64_t tag, void* data,
                                       int64_t bytes) override;
  void Abort(const std::string& reason) noexcept override;
  void AbortWaiting(const std::string& reason) noexcept override;

 private:
  std::shared_ptr<LockedTransport> transport_;
  const std::vector<int> ranks_;
  const std::function<void(const std::string&, bool is_waiting)> on_abort_;
  int host_ = 0;
};

}  // namespace heteroplace::exec
