#include "list/scheduler.h"

#include <set>

#include "support/error.h"

namespace heteroplace::list {

const Scheduler& Scheduler::Find(std::string_view name) {
  std::set<std::string> names;  // sorted: the order of files in the program is not ours
  for (const Scheduler* one = first_; one != nullptr; one = one->next_) {
    if (name == one->name_) return *one;
    names.insert(one->name_);
  }
  std::string text;
  for (const std::string& known : names) text += (text.empty() ? "" : ", ") + known;
  throw Error(ErrorKind::kPlan, "no list scheduler '" + std::string(name) + "'; there are " + text);
}

}  // namespace heteroplace::list
