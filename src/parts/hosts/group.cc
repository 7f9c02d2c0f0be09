#include "parts/hosts/group.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>
#include <system_error>

#include "parts/hosts/patience.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief What a rank that leaves waits for the others to say goodbye. */
constexpr int64_t kGoodbyeNs = 1'000'000'000;

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
    beater_ = std::thread([this] { ExchangeBeats(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::kExecution,
                std::string("cannot start the threads that watch the ranks: ") + error.what());
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
    // The threads are in the parent alone: here they can neither end nor be waited for.
    for (std::thread* thread : {&watcher_, &beater_}) {
      static_cast<void>(std::make_unique<std::thread>(std::move(*thread)).release());
    }
    return;
  }
  if (watcher_.joinable()) {
    if (!has_ended_.load()) {
      Fail(NameOf(rank_) + " left the job before the rank that feeds it had ended it");
    }
    leave_ns_.store(NowNs() + kGoodbyeNs);
    is_leaving_.store(true);
    own_page_.WakeOwner();
    if (beater_.joinable()) beater_.join();
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
  const std::scoped_lock lock(names_mutex_);
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
  all.reserve(records.size());
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
  const std::scoped_lock lock(names_mutex_);
  hosts_ = std::move(hosts);
  order_ = std::move(order);
}

int Group::RankOf(int host) const {
  return static_cast<int>(std::ranges::find(order_, host) - order_.begin());
}

std::shared_ptr<Transport> Group::HostTransport() {
  std::vector<int> ranks;
  ranks.reserve(num_ranks_);
  for (int host = 0; host < num_ranks_; ++host) ranks.push_back(RankOf(host));
  // What it is given to may live longer than the group.
  return std::make_shared<SharedTransport>(
      transport_, std::move(ranks),
      [group = weak_from_this()](const std::string& reason, bool is_waiting) {
        const std::shared_ptr<Group> self = group.lock();
        if (self != nullptr) is_waiting ? self->FailWaiting(reason) : self->Fail(reason);
      });
}

void Group::SetStatus(std::function<StepReached()> status) {
  const std::scoped_lock lock(status_mutex_);
  status_ = std::move(status);
}

void Group::End() {
  if (IsForked()) return;
  has_ended_.store(true);
  own_page_.WakeOwner();
}

}  // namespace heteroplace::exec
