#include "exec/engine/mode_chooser.h"

#include <algorithm>
#include <utility>

namespace heteroplace::exec {

void ModeChooser::Record(Mode mode, int64_t ns) {
  if (mode != next()) return;
  total_ns_ += ns;
  ++num_requests_;
  left_ns_ -= is_trial_ ? 0 : ns;
  if (total_ns_ < kWindowNs) return;
  const int64_t num_requests = std::exchange(num_requests_, 0);
  const double mean_ns =
      static_cast<double>(std::exchange(total_ns_, 0)) / static_cast<double>(num_requests);
  double& best_ns = BestOf(mode);
  best_ns = best_ns == 0 ? mean_ns : std::min(best_ns, mean_ns);
  if (is_trial_) return EndTrial(mean_ns, num_requests);
  recent_ns_ = recent_ns_ == 0 ? mean_ns : (recent_ns_ + mean_ns) / 2;
  is_trial_ = left_ns_ <= 0 && BestOf(Other(mode)) < (1 - kMinGain) * recent_ns_;
}

void ModeChooser::EndTrial(double mean_ns, int64_t num_requests) {
  is_trial_ = false;
  const double lost_ns = (mean_ns - recent_ns_) * static_cast<double>(num_requests);
  left_ns_ =
      std::clamp(static_cast<int64_t>(lost_ns / kTrialShare), kMinPatienceNs, kMaxPatienceNs);
  if (mean_ns >= (1 - kMinGain) * recent_ns_) return;
  mode_ = Other(mode_);
  recent_ns_ = mean_ns;
  ++num_changes_;
}

}  // namespace heteroplace::exec
