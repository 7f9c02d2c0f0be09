#include "exec/team/team.h"

#include <algorithm>
#include <thread>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief The team that the calling thread leads at this moment. */
thread_local Team* current_team = nullptr;

/*! \brief A cache line, and the widest vector. */
constexpr size_t kStackAlignment = 64;

/*!
 * \brief Calls the body of a parallel loop with a stack that is aligned to cache lines.
 *
 * LLVM puts vectors for which it has no registers at multiples of 64 bytes from there, but keeps to
 * the 16 bytes of the ABI and does not align the stack itself. Where they straddle lines, products
 * of a few rows take 1.4 times as long, and how a caller's frame lies would decide it.
 */
[[gnu::noinline]] int CallBody(FTVMParallelLambda lambda, int task_id, TVMParallelGroupEnv* env,
                               void* cdata) {
  alignas(kStackAlignment) char frame[kStackAlignment];
  const int code = lambda(task_id, env, cdata);
  asm volatile("" : : "r"(frame) : "memory");  // used after the call, so it is there during it
  return code;
}

/*! \brief Runs a loop as one part on the calling thread. */
int LaunchSerially(FTVMParallelLambda lambda, void* cdata) {
  // TVM's barrier of one part only reads this counter.
  std::atomic<int> counter{0};
  TVMParallelGroupEnv env{&counter, 1};
  return CallBody(lambda, 0, &env, cdata);
}

}  // namespace

int ParallelLaunch(FTVMParallelLambda lambda, void* cdata, int num_task) {
  Team* team = current_team;
  if (team == nullptr) return LaunchSerially(lambda, cdata);
  // A loop inside a chunk would reuse the team's ticket while it is in use.
  current_team = nullptr;
  int code = team->Launch(lambda, cdata, num_task);
  current_team = team;
  return code;
}

void Team::Begin(TeamRole role) {
  role_ = role;
  current_team = this;
}

void Team::End() {
  current_team = nullptr;
  bell_.Ring();
}

int Team::Launch(FTVMParallelLambda lambda, void* cdata, int num_task) {
  // A body divides its loop by the number it is given; `num_task` 0 asks for as many as is best.
  uint32_t chunks = (role_.threads + role_.helpers) * kChunksPerThread;
  if (num_task > 0) chunks = std::min(chunks, static_cast<uint32_t>(num_task));
  lambda_ = lambda;
  cdata_ = cdata;
  env_ = {nullptr, static_cast<int32_t>(chunks)};
  // Whoever takes a chunk sees these with its ticket. Nobody else touches them now: every chunk of
  // the launch before was finished before that launch returned.
  code_.store(0, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  ++generation_;
  const uint64_t open = role_.helpers == 0 ? 0 : kOpen;
  for (uint32_t rank = 0; rank < role_.threads; ++rank) {
    const uint64_t begin = chunks * rank / role_.threads;
    const uint64_t end = chunks * (rank + 1) / role_.threads;
    const uint64_t ticket = static_cast<uint64_t>(generation_) << 32 | open | end << 16 | begin;
    shares_[rank].ticket.store(ticket, std::memory_order_release);
  }
  if (role_.threads > 1) {
    // Before the look at the sleepers in Ring: a joiner that falls asleep must see its share, or be
    // seen (see Bell, whose proof needs sequentially consistent stores).
    std::atomic_thread_fence(std::memory_order_seq_cst);
    bell_.Ring();
  }
  Work(role_);
  AwaitChunks(chunks);
  const int code = code_.load(std::memory_order_relaxed);
  if (code != 0) abi_->LeaveError(message_.c_str());
  return code;
}

/*! \brief Waits for the joiners and helpers that hold a chunk. */
void Team::AwaitChunks(uint32_t chunks) {
  const auto is_over = [&] { return finished_.load(std::memory_order_acquire) == chunks; };
  for (int spins = 0; spins < kSpins; ++spins) {
    if (is_over()) return;
    Pause();
  }
  // The chunk is long, or its core is lost to another program: let others run.
  const int64_t start_ns = NowNs();
  while (!is_over()) std::this_thread::yield();
  wait_ns_ = std::max(wait_ns_, NowNs() - start_ns);
}

void Team::Work(TeamRole role) {
  for (uint32_t i = 0; i < role.threads; ++i) {
    Share* share = &shares_[(role.rank + i) % role.threads];
    uint32_t done = 0;
    int code = 0;
    while (DoChunk(share, &code)) ++done;
    // Told before the look at the next share: the leader may wait for just these.
    if (done != 0) finished_.fetch_add(done, std::memory_order_release);
  }
}

int Team::HelpOnce() {
  int code = 0;
  for (uint32_t rank = 0; rank < max_threads_; ++rank) {
    if (!IsOpen(shares_[rank].ticket.load(std::memory_order_relaxed))) continue;
    if (!DoChunk(&shares_[rank], &code)) continue;
    finished_.fetch_add(1, std::memory_order_release);
    break;
  }
  return code;
}

bool Team::DoChunk(Share* share, int* code) {
  if (!HasChunk(*share)) return false;
  // Acquire: a chunk of a newer launch may be the one taken, with that launch's fields.
  const uint64_t ticket = share->ticket.fetch_add(1, std::memory_order_acq_rel);
  if (Next(ticket) >= End(ticket)) return false;
  *code = CallBody(lambda_, static_cast<int>(Next(ticket)), &env_, cdata_);
  if (*code != 0) {
    int none = 0;
    // The message is of this thread, and lost unless it is kept before the leader goes on.
    if (code_.compare_exchange_strong(none, *code, std::memory_order_relaxed)) {
      try {
        message_ = abi_->LastErrorLine();
      } catch (const std::bad_alloc&) {  // the leader waits for this chunk
        message_ = kMemoryIsShort;
      }
    }
  }
  return true;
}

}  // namespace heteroplace::exec
