// The thread that watches the other ranks, and the bytes that go between them.
#include <algorithm>
#include <new>

#include "exec/net/group.h"
#include "exec/net/patience.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Between two beats: what a rank on another machine is known by is that old. */
constexpr int64_t kBeatNs = 100'000'000;
/*! \brief Beats within a limit of silence, at least. */
constexpr int64_t kBeatsInSilence = 8;
/*! \brief Of others' beats that are read at a time. */
constexpr int kMostBeats = 16;
/*! \brief What a rank that ends waits for its last beats to go. */
constexpr int64_t kGoodbyeNs = 200'000'000;

}  // namespace

void Group::Watch() {
  own_page_.Hold();
  try {
    for (Peer& peer : peers_) {
      if (peer.receive != nullptr) peer.receive->Start();
    }
    const int64_t beat_ns = std::min(kBeatNs, options_.silence_ns / kBeatsInSilence);
    std::vector<const OtherPage*> pages;
    for (const Peer& peer : peers_) {
      if (peer.page != nullptr) pages.push_back(peer.page.get());
    }
    while (!is_leaving_.load() && !HasFailed()) {
      const uint32_t heard = own_page_.page().calls.load();
      BeatOnce();
      LookAtPages();
      LookForSilence();
      if (is_leaving_.load() || HasFailed()) break;
      WaitForPages(own_page_.page(), heard, pages, last_beat_ns_ + beat_ns);
    }
    if (!HasFailed()) SayGoodbye();
  } catch (const Error& error) {
    Fail(error.what());
  } catch (const std::bad_alloc&) {
    Fail(kMemoryIsShort);
  }
  own_page_.TellLeft();
  own_page_.Release();
}

void Group::BeatOnce() {
  const int64_t now_ns = NowNs();
  StepReached reached;
  {
    const std::lock_guard lock(status_mutex_);
    if (status_) reached = status_();
  }
  own_page_.page().request.store(reached.request);
  own_page_.page().step.store(reached.step);
  // Who slept himself cannot say that the others were silent.
  if (now_ns - last_beat_ns_ > options_.silence_ns / 2) {
    for (Peer& peer : peers_) peer.heard_ns = now_ns;
  }
  last_beat_ns_ = now_ns;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank == rank_ || peer.has_left) continue;
    if (peer.is_sending) peer.is_sending = !peer.send->Test();
    if (!peer.is_sending) {
      peer.to = {reached.request, reached.step, is_leaving_.load() ? 1 : 0};
      peer.send->Start();
      peer.is_sending = !peer.send->Test();
    }
    HearFrom(rank);
  }
}

void Group::HearFrom(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  for (int i = 0; i < kMostBeats && !peer.has_left && peer.receive->Test(); ++i) {
    peer.heard_ns = NowNs();
    peer.reached = {peer.from.request, peer.from.step};
    peer.has_left = peer.from.has_left != 0;
    if (!peer.has_left) peer.receive->Start();
  }
}

void Group::LookAtPages() {
  for (Peer& peer : peers_) {
    if (peer.page == nullptr) continue;
    peer.has_left = peer.has_left || peer.page->page().state.load() == RankPage::kLeft;
  }
  const std::string text = TextOfFallen();
  if (!text.empty()) Keep(text);
}

void Group::LookForSilence() {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    const int64_t silent_ns = last_beat_ns_ - peer.heard_ns;
    if (rank == rank_ || peer.has_left || silent_ns <= options_.silence_ns) continue;
    Keep(TextOf(rank, SilenceText(silent_ns)));
    return;
  }
}

/*! \brief A last beat, from which others know that the silence after it is none. */
void Group::SayGoodbye() {
  const int64_t end_ns = NowNs() + kGoodbyeNs;
  const auto is_gone = [&] {
    bool is_over = true;
    for (Peer& peer : peers_) {
      if (peer.send == nullptr || peer.has_left) continue;
      if (peer.is_sending) peer.is_sending = !peer.send->Test();
      if (!peer.is_sending && peer.to.has_left == 0) {
        peer.to.has_left = 1;
        peer.send->Start();
        peer.is_sending = !peer.send->Test();
      }
      is_over = is_over && !peer.is_sending;
    }
    return is_over;
  };
  LookUntil(Limit{end_ns, {}}, 0, is_gone);
}

std::unique_ptr<Message> Group::MakeSend(int peer, ControlTag tag, const void* data,
                                         int64_t bytes) {
  return LockMessage(transport_, transport_->With([&](Transport& inner) {
    return inner.MakeSend(Lane::kControl, peer, static_cast<int64_t>(tag), data, bytes);
  }));
}

std::unique_ptr<Message> Group::MakeReceive(int peer, ControlTag tag, void* data, int64_t bytes) {
  return LockMessage(transport_, transport_->With([&](Transport& inner) {
    return inner.MakeReceive(Lane::kControl, peer, static_cast<int64_t>(tag), data, bytes);
  }));
}

void Group::Complete(const std::vector<std::unique_ptr<Message>>& messages, const Limit& limit) {
  for (const std::unique_ptr<Message>& message : messages) message->Start();
  std::vector<bool> is_done(messages.size());
  size_t num_done = 0;
  bool are_all = false;
  try {
    are_all = LookUntil(limit, kMessageSpinNs, [&] {
      CheckAlive();
      for (size_t i = 0; i < messages.size(); ++i) {
        if (is_done[i] || !messages[i]->Test()) continue;
        is_done[i] = true;
        ++num_done;
      }
      return num_done == messages.size();
    });
  } catch (const Error& error) {
    Fail(error.what());
    throw;
  } catch (...) {
    // A send may be given up only where nothing goes on.
    Fail(NameOf(rank_) + " was interrupted");
    throw;
  }
  if (are_all) return;
  const std::string text = NameOf(rank_) + " waited for other ranks for its whole limit";
  Fail(text);
  throw Error(ErrorKind::kExecution, text);
}

void Group::Send(int peer, ControlTag tag, const std::string& bytes, const Limit& limit) {
  const auto length = static_cast<int64_t>(bytes.size());
  std::vector<std::unique_ptr<Message>> messages;
  messages.push_back(MakeSend(peer, ControlTag::kReplyLength, &length, sizeof(length)));
  messages.push_back(MakeSend(peer, tag, bytes.data(), length));
  Complete(messages, limit);
}

std::string Group::Receive(int peer, ControlTag tag, const Limit& limit) {
  int64_t length = 0;
  std::vector<std::unique_ptr<Message>> messages;
  messages.push_back(MakeReceive(peer, ControlTag::kReplyLength, &length, sizeof(length)));
  Complete(messages, limit);
  std::string bytes(static_cast<size_t>(length), '\0');
  messages.clear();
  messages.push_back(MakeReceive(peer, tag, bytes.data(), length));
  Complete(messages, limit);
  return bytes;
}

}  // namespace heteroplace::exec
