#include "throughput/improve.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>

#include "throughput/annealer.h"

namespace heteroplace {

namespace {

constexpr int kChains = 2;
/*! \brief Rounds of the search; between them the chains learn of each other. */
constexpr int kRounds = 8;
/*! \brief log2 of the exponent of loads in the first and the last round. */
constexpr int kFirstSquarings = 4;
constexpr int kLastSquarings = 8;
/*! \brief Parts of the energy by which a move may be worse, in the first round; cooled until the
 * last but one, the last accepts none. */
constexpr double kFirstTemperature = 3e-3;
constexpr double kCooling = 1.0 / 30.0;
/*! \brief Moves between looks at the clock. */
constexpr int64_t kSlice = 256;
constexpr double kHookSeconds = 0.05;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/*! \brief Runs the chains over all rounds. */
class Improver {
 public:
  Improver(const Problem& problem, const std::vector<std::vector<int>>& starts,
           const std::vector<std::vector<int>>& patterns, const ImproveOptions& options,
           const ImproveHook& hook)
      : data_(problem, patterns), options_(options), hook_(hook) {
    std::vector<std::unique_ptr<Chain>> all;
    for (const std::vector<int>& start : starts) {
      all.push_back(std::make_unique<Chain>(data_, start, options.seed));
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a->Promise() < b->Promise(); });
    for (const auto& chain : all) Record(*chain);
    for (int chain = 0; chain < kChains; ++chain) {
      const auto& start = *all[static_cast<size_t>(chain) % all.size()];
      chains_.push_back(std::make_unique<Chain>(
          data_, start.best(), options.seed * kChains + static_cast<uint64_t>(chain)));
    }
  }

  ImproveOutcome Run() {
    for (int round = 0; round < kRounds && !stop_; ++round) {
      round_ = round;
      if (options_.threads > 1) {
        std::jthread other([this] { RunRound(1); });
        try {
          RunRound(0);
        } catch (...) {  // what the hook throws must not leave the other chain running
          stop_ = true;
          throw;
        }
      } else {
        RunRound(0);
        RunRound(1);
      }
      for (const auto& chain : chains_) Record(*chain);
      // In the last half the worse chain goes on from the best of all.
      const int worse = Rank(*chains_[0]) < Rank(*chains_[1]) ? 1 : 0;
      for (int index = 0; index < kChains; ++index) {
        const bool is_reset = index == worse && round + 1 >= kRounds / 2;
        chains_[index]->Restart(is_reset ? best_ : chains_[index]->best());
      }
    }
    return {best_, best_rank_.second, best_rank_.first, moves_, was_stopped_};
  }

 private:
  /*! \brief (violation, time per item): less is better. */
  static std::pair<int64_t, int64_t> Rank(const Chain& chain) {
    return {chain.best_violation(), chain.best_ns()};
  }

  /*! \brief Keeps the best placement of a chain if it is the best of all. */
  void Record(const Chain& chain) {
    if (!best_.empty() && Rank(chain) >= best_rank_) return;
    best_ = chain.best();
    best_rank_ = Rank(chain);
  }

  void RunRound(int index) {
    Chain& chain = *chains_[static_cast<size_t>(index)];
    const double part = static_cast<double>(round_) / (kRounds - 1);
    const int squarings =
        kFirstSquarings + static_cast<int>(part * (kLastSquarings - kFirstSquarings));
    const double temperature =
        round_ + 1 == kRounds ? 0.0 : kFirstTemperature * std::pow(kCooling, part);
    chain.SetPhase(squarings, temperature);
    // Each chain has its share of the moves and of the time, whatever the number of threads.
    const int64_t limit = options_.max_moves < 0 ? -1 : options_.max_moves / (kChains * kRounds);
    const bool is_alone = options_.threads <= 1;
    const double share = (round_ * kChains + (is_alone ? index + 1 : kChains)) /
                         static_cast<double>(kRounds * kChains);
    const double deadline_s = options_.time_limit_s * share;
    for (int64_t done = 0; limit < 0 || done < limit;) {
      if (stop_ || SecondsSince(begin_) > deadline_s) return;
      if (chain.best_violation() == 0 && chain.best_ns() <= options_.bound_ns) return;
      const int64_t slice = limit < 0 ? kSlice : std::min(kSlice, limit - done);
      chain.Try(slice);
      done += slice;
      moves_ += slice;
      if (index == 0 || is_alone) AskHook(chain);
    }
  }

  /*! \brief Only one thread at a time gets here: the caller's. */
  void AskHook(const Chain& chain) {
    if (!hook_ || SecondsSince(asked_) < kHookSeconds) return;
    asked_ = Clock::now();
    if (hook_(moves_, chain.best_violation() == 0 ? chain.best_ns() : -1)) {
      was_stopped_ = true;
      stop_ = true;
    }
  }

  const ChainData data_;
  const ImproveOptions& options_;
  const ImproveHook& hook_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point asked_ = begin_;
  std::vector<std::unique_ptr<Chain>> chains_;
  std::vector<int> best_;                    // of all starts and chains
  std::pair<int64_t, int64_t> best_rank_{};  // its (violation, time per item)
  int round_ = 0;                            // written between the rounds only
  std::atomic<int64_t> moves_{0};            // both threads
  std::atomic<bool> stop_{false};            // both threads
  bool was_stopped_ = false;
};

}  // namespace

ImproveOutcome Improve(const Problem& problem, const std::vector<std::vector<int>>& starts,
                       const std::vector<std::vector<int>>& patterns, const ImproveOptions& options,
                       const ImproveHook& hook) {
  return Improver(problem, starts, patterns, options, hook).Run();
}

}  // namespace heteroplace
