// A rank that meets another one by hand, and then dies as a process that is killed does.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "check.h"
#include "parts/hosts/group.h"
#include "parts/hosts/patience.h"
#include "parts/hosts/transports/local_transport.h"
#include "parts/hosts/transports/rank_page.h"

namespace heteroplace::test {

/*! \brief Only a failure takes as long. */
inline exec::Limit Shortly() { return exec::Limit{}.Within(20'000'000'000); }

/*! \brief Bytes to the other of two ranks, and as many or others from it. */
inline void Swap(exec::Transport* transport, exec::ControlTag tag, const std::string& own,
                 std::string* other) {
  const int peer = 1 - transport->rank();
  const auto number = static_cast<int64_t>(tag);
  const auto bytes = [](const std::string& text) { return static_cast<int64_t>(text.size()); };
  const auto receive =
      transport->MakeReceive(exec::Plane::kControl, peer, number, other->data(), bytes(*other));
  const auto send =
      transport->MakeSend(exec::Plane::kControl, peer, number, own.data(), bytes(own));
  receive->Start();
  send->Start();
  bool is_received = false, is_sent = false;
  CHECK(exec::LookUntil(Shortly(), 0, [&] {
    is_received = is_received || receive->Test();
    is_sent = is_sent || send->Test();
    return is_received && is_sent;
  }));
}

/*! \brief As Group::Exchange, of two ranks. */
inline std::string ExchangeByHand(exec::Transport* transport, const std::string& own) {
  int64_t length = static_cast<int64_t>(own.size());
  std::string lengths(sizeof(length), '\0');
  Swap(transport, exec::ControlTag::kLength,
       std::string(reinterpret_cast<const char*>(&length), sizeof(length)), &lengths);
  std::memcpy(&length, lengths.data(), sizeof(length));
  std::string text(static_cast<size_t>(length), '\0');
  Swap(transport, exec::ControlTag::kBytes, own, &text);
  return text;
}

/*! \brief Once the job is over a rank ends to watch one that died, and does not wait for ever. */
inline void TheDeadAreNotWaitedForAtTheEnd(Random& random) {
  auto transports = exec::MakeLocalTransports(2, {random.Next(), 0, random.Below(2) != 0});
  std::atomic<bool> has_ended{false}, is_looked_at{false};
  std::thread dying([&] {
    exec::OwnPage page;
    std::atomic<bool> is_held{false};
    std::thread holder([&] {
      page.Hold();
      is_held.store(true);
      exec::LookUntil(Shortly(), 0, [&] { return has_ended.load(); });
    });  // ends without a Release
    exec::LookUntil(Shortly(), 0, [&] { return is_held.load(); });
    const std::string own = std::string("machine") + '\0' + page.address() + '\0';
    const std::string record = ExchangeByHand(transports[1].get(), own);
    ExchangeByHand(transports[1].get(), "");
    const size_t begin = record.find('\0') + 1;
    const auto other = exec::OtherPage::Open(record.substr(begin, record.size() - begin - 1));
    holder.join();
    CHECK(other != nullptr);
    CHECK(exec::LookUntil(Shortly(), 0,
                          [&] { return other->page().state.load() == exec::RankPage::kLeft; }));
    is_looked_at.store(true);
  });
  const auto group = exec::Group::Meet(std::move(transports[0]), {}, Shortly());
  group->End();
  has_ended.store(true);
  exec::LookUntil(Shortly(), 0, [&] { return is_looked_at.load(); });
  dying.join();
}

}  // namespace heteroplace::test
