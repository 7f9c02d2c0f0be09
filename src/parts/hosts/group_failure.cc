// What the failure of a job is called on all ranks, and which one of them tells it.
#include <algorithm>
#include <charconv>
#include <new>
#include <string_view>

#include "parts/hosts/group.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief How a text goes on after the name of a rank that cannot tell it itself. */
constexpr std::string_view kDied = "died: ";
constexpr std::string_view kSilent = "does not answer: ";

/*! \brief What a rank that fails waits for the one that shows why, and for one on another machine.
 */
constexpr int64_t kTellerNs = 1'000'000'000;
constexpr int64_t kFarTellerNs = 100'000'000;

/*! \brief A rank that is silent for longer is named where another one waits in vain: some beats. */
constexpr int64_t kSuspiciousNs = 600'000'000;

constexpr std::string_view kLastStep = "; last finished step: ";

bool BeginsWithRank(const std::string& text) { return text.starts_with(Group::kRankWord); }

/*! \brief The rank that a text begins with, or the first. */
int NamedBy(const std::string& text) {
  int rank = 0;
  if (BeginsWithRank(text)) {
    std::from_chars(text.data() + Group::kRankWord.size(), text.data() + text.size(), rank);
  }
  return rank;
}

/*! \brief Whether the rank that a text begins with cannot tell it itself. */
bool IsMute(const std::string& text) {
  const size_t end = text.find(") ");
  if (!BeginsWithRank(text) || end == std::string::npos) return false;
  const std::string_view rest = std::string_view(text).substr(end + 2);
  return rest.starts_with(kDied) || rest.starts_with(kSilent);
}

}  // namespace

void Group::Fail(const std::string& text) noexcept { FailOf(text, /*is_waiting=*/false); }

void Group::FailWaiting(const std::string& text) noexcept { FailOf(text, /*is_waiting=*/true); }

void Group::FailOf(const std::string& text, bool is_waiting) noexcept {
  if (IsForked()) return;
  try {
    // Who meets an error as another rank is gone says that instead.
    std::string whole = TextOfFallen();
    if (whole.empty() && BeginsWithRank(text)) whole = text;
    // Nor is what did not come the fault of who waited for it.
    if (whole.empty() && is_waiting && has_met_.load()) whole = TextOfSilent(kSuspiciousNs);
    if (whole.empty()) whole = NameOf(rank_) + ": " + WithoutHost(text);
    const bool is_own = NamedBy(whole) == rank_ && whole.find(kLastStep) == std::string::npos;
    if (is_own) whole += LastOwnStep();
    Keep(whole);
  } catch (const std::bad_alloc&) {
    Keep(kMemoryIsShort);
  }
}

void Group::FailAsThrown() noexcept {
  std::string text;
  bool is_waiting = false;
  try {
    try {
      throw;
    } catch (const Error& error) {
      is_waiting = true;
      text = error.what();
    } catch (const std::bad_alloc&) {
      text = kMemoryIsShort;
    } catch (...) {
      text = "the call was interrupted";
    }
  } catch (const std::bad_alloc&) {
    text = kMemoryIsShort;  // short enough for a string without memory of its own
  }
  FailOf(text, is_waiting);
}

/*! \brief Without the name of this rank's host that a program begins with. */
std::string Group::WithoutHost(const std::string& text) const {
  const std::scoped_lock lock(names_mutex_);
  if (order_.empty()) return text;
  const int host = order_[static_cast<size_t>(rank_)];
  const std::string name = DescribeHost(hosts_[static_cast<size_t>(host)], host) + ": ";
  return text.starts_with(name) ? text.substr(name.size()) : text;
}

/*! \brief Of a rank that has failed without a word of its own. */
std::string Group::TextOf(int rank, const std::string& cause) const {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  const StepReached told{peer.request.load(), peer.step.load()};
  const StepReached reached = peer.page == nullptr ? told : peer.page->page().reached();
  return NameOf(rank) + " " + cause + LastStep(reached);
}

/*! \brief Of a rank on this machine that failed or died; "": none has. Any thread. */
std::string Group::TextOfFallen() const {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const OtherPage* other = peers_[static_cast<size_t>(rank)].page.get();
    if (other == nullptr) continue;
    const bool is_dead = other->IsDead();  // before its state: what it said it said alive
    const uint32_t state = other->page().state.load();
    if (state == RankPage::kFailed) return other->page().text;
    if (state == RankPage::kHere && is_dead) {
      return TextOf(rank, std::string(kDied) + "its process " + std::to_string(other->pid()) +
                              " ended without a word (killed, crashed or left)");
    }
  }
  return "";
}

/*! \brief Of a rank that has been silent for longer; "": none has. Any thread. */
std::string Group::TextOfSilent(int64_t silence_ns) const {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    const int64_t silent_ns = NowNs() - peer.heard_ns.load();
    if (rank == rank_ || peer.has_left.load() || silent_ns <= silence_ns) continue;
    return TextOf(rank, std::string(kSilent) + "nothing was heard of it for " +
                            std::to_string(silent_ns / 1'000'000) +
                            " ms (stopped, or its machine or network is gone)");
  }
  return "";
}

void Group::Keep(const std::string& text) noexcept {
  if (IsForked()) return;
  {
    const std::scoped_lock lock(failure_mutex_);
    if (has_failed_.load() || has_ended_.load()) return;
    try {
      failure_ = text;
    } catch (const std::bad_alloc&) {
      failure_ = "a fault";  // short enough for a string without memory of its own
    }
    has_failed_.store(true);
  }
  teller_.store(TellerOf(text));
  if (options_.tell) options_.tell(text, teller_.load() == rank_);
  own_page_.TellFailure(text);
  transport_->Abort(text);
}

/*!
 * \brief The one rank that shows a failure: the one that the text begins with, or the first other
 * one if that cannot.
 *
 * Found from the text, as ranks hear of a failure in different ways, and each only once; and from
 * who is there still: it may have died with the other, on a machine that is gone.
 */
int Group::TellerOf(const std::string& text) const {
  const int named = NamedBy(text);
  if (!IsMute(text)) return named;
  int rank = 0;
  while (rank < num_ranks_ && (rank == named || (rank != rank_ && IsGone(rank)))) ++rank;
  return rank < num_ranks_ ? rank : rank_;
}

/*! \brief Whether a rank died or is silent, as far as can be seen from here. */
bool Group::IsGone(int rank) const {
  if (!has_met_.load()) return false;
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  if (NowNs() - peer.heard_ns.load() > kSuspiciousNs) return true;
  return peer.page != nullptr && peer.page->IsDead() &&
         peer.page->page().state.load() == RankPage::kHere;
}

/*! \brief Until the rank that shows the failure has: a launcher ends it with this one. */
void Group::AwaitTeller() {
  const int teller = teller_.load();
  if (teller == rank_ || teller >= num_ranks_) return;
  const OtherPage* page = peers_[static_cast<size_t>(teller)].page.get();
  std::vector<const OtherPage*> pages;
  if (page != nullptr) pages.push_back(page);
  const int64_t end_ns = NowNs() + (page == nullptr ? kFarTellerNs : kTellerNs);
  while (NowNs() < end_ns) {
    // It says that it has failed once that is shown.
    if (page != nullptr && (page->page().state.load() != RankPage::kHere || page->IsDead())) return;
    WaitForPages(own_page_.page(), own_page_.page().calls.load(), pages, end_ns);
  }
}

std::string Group::LastStep(const StepReached& reached) const {
  if (reached.step < 0) return std::string(kLastStep) + "none";
  return std::string(kLastStep) + std::to_string(reached.step) + " of request " +
         std::to_string(reached.request);
}

/*! \brief "" before a program runs. */
std::string Group::LastOwnStep() {
  const std::scoped_lock lock(status_mutex_);
  return status_ ? LastStep(status_()) : "";
}

std::string Group::failure() const {
  const std::scoped_lock lock(failure_mutex_);
  return failure_;
}

void Group::CheckAlive() const {
  if (HasFailed()) throw Error(ErrorKind::kExecution, failure());
}

}  // namespace heteroplace::exec
