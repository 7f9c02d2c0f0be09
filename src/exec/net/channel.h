// All messages of one direction between this rank and another, request after request.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exec/engine/image.h"
#include "exec/net/transport.h"
#include "exec/requests/slot.h"
#include "exec/workers/worker.h"

namespace heteroplace::exec {

class Engine;

/*!
 * \brief A queue of messages: starts each when its waits are over, in order, and tells what is
 * complete, in order.
 *
 * Several are under way at once, of the next requests too, so receives are there before what they
 * receive. All functions are called with the transport's lock, one thread at a time.
 */
class Channel {
 public:
  /*! \param worker the state of its queue, which has no thread. */
  Channel(Engine* engine, const Image* image, Worker* worker);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /*! \brief Makes the messages of a new slot. \throws Error as Transport. */
  void MakeMessages(Slot* slot);

  /*!
   * \brief Starts messages until one must wait, into requests to come; whether any was.
   * \throws Error kExecution: a request has failed, or the transport.
   */
  bool StartSome();

  /*! \brief The same, and ends what is complete, and its part of requests. */
  bool Move();

  /*! \brief Fails all requests that are not over here, and ends its part of them. */
  void GiveUp(std::string_view reason) noexcept;

  /*! \brief Requests of which it has ended its part. */
  int64_t num_finished() const { return ended_.request; }
  bool is_receiving() const { return queue_.kind == QueueKind::kReceive; }

 private:
  /*! \brief A message among those of all requests. */
  struct Place {
    int64_t request = 0;
    size_t index = 0;
  };

  bool EndSome();
  bool MayStart(Slot* slot, size_t index);
  bool HasReached(const BoundWait& wait, Slot* slot);
  void Start(Slot* slot);
  void End(Slot* slot);
  void EndPart(Slot* slot);
  void BeginTrace(Slot* slot);
  void ThrowIfFailed(Slot* slot) const;

  Message& message(Slot* slot, size_t index) {
    return *messages_[static_cast<size_t>(slot->index())][index];
  }

  Engine* engine_;
  const Image* image_;
  Worker* worker_;
  const Queue& queue_;
  const size_t length_;
  /*! \brief How many messages of the same request are complete before each starts: those into some
   * of its bytes are not under way with it. [length] */
  const std::vector<size_t> num_before_;
  /*! \brief The next message to start, and the next one to end; the first is never behind. */
  Place next_, ended_;
  /*! \brief Requests whose recording has begun, and when the last message ended by its clock. */
  int64_t num_traced_ = 0;
  int64_t last_end_ = 0;
  std::vector<std::vector<std::unique_ptr<Message>>> messages_;  // [slots made so far][length]
};

}  // namespace heteroplace::exec
