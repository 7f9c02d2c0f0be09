#include "exec/net/group.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>
#include <system_error>

#include "exec/net/patience.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief How a text begins that says already whose failure it is. */
constexpr std::string_view kRankWord = "rank ";

/*! \brief How it goes on after the name of one that cannot tell it itself. */
constexpr std::string_view kDied = "died: ";
constexpr std::string_view kSilent = "does not answer: ";

/*! \brief What a rank that leaves waits for the others to say goodbye. */
constexpr int64_t kGoodbyeNs = 1'000'000'000;

/*! \brief What a rank that fails waits for one on another machine to show why. */
constexpr int64_t kFarTellerNs = 100'000'000;

/*! \brief A rank that is silent for longer is named where another one fails: some beats. */
constexpr int64_t kSuspiciousNs = 600'000'000;

constexpr std::string_view kLastStep = "; last finished step: ";

/*!
 * \brief The one rank that shows a failure: the one that the text begins with, or another one if
 * that cannot, or the first.
 *
 * Found from the text alone, as ranks hear of a failure in different ways, and each only once.
 */
int TellerOf(const std::string& text) {
  if (text.compare(0, kRankWord.size(), kRankWord) != 0) return 0;
  const int rank = std::atoi(text.c_str() + kRankWord.size());
  const size_t end = text.find(") ");
  if (end == std::string::npos) return rank;
  const std::string_view rest = std::string_view(text).substr(end + 2);
  const bool is_gone =
      rest.substr(0, kDied.size()) == kDied || rest.substr(0, kSilent.size()) == kSilent;
  if (!is_gone) return rank;
  return rank == 0 ? 1 : 0;
}

std::string NodeName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

/*! \brief Texts joined so that they can be told apart again. */
std::string Packed(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) packed += text + '\0';
  return packed;
}

std::vector<std::string> Unpacked(const std::string& packed) {
  std::vector<std::string> texts;
  for (size_t at = 0; at < packed.size();) {
    const size_t end = packed.find('\0', at);
    texts.push_back(packed.substr(at, end - at));
    at = end == std::string::npos ? packed.size() : end + 1;
  }
  return texts;
}

}  // namespace

Group::Group(std::shared_ptr<Transport> transport, GroupOptions options)
    : options_(std::move(options)),
      rank_(transport->rank()),
      num_ranks_(transport->num_ranks()),
      transport_name_(transport->name()),
      peers_(static_cast<size_t>(num_ranks_)) {
  transport_ = std::make_shared<LockedTransport>(std::move(transport));
}

std::shared_ptr<Group> Group::Meet(std::shared_ptr<Transport> transport, GroupOptions options,
                                   const Limit& limit) {
  std::shared_ptr<Group> group(new Group(std::move(transport), std::move(options)));
  group->MeetOthers(limit);
  return group;
}

void Group::MeetOthers(const Limit& limit) {
  // Who has this rank's page can see it die: it is held before anybody is told of it.
  try {
    watcher_ = std::thread([this] { Watch(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::kExecution,
                std::string("cannot start the thread that watches the ranks: ") + error.what());
  }
  is_held_.wait(false);
  const auto records = Exchange(Packed({NodeName(), own_page_.address()}), limit);
  for (int rank = 0; rank < num_ranks_; ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    const std::vector<std::string> record = Unpacked(records[static_cast<size_t>(rank)]);
    peer.machine = record.at(0);
    if (rank == rank_) continue;
    peer.page = OtherPage::Open(record.at(1));
    peer.send = MakeSend(rank, ControlTag::kBeat, &peer.to, sizeof(Beat));
    peer.receive = MakeReceive(rank, ControlTag::kBeat, &peer.from, sizeof(Beat));
    peer.heard_ns.store(NowNs());
  }
  last_beat_ns_ = NowNs();
  has_met_.store(true);
  own_page_.WakeOwner();
  // Pages are found by the process that shows them: nobody goes before all have looked.
  Exchange("", limit);
}

Group::~Group() {
  if (IsForked()) {
    // The thread is in the parent alone: here it can neither end nor be waited for.
    static_cast<void>(std::make_unique<std::thread>(std::move(watcher_)).release());
    return;
  }
  if (watcher_.joinable()) {
    if (!has_ended_.load()) {
      Fail(NameOf(rank_) + " left the job before the rank that feeds it had ended it");
    }
    leave_ns_.store(NowNs() + kGoodbyeNs);
    is_leaving_.store(true);
    own_page_.WakeOwner();
    watcher_.join();
  }
  if (options_.tell && HasFailed()) AwaitTeller();
  for (Peer& peer : peers_) {
    if (peer.is_sending && !HasFailed()) transport_->Abort("the job has ended");
  }
}

bool Group::IsHere(int rank) const {
  return rank == rank_ || peers_[static_cast<size_t>(rank)].page != nullptr;
}

std::string Group::NameOf(int rank) const {
  const std::lock_guard lock(names_mutex_);
  std::string name = std::string(kRankWord) + std::to_string(rank) + " (";
  if (!order_.empty()) {
    const auto host = static_cast<size_t>(order_[static_cast<size_t>(rank)]);
    name += "host '" + hosts_[host] + "' ";
  }
  return name + "on " + peers_[static_cast<size_t>(rank)].machine + ")";
}

std::vector<std::string> Group::Exchange(const std::string& own, const Limit& limit) {
  std::vector<int64_t> lengths(static_cast<size_t>(num_ranks_));
  const auto own_length = static_cast<int64_t>(own.size());
  std::vector<std::string> texts(static_cast<size_t>(num_ranks_));
  std::vector<std::unique_ptr<Message>> messages;  // before the bytes, which they may still write
  const auto for_others = [&](const auto& make) {
    for (int rank = 0; rank < num_ranks_; ++rank) {
      if (rank != rank_) make(rank, static_cast<size_t>(rank));
    }
  };
  for_others([&](int rank, size_t at) {
    messages.push_back(MakeReceive(rank, ControlTag::kLength, &lengths[at], sizeof(int64_t)));
    messages.push_back(MakeSend(rank, ControlTag::kLength, &own_length, sizeof(int64_t)));
  });
  Complete(messages, limit);
  messages.clear();
  texts[static_cast<size_t>(rank_)] = own;
  for_others([&](int rank, size_t at) {
    texts[at].resize(static_cast<size_t>(lengths[at]));
    messages.push_back(MakeReceive(rank, ControlTag::kBytes, texts[at].data(), lengths[at]));
    messages.push_back(MakeSend(rank, ControlTag::kBytes, own.data(), own_length));
  });
  Complete(messages, limit);
  return texts;
}

void Group::Agree(const std::vector<Term>& terms, const std::string& fault, const Limit& limit) {
  std::vector<std::string> own = {fault};
  for (const auto& [what, value] : terms) own.insert(own.end(), {what, value});
  const std::vector<std::string> records = Exchange(Packed(own), limit);
  std::string text;
  const auto add = [&](int rank, const std::string& what) {
    text += (text.empty() ? "" : "; ") + NameOf(rank) + what;
  };
  std::vector<std::vector<std::string>> all;
  for (const std::string& record : records) all.push_back(Unpacked(record));
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const std::string& its_fault = all[static_cast<size_t>(rank)].at(0);
    if (!its_fault.empty()) add(rank, ": " + its_fault);
  }
  for (int rank = 1; rank < num_ranks_ && text.empty(); ++rank) {
    const std::vector<std::string>& other = all[static_cast<size_t>(rank)];
    for (size_t i = 1; i + 1 < std::min(other.size(), all[0].size()); i += 2) {
      if (other[i + 1] == all[0][i + 1] && other[i] == all[0][i]) continue;
      add(rank, " has " + other[i] + " " + other[i + 1] + ", where " + NameOf(0) + " has " +
                    all[0][i + 1] + "; start all ranks with the same file, options and versions");
      break;
    }
  }
  if (text.empty()) return;
  Keep(text);
  throw Error(ErrorKind::kExecution, text);
}

void Group::FailAlike(const std::string& text) {
  Keep(text);
  throw Error(ErrorKind::kExecution, text);
}

void Group::SetHosts(std::vector<std::string> hosts, std::vector<int> order) {
  const std::lock_guard lock(names_mutex_);
  hosts_ = std::move(hosts);
  order_ = std::move(order);
}

int Group::RankOf(int host) const {
  return static_cast<int>(std::find(order_.begin(), order_.end(), host) - order_.begin());
}

std::shared_ptr<Transport> Group::HostTransport() {
  std::vector<int> ranks;
  for (int host = 0; host < num_ranks_; ++host) ranks.push_back(RankOf(host));
  // What it is given to may live longer than the group.
  return std::make_shared<SharedTransport>(transport_, std::move(ranks),
                                           [group = weak_from_this()](const std::string& reason) {
                                             if (const std::shared_ptr<Group> self = group.lock())
                                               self->Fail(reason);
                                           });
}

void Group::SetStatus(std::function<StepReached()> status) {
  const std::lock_guard lock(status_mutex_);
  status_ = std::move(status);
}

void Group::Fail(const std::string& text) noexcept {
  if (IsForked()) return;
  try {
    // Who meets an error as another rank is gone says that instead.
    std::string whole = TextOfFallen();
    if (whole.empty() && text.compare(0, kRankWord.size(), kRankWord) == 0) whole = text;
    // Nor is what came too late the fault of who waited for it.
    if (whole.empty() && has_met_.load()) whole = TextOfSilent(kSuspiciousNs);
    if (whole.empty()) whole = NameOf(rank_) + ": " + WithoutHost(text);
    const bool is_own = TellerOf(whole) == rank_ && whole.find(kLastStep) == std::string::npos;
    if (is_own) whole += LastOwnStep();
    Keep(whole);
  } catch (const std::bad_alloc&) {
    Keep(kMemoryIsShort);
  }
}

void Group::FailAsThrown() noexcept {
  std::string text;
  try {
    try {
      throw;
    } catch (const Error& error) {
      text = error.what();
    } catch (const std::bad_alloc&) {
      text = kMemoryIsShort;
    } catch (...) {
      text = "the call was interrupted";
    }
  } catch (const std::bad_alloc&) {
    text = kMemoryIsShort;  // short enough for a string without memory of its own
  }
  Fail(text);
}

/*! \brief Without the name of this rank's host that a program begins with. */
std::string Group::WithoutHost(const std::string& text) const {
  const std::lock_guard lock(names_mutex_);
  if (order_.empty()) return text;
  const int host = order_[static_cast<size_t>(rank_)];
  const std::string name = DescribeHost(hosts_[static_cast<size_t>(host)], host) + ": ";
  return text.compare(0, name.size(), name) == 0 ? text.substr(name.size()) : text;
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
    const std::lock_guard lock(failure_mutex_);
    if (has_failed_.load() || has_ended_.load()) return;
    try {
      failure_ = text;
    } catch (const std::bad_alloc&) {
      failure_ = "a fault";  // short enough for a string without memory of its own
    }
    has_failed_.store(true);
  }
  if (options_.tell) options_.tell(text, TellerOf(text) == rank_);
  own_page_.TellFailure(text);
  transport_->Abort(text);
}

/*! \brief Until the rank that shows the failure has: a launcher ends it with this one. */
void Group::AwaitTeller() {
  const int teller = TellerOf(failure());
  if (teller == rank_ || teller >= num_ranks_) return;
  const OtherPage* page = peers_[static_cast<size_t>(teller)].page.get();
  std::vector<const OtherPage*> pages;
  if (page != nullptr) pages.push_back(page);
  const int64_t end_ns = NowNs() + (page == nullptr ? kFarTellerNs : kGoodbyeNs);
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
  const std::lock_guard lock(status_mutex_);
  return status_ ? LastStep(status_()) : "";
}

std::string Group::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

void Group::CheckAlive() const {
  if (HasFailed()) throw Error(ErrorKind::kExecution, failure());
}

void Group::End() {
  if (IsForked()) return;
  has_ended_.store(true);
  own_page_.WakeOwner();
}

}  // namespace heteroplace::exec
