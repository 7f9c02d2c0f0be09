#include "parts/throughput/steady_state/improve.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>

#include "parts/throughput/steady_state/annealer.h"
#include "support/jobs.h"

namespace heteroplace::throughput {

namespace {

constexpr int kAnnealers = 2;
/*! \brief Rounds of the search; between them the annealers learn of each other. */
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

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/*! \brief Runs the annealers over all rounds. */
class Improver {
 public:
  Improver(const model::Problem& problem, const std::vector<std::vector<int>>& initial,
           const std::vector<std::vector<int>>& patterns, const ImproveOptions& options,
           const ImproveHook& hook)
      : data_(problem, patterns), options_(options), hook_(hook) {
    // One at a time: initial placements are many, and an annealer holds all of its loads.
    std::vector<Start> starts;
    for (const std::vector<int>& device : initial) {
      const Annealer annealer(data_, device, options.seed);
      starts.push_back({annealer.Promise(), Rank(annealer), &device});
    }
    std::ranges::stable_sort(starts,
                             [](const Start& a, const Start& b) { return a.promise < b.promise; });
    for (const Start& start : starts) Record(start.rank, *start.device);
    for (int annealer = 0; annealer < kAnnealers; ++annealer) {
      const Start& start = starts[static_cast<size_t>(annealer) % starts.size()];
      annealers_.push_back(std::make_unique<Annealer>(
          data_, *start.device, options.seed * kAnnealers + static_cast<uint64_t>(annealer)));
    }
  }

  ImproveOutcome Run() {
    for (int round = 0; round < kRounds && !stop_; ++round) {
      round_ = round;
      if (options_.threads > 1) {
        std::jthread other([this] { RunRound(1); });
        try {
          RunRound(0);
        } catch (...) {  // what the hook throws must not leave the other annealer running
          stop_ = true;
          throw;
        }
      } else {
        RunRound(0);
        RunRound(1);
      }
      for (const auto& annealer : annealers_) Record(Rank(*annealer), annealer->best());
      // In the last half the worse annealer goes on from the best of all.
      const int worse = Rank(*annealers_[0]) < Rank(*annealers_[1]) ? 1 : 0;
      for (int index = 0; index < kAnnealers; ++index) {
        const bool is_reset = index == worse && round + 1 >= kRounds / 2;
        annealers_[index]->Restart(is_reset ? best_ : annealers_[index]->best());
      }
    }
    return {best_, best_rank_.second, best_rank_.first, moves_, was_stopped_};
  }

 private:
  /*! \brief (violation, time per item): less is better. */
  using RankOf = std::pair<int64_t, int64_t>;
  /*! \brief An initial placement. */
  struct Start {
    double promise;
    RankOf rank;
    const std::vector<int>* device;
  };

  static RankOf Rank(const Annealer& annealer) {
    return {annealer.best_violation(), annealer.best_ns()};
  }

  /*! \brief Keeps a placement if it is the best of all. */
  void Record(const RankOf& rank, const std::vector<int>& device) {
    if (!best_.empty() && rank >= best_rank_) return;
    best_ = device;
    best_rank_ = rank;
  }

  void RunRound(int index) {
    Annealer& annealer = *annealers_[static_cast<size_t>(index)];
    const double part = static_cast<double>(round_) / (kRounds - 1);
    const int squarings =
        kFirstSquarings + static_cast<int>(part * (kLastSquarings - kFirstSquarings));
    const double temperature =
        round_ + 1 == kRounds ? 0.0 : kFirstTemperature * std::pow(kCooling, part);
    annealer.SetPhase(squarings, temperature);
    // Each annealer has its share of the moves and of the time, whatever the number of threads.
    const int64_t limit =
        options_.max_moves < 0 ? -1 : options_.max_moves / (int64_t{kAnnealers} * kRounds);
    const bool is_alone = options_.threads <= 1;
    const double share = (round_ * kAnnealers + (is_alone ? index + 1 : kAnnealers)) /
                         static_cast<double>(kRounds * kAnnealers);
    const double deadline_s = options_.time_limit_s * share;
    for (int64_t done = 0; limit < 0 || done < limit;) {
      if (stop_ || SecondsSince(begin_) > deadline_s) return;
      if (annealer.best_violation() == 0 && annealer.best_ns() <= options_.bound_ns) return;
      const int64_t slice = limit < 0 ? kSlice : std::min(kSlice, limit - done);
      annealer.Try(slice);
      done += slice;
      moves_ += slice;
      if (index == 0 || is_alone) AskHook(annealer);
    }
  }

  /*! \brief Only one thread at a time gets here: the caller's. */
  void AskHook(const Annealer& annealer) {
    if (!hook_ || SecondsSince(asked_) < kHookSeconds) return;
    asked_ = Clock::now();
    if (hook_(moves_, annealer.best_violation() == 0 ? annealer.best_ns() : -1)) {
      was_stopped_ = true;
      stop_ = true;
    }
  }

  const AnnealingData data_;
  const ImproveOptions& options_;
  const ImproveHook& hook_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point asked_ = begin_;
  std::vector<std::unique_ptr<Annealer>> annealers_;
  std::vector<int> best_;          // of all initial solutions and annealers
  RankOf best_rank_{};             // its (violation, time per item)
  int round_ = 0;                  // written between the rounds only
  std::atomic<int64_t> moves_{0};  // both threads
  std::atomic<bool> stop_{false};  // both threads
  bool was_stopped_ = false;
};

}  // namespace

ImproveOutcome Improve(const model::Problem& problem, const std::vector<std::vector<int>>& initial,
                       const std::vector<std::vector<int>>& patterns, const ImproveOptions& options,
                       const ImproveHook& hook) {
  return Improver(problem, initial, patterns, options, hook).Run();
}

}  // namespace heteroplace::throughput
