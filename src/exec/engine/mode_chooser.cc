#include "exec/engine/mode_chooser.h"

#include <algorithm>
#include <utility>

namespace heteroplace::exec {

void ModeChooser::Record(Mode mode, int64_t ns) {
  if (mode != next()) return;
  total_ns_ += ns;
  ++num_requests_;
  left_ns_ -= phase_ == Phase::kSteady ? ns : 0;
  if (total_ns_ < window_ns_) return;
  const int64_t num_requests = std::exchange(num_requests_, 0);
  const double mean_ns =
      static_cast<double>(std::exchange(total_ns_, 0)) / static_cast<double>(num_requests);
  double& best_ns = BestOf(mode);
  best_ns = best_ns == 0 ? mean_ns : std::min(best_ns, mean_ns);
  switch (phase_) {
    case Phase::kSteady:
      recent_ns_ = recent_ns_ == 0 ? mean_ns : (recent_ns_ + mean_ns) / 2;
      if (left_ns_ <= 0 && IsFaster(BestOf(Other(mode)), recent_ns_)) phase_ = Phase::kTrial;
      return;
    case Phase::kTrial:
      trial_ns_ = mean_ns;
      SetPatience((mean_ns - recent_ns_) * static_cast<double>(num_requests));
      phase_ = IsFaster(mean_ns, recent_ns_) ? Phase::kCheck : Phase::kSteady;
      return;
    case Phase::kCheck:
      phase_ = Phase::kSteady;
      recent_ns_ = mean_ns;
      if (IsFaster(trial_ns_, mean_ns)) Change();
      return;
  }
}

void ModeChooser::SetPatience(double lost_ns) {
  left_ns_ =
      std::clamp(static_cast<int64_t>(lost_ns / kTrialShare), kMinPatienceNs, kMaxPatienceNs);
}

void ModeChooser::Change() {
  mode_ = Other(mode_);
  recent_ns_ = trial_ns_;
  ++num_changes_;
}

}  // namespace heteroplace::exec
