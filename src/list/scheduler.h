#pragma once

#include <string>
#include <string_view>

#include "list/watch.h"
#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*!
 * \brief A list scheduler that needs nothing but the problem, under its name.
 *
 * The constant that each file of such a scheduler defines makes it known; so a new one is one file.
 * The list is complete before `main`, and never changes after.
 */
class Scheduler {
 public:
  using MakePlan = model::NativePlan (*)(const model::Problem&, const Watch&);

  Scheduler(const char* name, MakePlan make_plan)
      : name_(name), make_plan_(make_plan), next_(first_) {
    first_ = this;
  }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /*! \brief The plan, which may overflow memories (`violation`). */
  model::NativePlan operator()(const model::Problem& problem, const Watch& watch) const {
    return make_plan_(problem, watch);
  }

  /*! \brief Throws kPlan if no scheduler is called so. */
  static const Scheduler& Find(std::string_view name);

 private:
  const char* name_;
  MakePlan make_plan_;
  const Scheduler* next_;  // one made known before, or nullptr
  static inline constinit const Scheduler* first_ = nullptr;
};

}  // namespace heteroplace::list
