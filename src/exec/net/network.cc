#include "exec/net/network.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

#include "exec/engine/engine.h"
#include "exec/team/threads.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Between two looks of the network's thread: a part of the time since something moved, so
 * that a long wait gets longer by that part only; at least, and at most. */
constexpr int64_t kRestPart = 16;
constexpr int64_t kMinRestNs = 50'000;
constexpr int64_t kMaxRestNs = 200'000;

/*! \brief So long the thread stays awake after a request: to be woken costs who submits the next
 * one more than its looks cost others. */
constexpr int64_t kLingerNs = 20'000'000;

}  // namespace

Network::Network(Engine* engine, const Image* image,
                 const std::vector<std::unique_ptr<Worker>>& workers)
    : engine_(engine), image_(image), transport_(image->transport()) {
  for (const QueueKind kind : {QueueKind::kReceive, QueueKind::kSend}) {
    for (const std::unique_ptr<Worker>& worker : workers) {
      if (worker->queue().kind == kind) channels_.emplace_back(engine, image, worker.get());
    }
  }
}

Network::~Network() {
  const std::scoped_lock lock(transport_->mutex());
  channels_.clear();
}

void Network::MakeMessages(Slot* slot) {
  const std::scoped_lock lock(transport_->mutex());
  for (Channel& channel : channels_) channel.MakeMessages(slot);
}

bool Network::IsIdle() const {
  return num_finished_.load(std::memory_order_relaxed) == engine_->num_submitted();
}

void Network::Advance() noexcept {
  is_called_.store(true);
  Look();
}

/*! \brief Whether anything moved. Who finds another one looking leaves it to him: he looks again if
 * that was after a change. */
bool Network::Look() noexcept {
  bool has_moved = false;
  do {
    if (is_busy_.load()) break;  // perhaps by the caller, who ends a request
    const std::unique_lock lock(transport_->mutex(), std::try_to_lock);
    if (!lock.owns_lock()) break;
    is_busy_.store(true);
    is_called_.store(false);
    has_moved = Round() || has_moved;
    is_busy_.store(false);
  } while (is_called_.load());
  return has_moved;
}

/*! \brief What is ready goes out first: it is waited for elsewhere. Then each channel once; with
 * the lock. */
bool Network::Round() noexcept {
  bool has_moved = false;
  try {
    for (Channel& channel : channels_) {
      if (is_aborted_.load()) break;
      if (!channel.is_receiving()) has_moved = channel.StartSome() || has_moved;
    }
    for (Channel& channel : channels_) {
      if (is_aborted_.load()) break;
      has_moved = channel.Move() || has_moved;
    }
  } catch (const RequestError& error) {
    Abort(error.what(), error.cause());
  } catch (const Error& error) {  // of the transport, as where another rank is gone
    Abort(error.what(), FailureCause::kWaiting);
  } catch (const std::exception& fault) {
    Abort(CauseOf(fault), FailureCause::kFault);
  }
  if (is_aborted_.load()) {
    for (Channel& channel : channels_) channel.GiveUp(reason_);
  }
  int64_t num_finished = channels_.front().num_finished();
  for (const Channel& channel : channels_) {
    num_finished = std::min(num_finished, channel.num_finished());
  }
  num_finished_.store(num_finished, std::memory_order_relaxed);
  if (has_moved) moved_ns_.store(NowNs(), std::memory_order_relaxed);
  return has_moved;
}

void Network::Work() {
  NameThread("net");
  GoAnywhere();
  AskForExactSleep();
  const auto may_rest = [&] { return IsIdle() && !engine_->is_stopping(); };
  while (!engine_->is_stopping() || !IsIdle()) {
    while (Look()) {
    }
    if (may_rest() && NowNs() - moved_ns_.load(std::memory_order_relaxed) > kLingerNs) {
      engine_->submitted_bell()->Sleep([&] { return !may_rest(); });
    } else {
      Rest();
    }
  }
}

/*! \brief Not on the bell of submissions: who submits looks himself. */
void Network::Rest() {
  const int64_t still_ns = NowNs() - moved_ns_.load(std::memory_order_relaxed);
  const int64_t rest_ns = std::clamp(still_ns / kRestPart, kMinRestNs, kMaxRestNs);
  std::this_thread::sleep_for(std::chrono::nanoseconds(rest_ns));
}

void Network::Abort(std::string_view reason, FailureCause cause) noexcept {
  {
    const std::scoped_lock lock(abort_mutex_);
    if (is_aborted_.load()) return;
    try {
      reason_ = reason;
    } catch (const std::bad_alloc&) {
      reason_ = kMemoryIsShort;
    }
    cause_ = cause;
    is_aborted_.store(true);  // from now on the reason stays as it is
  }
  cause == FailureCause::kWaiting ? transport_->AbortWaiting(reason_) : transport_->Abort(reason_);
  engine_->Lose(reason_.c_str());
  engine_->submitted_bell()->Ring();
}

void Network::AbortFor(Slot* slot) noexcept {
  if (is_aborted_.load()) return;
  try {
    Abort(image_->program().DescribeHost() + ": " + slot->failure(), slot->cause());
  } catch (const std::bad_alloc&) {
    Abort(kMemoryIsShort, FailureCause::kFault);
  }
}

}  // namespace heteroplace::exec
