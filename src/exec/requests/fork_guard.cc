#include "exec/requests/fork_guard.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "exec/team/core_turns.h"
#include "exec/team/cores.h"

namespace heteroplace::exec {

namespace {

/*! \brief All that are watched. Never destroyed: threads outlive the end of main. */
struct Registry {
  std::mutex mutex;
  std::vector<ForkAware*> members;  // guarded by mutex
};

Registry& Members() {
  static Registry* const registry = new Registry;
  return *registry;
}

void Prepare() {
  Members().mutex.lock();
  for (ForkAware* member : Members().members) member->BeforeFork();
  CoreSeat::mutex().lock();
}

void Resume(bool is_child) {
  if (is_child) {
    Cores().Forget();
    CoreSeat::ForgetAll();
  }
  CoreSeat::mutex().unlock();
  for (ForkAware* member : Members().members) member->AfterFork(is_child);
  Members().mutex.unlock();
}

void ResumeParent() { Resume(/*is_child=*/false); }
void ResumeChild() { Resume(/*is_child=*/true); }

}  // namespace

ForkWatch::ForkWatch(ForkAware* member) : member_(member) {
  // Once in a process: handlers stay for ever.
  [[maybe_unused]] static const int installed = pthread_atfork(Prepare, ResumeParent, ResumeChild);
  std::scoped_lock lock(Members().mutex);
  Members().members.push_back(member);
}

ForkWatch::~ForkWatch() {
  std::scoped_lock lock(Members().mutex);
  std::erase(Members().members, member_);
}

}  // namespace heteroplace::exec
