// A thread of a test that stays on one core.
#pragma once

#include <sched.h>

#include "check.h"

namespace heteroplace::test {

/*! \brief Keeps the calling thread on a core as long as the object lives. */
class Pinned {
 public:
  explicit Pinned(int core) {
    CHECK_EQ(sched_getaffinity(0, sizeof(before_), &before_), 0);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(core), &set);
    CHECK_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
  }
  ~Pinned() { sched_setaffinity(0, sizeof(before_), &before_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  cpu_set_t before_;
};

}  // namespace heteroplace::test
