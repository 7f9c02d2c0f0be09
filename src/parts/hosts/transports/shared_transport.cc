#include "parts/hosts/transports/shared_transport.h"

#include <utility>

namespace heteroplace::exec {

namespace {

class LockedMessage : public Message {
 public:
  LockedMessage(std::shared_ptr<LockedTransport> transport, std::unique_ptr<Message> message)
      : transport_(std::move(transport)), message_(std::move(message)) {}
  ~LockedMessage() override {
    if (transport_->IsForked()) {  // it is the parent's, and so may the lock be for ever
      static_cast<void>(message_.release());
      return;
    }
    const std::scoped_lock lock(transport_->mutex());
    message_.reset();
  }

  void Start() override {
    const std::scoped_lock lock(transport_->mutex());
    message_->Start();
  }

  bool Test() override {
    const std::scoped_lock lock(transport_->mutex());
    return message_->Test();
  }

 private:
  std::shared_ptr<LockedTransport> transport_;
  std::unique_ptr<Message> message_;
};

}  // namespace

std::unique_ptr<Message> LockMessage(std::shared_ptr<LockedTransport> transport,
                                     std::unique_ptr<Message> message) {
  return std::make_unique<LockedMessage>(std::move(transport), std::move(message));
}

SharedTransport::SharedTransport(std::shared_ptr<LockedTransport> transport, std::vector<int> ranks,
                                 std::function<void(const std::string&, bool)> on_abort)
    : transport_(std::move(transport)), ranks_(std::move(ranks)), on_abort_(std::move(on_abort)) {
  const int own = transport_->With([](Transport& inner) { return inner.rank(); });
  while (ranks_[static_cast<size_t>(host_)] != own) ++host_;
}

std::string SharedTransport::name() const {
  return transport_->With([](Transport& inner) { return inner.name(); });
}

std::unique_ptr<Message> SharedTransport::MakeSend(Plane plane, int peer, int64_t tag,
                                                   const void* data, int64_t bytes) {
  const int rank = ranks_.at(static_cast<size_t>(peer));
  return LockMessage(transport_, transport_->With([&](Transport& inner) {
    return inner.MakeSend(plane, rank, tag, data, bytes);
  }));
}

std::unique_ptr<Message> SharedTransport::MakeReceive(Plane plane, int peer, int64_t tag,
                                                      void* data, int64_t bytes) {
  const int rank = ranks_.at(static_cast<size_t>(peer));
  return LockMessage(transport_, transport_->With([&](Transport& inner) {
    return inner.MakeReceive(plane, rank, tag, data, bytes);
  }));
}

void SharedTransport::Abort(const std::string& reason) noexcept {
  on_abort_(reason, /*is_waiting=*/false);
  transport_->Abort(reason);
}

void SharedTransport::AbortWaiting(const std::string& reason) noexcept {
  on_abort_(reason, /*is_waiting=*/true);
  transport_->Abort(reason);
}

}  // namespace heteroplace::exec
