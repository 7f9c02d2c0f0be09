// Ranks of which nothing is heard: whose failure a job's then is, and who tells it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "dead_rank.h"
#include "parts/hosts/group.h"
#include "parts/hosts/patience.h"
#include "parts/hosts/transports/local_transport.h"

namespace heteroplace::test {

/*! \brief Longer than it takes for a rank to be suspected. */
constexpr int64_t kSilenceNs = 2'000'000'000;

/*!
 * \brief What the last rank shows to the user, while the watching threads of all others stand
 * still.
 * \param fail what it does once all are silent.
 * \param silence_ns a rank that is silent for longer has failed.
 */
inline std::string ToldByTheLast(int num_ranks, int64_t silence_ns,
                                 const std::function<void(exec::Group*)>& fail) {
  auto transports = exec::MakeLocalTransports(num_ranks, {});
  std::atomic<int> num_silent{0};
  std::atomic<bool> is_over{false};
  std::string told;  // of the last rank's threads, and of this one behind them
  std::mutex mutex;
  const auto be_silent = [&] {
    num_silent.fetch_add(1);
    while (!is_over.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return exec::StepReached{};
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const bool is_last = rank == num_ranks - 1;
      exec::GroupOptions options;
      if (is_last) options.silence_ns = silence_ns;
      options.tell = [&, is_last](const std::string& text, bool is_first) {
        const std::lock_guard lock(mutex);
        if (is_last && is_first) told = text;
      };
      const auto group =
          exec::Group::Meet(std::move(transports[static_cast<size_t>(rank)]), options, Shortly());
      if (is_last) {
        exec::LookUntil(Shortly(), 0, [&] { return num_silent.load() >= num_ranks - 1; });
        fail(group.get());
      } else {
        group->SetStatus(be_silent);
      }
      CHECK(exec::LookUntil(Shortly(), 0, [&] { return group->HasFailed(); }));
      is_over.store(true);
      group->SetStatus(nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return told;
}

/*! \brief What a rank failed of itself is told, whoever is silent meanwhile; what it waited for in
 * vain is the fault of the one that is. */
inline void AFailureOfOnesOwnIsNoSilence(Random&) {
  for (const bool is_waiting : {false, true}) {
    const std::string told = ToldByTheLast(2, 60'000'000'000, [&](exec::Group* group) {
      exec::LookUntil(exec::Limit{}.Within(kSilenceNs / 2), 0, [] { return false; });
      is_waiting ? group->FailWaiting("nothing came") : group->Fail("a kernel failed");
    });
    CHECK_EQ(told.rfind(is_waiting ? "rank 0 (on " : "rank 1 (on ", 0), size_t{0});
    CHECK(told.find(is_waiting ? ") does not answer: " : "): a kernel failed") !=
          std::string::npos);
  }
}

/*! \brief Where the rank that would tell of another one is as silent, the next one does. */
inline void ASilentRankTellsNothing(Random&) {
  const std::string told = ToldByTheLast(3, kSilenceNs, [](exec::Group*) {});
  CHECK(told.find(") does not answer: ") != std::string::npos);
}

}  // namespace heteroplace::test
