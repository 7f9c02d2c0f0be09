// Ranks as threads of this process: what a group agrees on, how it fails, how it ends.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "dead_rank.h"
#include "interrupt.h"
#include "parts/hosts/clock_tie.h"
#include "parts/hosts/group.h"
#include "parts/hosts/order_messages.h"
#include "parts/hosts/packed.h"
#include "parts/hosts/patience.h"
#include "parts/hosts/transports/local_transport.h"
#include "silent_ranks.h"
#include "support/error.h"

namespace heteroplace::test {

using exec::Group;
using exec::GroupOptions;
using exec::Limit;

constexpr int64_t kSecondNs = 1'000'000'000;

/*! \brief No wait in here is meant to take as long. */
Limit Patiently() { return Limit{}.Within(60 * kSecondNs); }

/*! \brief What was shown to the user, of all ranks. */
struct Told {
  std::mutex mutex;
  std::vector<std::string> lines;  // guarded by mutex

  std::vector<std::string> Take() {
    const std::lock_guard lock(mutex);
    return std::move(lines);
  }
};

/*! \brief A receive that writes to its bytes until it is complete or gone, as one of MPI may. */
class RestlessReceive : public exec::Message {
 public:
  RestlessReceive(std::unique_ptr<exec::Message> inner, void* data, int64_t bytes)
      : inner_(std::move(inner)), data_(data), bytes_(static_cast<size_t>(bytes)) {}
  ~RestlessReceive() override {
    if (is_in_flight_ && bytes_ > 0) std::memset(data_, 0, bytes_);
  }
  void Start() override {
    inner_->Start();
    is_in_flight_ = true;
  }
  bool Test() override {
    is_in_flight_ = !inner_->Test();
    return !is_in_flight_;
  }

 private:
  std::unique_ptr<exec::Message> inner_;
  void* data_;
  size_t bytes_;
  bool is_in_flight_ = false;
};

/*! \brief A transport of such receives. */
class RestlessTransport : public exec::Transport {
 public:
  explicit RestlessTransport(std::unique_ptr<exec::Transport> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int num_ranks() const override { return inner_->num_ranks(); }
  std::string name() const override { return inner_->name(); }
  std::unique_ptr<exec::Message> MakeSend(exec::Plane plane, int peer, int64_t tag,
                                          const void* data, int64_t bytes) override {
    return inner_->MakeSend(plane, peer, tag, data, bytes);
  }
  std::unique_ptr<exec::Message> MakeReceive(exec::Plane plane, int peer, int64_t tag, void* data,
                                             int64_t bytes) override {
    return std::make_unique<RestlessReceive>(inner_->MakeReceive(plane, peer, tag, data, bytes),
                                             data, bytes);
  }
  void Abort(const std::string& reason) noexcept override { inner_->Abort(reason); }

 private:
  std::unique_ptr<exec::Transport> inner_;
};

/*! \brief Runs a function on each rank, in a thread; returns what each threw, "" for nothing. */
std::vector<std::string> OnRanks(int num_ranks, const exec::LocalOptions& local, Told* told,
                                 const std::function<void(std::shared_ptr<Group>)>& work,
                                 int64_t silence_ns = 60 * kSecondNs) {
  auto transports = exec::MakeLocalTransports(num_ranks, local);
  std::vector<std::string> faults(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      GroupOptions options;
      options.silence_ns = silence_ns;
      options.tell = [told](const std::string& text, bool is_first) {
        if (!is_first) return;
        // The others are ready to leave by then.
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const std::lock_guard lock(told->mutex);
        told->lines.push_back(text);
      };
      const auto place = static_cast<size_t>(rank);
      try {
        work(Group::Meet(std::make_shared<RestlessTransport>(std::move(transports[place])), options,
                         Patiently()));
      } catch (const Error& error) {
        faults[place] = error.what();
        // A rank that has failed leaves when that is shown, not before: a launcher then ends all.
        const std::lock_guard lock(told->mutex);
        CHECK(!told->lines.empty());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return faults;
}

exec::LocalOptions RandomOptions(Random& random) {
  return {static_cast<uint64_t>(random.Below(1 << 20)), random.Below(2) * 20'000,
          random.Below(2) != 0};
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void CheckExchange(Random& random) {
  const int num_ranks = 1 + random.Below(4);
  Told told;
  std::vector<size_t> lengths;
  for (int rank = 0; rank < num_ranks; ++rank) {
    lengths.push_back(static_cast<size_t>(random.Below(3) * random.Below(5000)));
  }
  const auto faults =
      OnRanks(num_ranks, RandomOptions(random), &told, [&](std::shared_ptr<Group> group) {
        const auto text_of = [&](int rank) {
          return std::string(lengths[static_cast<size_t>(rank)], static_cast<char>('a' + rank));
        };
        const auto texts = group->Exchange(text_of(group->rank()), Patiently());
        for (int rank = 0; rank < num_ranks; ++rank) {
          CHECK(texts[static_cast<size_t>(rank)] == text_of(rank));
          CHECK(group->IsHere(rank));
        }
        group->Agree({{"file", "f"}}, "", Patiently());
        group->End();
      });
  for (const std::string& fault : faults) CHECK_EQ(fault, std::string());
  CHECK(told.Take().empty());
}

/*! \brief Checks that all failed of one text, and that it was shown once. */
std::string OneText(const std::vector<std::string>& faults, Told* told) {
  for (const std::string& fault : faults) CHECK_EQ(fault, faults[0]);
  const std::vector<std::string> lines = told->Take();
  CHECK_EQ(lines.size(), size_t{1});
  CHECK_EQ(lines[0], faults[0]);
  return faults[0];
}

void CheckDisagreement(Random& random) {
  const int num_ranks = 2 + random.Below(3);
  const int odd = random.Below(num_ranks);
  const bool is_fault = random.Below(2) == 0;
  Told told;
  const auto faults =
      OnRanks(num_ranks, RandomOptions(random), &told, [&](std::shared_ptr<Group> group) {
        const bool is_odd = group->rank() == odd;
        group->Agree({{"version", "1"}, {"file", is_odd && !is_fault ? "g" : "f"}},
                     is_odd && is_fault ? "no such file" : "", Patiently());
      });
  const std::string text = OneText(faults, &told);
  if (is_fault) {
    CHECK(text.rfind("rank " + std::to_string(odd) + " (on ", 0) == 0);
    CHECK(Has(text, "no such file"));
  } else {
    CHECK(Has(text, "has file f, where rank 0") || Has(text, "has file g, where rank 0"));
  }
}

/*! \brief A rank that fails in words, and one that is gone without any. */
void CheckFailure(Random& random) {
  const int num_ranks = 2 + random.Below(3);
  const int bad = random.Below(num_ranks);
  const bool has_words = random.Below(2) == 0;
  Told told;
  const auto faults =
      OnRanks(num_ranks, RandomOptions(random), &told, [&](std::shared_ptr<Group> group) {
        std::vector<std::string> names;
        std::vector<int> order;
        for (int rank = 0; rank < num_ranks; ++rank) {
          names.push_back("h" + std::to_string(rank));
          order.push_back(num_ranks - 1 - rank);
        }
        group->SetHosts(names, order);
        group->SetStatus([] { return exec::StepReached{7, 3}; });
        group->Agree({}, "", Patiently());
        if (group->rank() == bad) {
          if (has_words) group->Fail("a kernel failed");
          return;  // leaves before the end
        }
        exec::LookUntil(Patiently(), 0, [&] { return group->HasFailed(); });
        group->CheckAlive();
      });
  std::vector<std::string> others = faults;
  others.erase(others.begin() + bad);
  const std::string text = OneText(others, &told);
  const std::string host = std::to_string(num_ranks - 1 - bad);
  CHECK(text.rfind("rank " + std::to_string(bad) + " (host 'h" + host + "' on ", 0) == 0);
  CHECK(Has(text, has_words ? "a kernel failed" : "left the job before"));
  CHECK(Has(text, "last finished step: 3 of request 7"));
}

/*! \brief Others are told of a rank that does not answer; here it never begins to watch. */
void CheckAbort(Random& random) {
  const int num_ranks = 2 + random.Below(3);
  const int bad = random.Below(num_ranks);
  Told told;
  const auto faults =
      OnRanks(num_ranks, RandomOptions(random), &told, [&](std::shared_ptr<Group> group) {
        std::vector<std::string> names(static_cast<size_t>(num_ranks), "h");
        std::vector<int> order;
        for (int rank = 0; rank < num_ranks; ++rank) order.push_back(rank);
        group->SetHosts(names, order);
        group->Agree({}, "", Patiently());
        const auto transport = group->HostTransport();
        CHECK_EQ(transport->rank(), group->rank());
        if (group->rank() == bad) transport->Abort("the network's reason");
        exec::LookUntil(Patiently(), 0, [&] { return group->HasFailed(); });
        group->CheckAlive();
      });
  CHECK(Has(OneText(faults, &told), "the network's reason"));
}

void CheckOrders(Random& random) {
  const int num_ranks = 2 + random.Below(3);
  const int feeding = random.Below(num_ranks);
  const int64_t num_orders = 1 + random.Below(300);
  Told told;
  const auto faults =
      OnRanks(num_ranks, RandomOptions(random), &told, [&](std::shared_ptr<Group> group) {
        if (group->rank() == feeding) {
          exec::OrderSender sender(group.get());
          for (int64_t i = 0; i < num_orders; ++i) sender.Send({exec::Order::kRun, i});
          for (int rank = 0; rank < num_ranks; ++rank) {
            if (rank == feeding) continue;
            const exec::ClockTie tie = exec::TieClock(group.get(), rank, Patiently());
            CHECK(std::abs(tie.ahead_ns) <= tie.uncertainty_ns);  // it is one clock
            const std::string bytes = group->Receive(rank, exec::ControlTag::kReply, Patiently());
            CHECK(exec::UnpackedNumbers(bytes) == std::vector<int64_t>(3, rank));
          }
          sender.Flush(exec::kNever);
        } else {
          exec::OrderReceiver receiver(group.get(), feeding);
          exec::Order order;
          for (int64_t i = 0; i < num_orders; ++i) {
            exec::LookUntil(Patiently(), 0, [&] { return receiver.Take(&order); });
            CHECK_EQ(order.count, i);
          }
          exec::AnswerClock(group.get(), feeding, Patiently());
          const std::vector<int64_t> numbers(3, group->rank());
          group->Send(feeding, exec::ControlTag::kReply, exec::Packed(numbers), Patiently());
        }
        group->End();
        group->Exchange("", Patiently());  // a receiver is not destroyed before its last order
      });
  for (const std::string& fault : faults) CHECK_EQ(fault, std::string());
}

/*! \brief Others are told that bytes come, which do not: who gives them up has them until then. */
void CheckBytesThatDoNotCome(Random& random) {
  const bool is_exchange = random.Below(2) == 0;
  Told told;
  const auto faults = OnRanks(2, RandomOptions(random), &told, [&](std::shared_ptr<Group> group) {
    if (group->rank() == 0) {
      const Limit limit = Limit{}.Within(kSecondNs / 5);
      is_exchange ? static_cast<void>(group->Exchange("", limit))
                  : static_cast<void>(group->Receive(1, exec::ControlTag::kReply, limit));
      CHECK(false);
    }
    const int64_t length = 1000;
    int64_t others = 0;
    std::vector<std::unique_ptr<exec::Message>> messages;
    if (is_exchange) {
      messages.push_back(group->MakeReceive(0, exec::ControlTag::kLength, &others, sizeof(others)));
    }
    const auto tag = is_exchange ? exec::ControlTag::kLength : exec::ControlTag::kReplyLength;
    messages.push_back(group->MakeSend(0, tag, &length, sizeof(length)));
    group->Complete(messages, Patiently());
    exec::LookUntil(Patiently(), 0, [&] { return group->HasFailed(); });
    group->CheckAlive();
  });
  CHECK(Has(OneText(faults, &told), "waited for other ranks for its whole limit"));
}

/*! \brief Clocks that are not tied to the end, on either side, end the job: the other side waits.
 */
void CheckInterruptedClocks(Random& random) {
  const bool asks = random.Below(2) == 0;
  Told told;
  std::string text;
  const auto faults = OnRanks(2, RandomOptions(random), &told, [&](std::shared_ptr<Group> group) {
    if (group->rank() == 0) {
      Limit limit = Patiently();
      limit.hook = [] { throw Interrupt(); };
      bool is_interrupted = false;
      try {
        asks ? static_cast<void>(exec::TieClock(group.get(), 1, limit))
             : exec::AnswerClock(group.get(), 1, limit);
      } catch (const Interrupt&) {
        is_interrupted = true;
      }
      CHECK(is_interrupted && group->HasFailed());
      text = group->failure();
    } else {
      exec::LookUntil(Patiently(), 0, [&] { return group->HasFailed(); });
    }
    group->CheckAlive();
  });
  CHECK_EQ(OneText(faults, &told), text);
  CHECK(Has(text, "rank 0") && Has(text, "interrupted"));
}

/*! \brief Times of a clock that runs too fast by a part, between two ties. */
void CheckOwnTime(Random& random) {
  const int64_t ahead_ns = random.Below(1'000'000) - 500'000;
  const double rate = 1 + (random.Unit() - 0.5) * 1e-4;
  const auto other = [&](int64_t own_ns) {
    return static_cast<int64_t>(static_cast<double>(own_ns) * rate) + ahead_ns;
  };
  const auto tie = [&](int64_t own_ns) {
    return exec::ClockTie{own_ns, other(own_ns) - own_ns, 10};
  };
  const exec::OwnTime own_time(tie(1'000'000), tie(9'000'000'000));
  for (int i = 0; i < 100; ++i) {
    const int64_t own_ns = 1'000'000 + static_cast<int64_t>(random.Unit() * 8'000'000'000);
    // The rate is taken over the other's length, which differs by 1e-4 of a drift of 1e-4.
    CHECK(std::abs(own_time(other(own_ns)) - own_ns) <= 100);
  }
}

void CheckPacked(Random& random) {
  exec::Trace trace;
  trace.origin_ns = random.Below(1000);
  trace.num_dropped = random.Below(3);
  for (int i = random.Below(20); i > 0; --i) {
    trace.events.push_back({i, 1, 2, 3, random.Below(2) != 0, 4, 5, random.Below(9)});
  }
  for (int i = random.Below(4); i > 0; --i) trace.requests.push_back({i, 0, i == 2, 5, 6});
  const std::string bytes = exec::Packed(trace);
  CHECK(exec::Packed(exec::UnpackedTrace(bytes)) == bytes);
  bool is_refused = false;
  try {
    exec::UnpackedTrace(bytes.substr(0, bytes.size() - 1));
  } catch (const Error&) {
    is_refused = true;
  }
  CHECK(is_refused);
}

}  // namespace heteroplace::test

int main() {
  using namespace heteroplace::test;
  ForSeeds("exchange", 64, CheckExchange);
  ForSeeds("disagreement", 64, CheckDisagreement);
  ForSeeds("failure", 64, CheckFailure);
  ForSeeds("abort", 64, CheckAbort);
  ForSeeds("orders", 64, CheckOrders);
  ForSeeds("bytes that do not come", 2 * Stride(), CheckBytesThatDoNotCome);
  ForSeeds("interrupted clocks", 2 * Stride(), CheckInterruptedClocks);
  ForSeeds("the dead at the end", Stride(), TheDeadAreNotWaitedForAtTheEnd);
  ForSeeds("failures of one's own", Stride(), AFailureOfOnesOwnIsNoSilence);
  ForSeeds("silent tellers", Stride(), ASilentRankTellsNothing);
  ForSeeds("own time", 64, CheckOwnTime);
  ForSeeds("packed", 64, CheckPacked);
  return 0;
}
