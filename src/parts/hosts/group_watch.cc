// The threads that watch the other ranks, and the bytes that go between them.
//
// Two threads: a rank that is killed can leave MPI's memory so that a call of MPI here never
// returns (transports/mpi_process.h). The one that sees deaths therefore makes none.
#include <algorithm>
#include <new>

#include "exec/team/threads.h"
#include "parts/hosts/group.h"
#include "parts/hosts/patience.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Between two beats: what a rank on another machine is known by is that old. */
constexpr int64_t kBeatNs = 100'000'000;
/*! \brief Beats within a limit of silence, at least. */
constexpr int64_t kBeatsInSilence = 8;
/*! \brief Of others' beats that are read at a time. */
constexpr int kMaxBeats = 16;
/*! \brief The same once the job is over, until all have said goodbye. */
constexpr int64_t kLastBeatNs = 1'000'000;

}  // namespace

void Group::Watch() {
  // A launcher that sees a death too ends this process: the first to have a turn is to be this one.
  AskForShortTurns();
  own_page_.Hold();
  is_held_.store(true);
  is_held_.notify_all();
  AwaitMeeting();
  try {
    std::vector<const OtherPage*> pages;
    for (const Peer& peer : peers_) {
      if (peer.page != nullptr) pages.push_back(peer.page.get());
    }
    while (!HasFailed() && !has_said_goodbye_.load()) {
      const uint32_t heard = own_page_.page().calls.load();
      LookAtPages();
      // Whoever has died stays as it is: at the end that is no failure, and nothing to wait for.
      if (has_ended_.load()) {
        std::erase_if(pages, [](const OtherPage* page) { return page->IsDead(); });
      }
      if (HasFailed() || has_said_goodbye_.load()) break;
      WaitForPages(own_page_.page(), heard, pages, NowNs() + kBeatNs);
    }
  } catch (const std::bad_alloc&) {
    Fail(kMemoryIsShort);
  }
  // Whoever meets a failure says so on the page, once it is shown.
  if (!HasFailed()) own_page_.TellLeft();
  own_page_.Release();
}

void Group::ExchangeBeats() {
  AwaitMeeting();
  try {
    for (Peer& peer : peers_) {
      if (peer.receive != nullptr) peer.receive->Start();
    }
    const int64_t beat_ns = std::min(kBeatNs, options_.silence_ns / kBeatsInSilence);
    while (!HasFailed() && !IsOver()) {
      const uint32_t heard = own_page_.page().calls.load();
      BeatOnce();
      has_ended_.load() ? ForgetDead() : LookForSilence();
      if (HasFailed() || IsOver()) break;
      // At the end others answer at once.
      const int64_t rest_ns = has_ended_.load() ? kLastBeatNs : beat_ns;
      WaitForPages(own_page_.page(), heard, {}, last_beat_ns_ + rest_ns);
    }
  } catch (const Error& error) {
    FailWaiting(error.what());
  } catch (const std::bad_alloc&) {
    Fail(kMemoryIsShort);
  }
  has_said_goodbye_.store(true);
  own_page_.WakeOwner();
}

/*! \brief Until the peers are complete, or this rank leaves without having met them. */
void Group::AwaitMeeting() {
  while (!has_met_.load() && !is_leaving_.load()) {
    const uint32_t heard = own_page_.page().calls.load();
    if (has_met_.load() || is_leaving_.load()) break;
    WaitForPages(own_page_.page(), heard, {}, NowNs() + kBeatNs);
  }
}

void Group::BeatOnce() {
  const int64_t now_ns = NowNs();
  StepReached reached;
  {
    const std::scoped_lock lock(status_mutex_);
    if (status_) reached = status_();
  }
  own_page_.page().request.store(reached.request);
  own_page_.page().step.store(reached.step);
  // Who slept himself cannot say that the others were silent.
  if (now_ns - last_beat_ns_ > options_.silence_ns / 2) {
    for (Peer& peer : peers_) peer.heard_ns.store(now_ns);
  }
  last_beat_ns_ = now_ns;
  for (Peer& peer : peers_) {
    if (peer.send == nullptr) continue;
    if (peer.is_sending) peer.is_sending = !peer.send->Test();
    // One after the goodbye would be received by nobody.
    if (!peer.is_sending && peer.to.has_left == 0) {
      peer.to = {reached.request, reached.step, has_ended_.load() ? 1 : 0};
      peer.send->Start();
      peer.is_sending = !peer.send->Test();
    }
    HearFrom(&peer);
  }
}

void Group::HearFrom(Peer* peer) {
  // So many looks also find a reason that another rank has ended the job for
  // (transports/mpi_transport.cc).
  for (int i = 0; i < kMaxBeats && !peer->is_silent; ++i) {
    if (!peer->receive->Test()) continue;
    peer->heard_ns.store(NowNs());
    peer->request.store(peer->from.request);
    peer->step.store(peer->from.step);
    peer->is_silent = peer->from.has_left != 0;
    if (peer->is_silent) {
      peer->has_left.store(true);
    } else {
      peer->receive->Start();
    }
  }
}

void Group::LookAtPages() {
  for (Peer& peer : peers_) {
    if (peer.page == nullptr) continue;
    if (peer.page->page().state.load() == RankPage::kLeft) peer.has_left.store(true);
  }
  const std::string text = TextOfFallen();
  if (!text.empty()) Keep(text);
}

void Group::LookForSilence() {
  const std::string text = TextOfSilent(options_.silence_ns);
  if (!text.empty()) Keep(text);
}

/*! \brief At the end a rank that died without a goodbye is no failure. */
void Group::ForgetDead() {
  for (Peer& peer : peers_) {
    if (peer.page != nullptr && peer.page->IsDead()) peer.is_gone = true;
  }
}

/*!
 * \brief Whether all have said goodbye: their last beats are received, and so are this rank's.
 *
 * MPI ends a process that gives up a communicator with messages in it which nobody has received.
 */
bool Group::IsOver() const {
  if (!has_ended_.load()) return false;
  for (const Peer& peer : peers_) {
    if (peer.send == nullptr || peer.is_gone) continue;
    if (peer.is_sending || peer.to.has_left == 0 || !peer.is_silent) {
      return is_leaving_.load() && NowNs() > leave_ns_.load();
    }
  }
  return true;
}

std::unique_ptr<Message> Group::MakeSend(int peer, ControlTag tag, const void* data,
                                         int64_t bytes) {
  return LockMessage(transport_, transport_->With([&](Transport& inner) {
    return inner.MakeSend(Plane::kControl, peer, static_cast<int64_t>(tag), data, bytes);
  }));
}

std::unique_ptr<Message> Group::MakeReceive(int peer, ControlTag tag, void* data, int64_t bytes) {
  return LockMessage(transport_, transport_->With([&](Transport& inner) {
    return inner.MakeReceive(Plane::kControl, peer, static_cast<int64_t>(tag), data, bytes);
  }));
}

void Group::Complete(const std::vector<std::unique_ptr<Message>>& messages, const Limit& limit) {
  try {
    std::vector<bool> is_done(messages.size());
    size_t num_done = 0;
    for (const std::unique_ptr<Message>& message : messages) message->Start();
    const auto look = [&] {
      for (size_t i = 0; i < messages.size(); ++i) {
        if (is_done[i] || !messages[i]->Test()) continue;
        is_done[i] = true;
        ++num_done;
      }
      return num_done == messages.size();
    };
    Await(look, kMessageSpinNs, limit);
  } catch (...) {
    FailAsThrown();
    throw;
  }
}

void Group::Await(const std::function<bool()>& is_done, int64_t spin_ns, const Limit& limit) {
  const bool is_in_time = LookUntil(limit, spin_ns, [&] {
    CheckAlive();
    return is_done();
  });
  if (is_in_time) return;
  throw Error(ErrorKind::kExecution, NameOf(rank_) + " waited for other ranks for its whole limit");
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
  std::string bytes;
  std::vector<std::unique_ptr<Message>> messages;  // before the bytes, which they may still write
  messages.push_back(MakeReceive(peer, ControlTag::kReplyLength, &length, sizeof(length)));
  Complete(messages, limit);
  messages.clear();
  bytes.resize(static_cast<size_t>(length));
  messages.push_back(MakeReceive(peer, tag, bytes.data(), length));
  Complete(messages, limit);
  return bytes;
}

}  // namespace heteroplace::exec
