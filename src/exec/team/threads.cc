#include "exec/team/threads.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Turn that a worker asks for: the shortest that Linux grants. */
constexpr uint64_t kTurnNs = 100'000;

/*! \brief The kernel's `sched_attr` in its first version; not every C library declares it. */
struct SchedulingRequest {
  uint32_t size = sizeof(SchedulingRequest);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};

}  // namespace

void PinToCore(const Queue& queue) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(queue.core), &cores);
  const int error = pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
  if (error != 0) {
    throw Error(ErrorKind::kExecution,
                "queue '" + queue.name + "' needs core " + std::to_string(queue.core) +
                    ", which this machine or this process's cpuset does not have (" +
                    std::strerror(error) + "); plan for the cores it has");
  }
}

void GoAnywhere() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  // Those of the process's first thread. Where the system refuses, the thread stays as it was made.
  if (sched_getaffinity(getpid(), sizeof(cores), &cores) != 0) return;
  static_cast<void>(pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores));
}

void NameThread(const std::string& what) {
  constexpr size_t kMaxBytes = 15;  // of Linux
  // Fails only for longer names.
  static_cast<void>(
      pthread_setname_np(pthread_self(), ("hp " + what).substr(0, kMaxBytes).c_str()));
}

void AskForShortTurns() {
#if defined(SYS_sched_getattr) && defined(SYS_sched_setattr)
  SchedulingRequest request;
  if (syscall(SYS_sched_getattr, 0, &request, sizeof(request), 0) != 0) return;
  // Threads with a fixed priority, which someone has set, do not wait for others' turns.
  if (request.policy != SCHED_OTHER && request.policy != SCHED_BATCH) return;
  request.runtime_ns = kTurnNs;
  static_cast<void>(syscall(SYS_sched_setattr, 0, &request, 0));
#endif
}

void AskForExactSleep() {
  constexpr unsigned long kSlackNs = 1000;
  static_cast<void>(prctl(PR_SET_TIMERSLACK, kSlackNs));
}

}  // namespace heteroplace::exec
