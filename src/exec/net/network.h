// The messages of an executor: moved by whoever waits, and by a thread that looks now and then.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "exec/engine/image.h"
#include "exec/net/channel.h"
#include "exec/net/transport.h"
#include "exec/requests/slot.h"
#include "exec/workers/worker.h"

namespace heteroplace::exec {

class Engine;

/*!
 * \brief All channels of an engine whose program has messages.
 *
 * The core that made a value sends it, and cores that wait look for what comes: with one core per
 * rank there is none for communication. A thread without a core looks where nobody waits, so that
 * large messages go on beside long kernels. The first failure, of a request or of the transport,
 * ends everything on all ranks: a message that is not sent would be missed for ever.
 */
class Network {
 public:
  /*! \brief Of workers of all queues, bound. */
  Network(Engine* engine, const Image* image, const std::vector<std::unique_ptr<Worker>>& workers);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /*! \brief Makes the messages of a new slot. Any thread. \throws Error as Transport. */
  void MakeMessages(Slot* slot);

  /*! \brief Looks once, if there is anything to look for and nobody else looks. Any thread. */
  void Poll() noexcept {
    if (!IsIdle()) Look();
  }
  /*! \brief Something has changed that a message may wait for: somebody looks. Any thread. */
  void Advance() noexcept;

  /*! \brief The network's own thread, until the engine stops and nothing is in flight. */
  void Work();

  /*! \brief Ends the job on all ranks; the first reason is kept, and its cause. Any thread. */
  void Abort(std::string_view reason, FailureCause cause) noexcept;
  /*! \brief The same for a request that has failed here. */
  void AbortFor(Slot* slot) noexcept;
  bool is_aborted() const { return is_aborted_.load(); }
  /*! \brief Why; after it was aborted. */
  const std::string& reason() const { return reason_; }
  FailureCause cause() const { return cause_; }

 private:
  bool IsIdle() const;
  bool Look() noexcept;
  bool Round() noexcept;
  void Rest();

  Engine* engine_;
  const Image* image_;
  const std::shared_ptr<Transport> transport_;
  /*! \brief Guarded by the transport's mutex; receives first, so that what comes in goes on. */
  std::deque<Channel> channels_;
  /*! \brief Whether somebody looks. */
  std::atomic<bool> is_busy_{false};
  /*! \brief Somebody has asked for a look since the last one began. */
  std::atomic<bool> is_called_{false};
  /*! \brief Requests that all channels have finished. */
  std::atomic<int64_t> num_finished_{0};
  /*! \brief NowNs when anything moved last. */
  std::atomic<int64_t> moved_ns_{0};

  std::mutex abort_mutex_;
  std::string reason_;       // written once, under abort_mutex_, before the last of these
  FailureCause cause_ = {};  // the same
  std::atomic<bool> is_aborted_{false};
};

}  // namespace heteroplace::exec
