// Parallel or serial: which way of running a program is faster now, by the times of its runs.
//
// Where another program uses a core, a wait for that core may last some milliseconds, until the
// system takes it back. One thread alone is faster then, because the system moves it to a free
// core. The same usually holds if several requests are in flight. Nobody says when other programs
// come and go, so each way is tried now and then.
#pragma once

#include <cstdint>

namespace heteroplace::exec {

/*! \brief How a request is run. */
enum class Mode : uint8_t {
  /*! \brief Each worker does its part, as planned. */
  kParallel,
  /*! \brief One thread does all of it. */
  kSerial,
};

/*! \brief Which requests are serial. */
enum class SerialRule : uint8_t { kNever, kWhereFaster, kAlways };

/*!
 * \brief Chooses the mode of the next request by the mean times of both. Not thread-safe.
 *
 * Times are taken in windows of equal length. The other mode is tried for one window if its best
 * window so far beats the present ones by `kMinGain`. It is chosen if it beats both the windows
 * before the trial and the one after: the machine itself may be faster for a while. A plan that
 * runs as fast as ever thus has one trial, at the start. A trial that loses is followed by a pause:
 * its loss is `kTrialShare` of the time, unless that pause would exceed `kMaxPatienceNs`.
 */
class ModeChooser {
 public:
  /*! \brief Time of requests in a mean: several turns of the system's scheduler. Concurrent
   * requests end in groups, and need longer windows. */
  static constexpr int64_t kWindowNs = 20'000'000;
  static constexpr int64_t kLongWindowNs = 100'000'000;
  /*! \brief Time of requests between two trials, at least and at most. */
  static constexpr int64_t kMinPatienceNs = 40'000'000;
  static constexpr int64_t kMaxPatienceNs = 2'000'000'000;
  /*! \brief Part of the time that trials may lose. */
  static constexpr double kTrialShare = 0.01;
  /*! \brief Part of a mode's time that the other one must gain. */
  static constexpr double kMinGain = 0.05;

  /*! \param first the mode until the other one is faster. */
  explicit ModeChooser(Mode first = Mode::kParallel, int64_t window_ns = kWindowNs)
      : window_ns_(window_ns), mode_(first) {}

  /*! \brief The mode of the next request. */
  Mode next() const { return phase_ == Phase::kTrial ? Other(mode_) : mode_; }
  /*! \brief The one that was chosen last; trials are of the other one. */
  Mode chosen() const { return mode_; }
  /*! \brief How often the choice has changed. */
  int64_t num_changes() const { return num_changes_; }
  /*! \brief A request in a mode has taken `ns`; one that is not `next()` is not counted. */
  void Record(Mode mode, int64_t ns);

 private:
  static Mode Other(Mode mode) { return mode == Mode::kParallel ? Mode::kSerial : Mode::kParallel; }
  double& BestOf(Mode mode) { return best_ns_[static_cast<int>(mode)]; }
  static bool IsFaster(double one_ns, double other_ns) {
    return one_ns < (1 - kMinGain) * other_ns;
  }
  void SetPatience(double lost_ns);
  void Change();

  const int64_t window_ns_;
  Mode mode_;
  /*! \brief In a trial the other mode runs. After one that won, the chosen mode is checked again.
   */
  enum class Phase : uint8_t { kSteady, kTrial, kCheck };
  Phase phase_ = Phase::kSteady;
  double trial_ns_ = 0;  // mean of the last trial
  /*! \brief Best mean of each mode; 0: it was never tried, and may be the faster one. */
  double best_ns_[2] = {0, 0};
  /*! \brief Of the chosen mode, over the last windows; 0: there is none. */
  double recent_ns_ = 0;
  // Of the present window:
  int64_t total_ns_ = 0;
  int64_t num_requests_ = 0;
  /*! \brief Time until the next trial may come. */
  int64_t left_ns_ = kMinPatienceNs;
  int64_t num_changes_ = 0;
};

}  // namespace heteroplace::exec
