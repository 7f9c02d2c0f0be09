// How threads wait for each other: spin for a short time where a core is to spare, then sleep.
#pragma once

#include <atomic>
#include <cstdint>

#include "exec/team/cores.h"

namespace heteroplace::exec {

/*! \brief Two cache lines: adjacent ones are fetched together on x86. */
inline constexpr size_t kCacheLineBytes = 128;

/*! \brief Looks at its condition that a waiter takes before it sleeps; 10 to 50 us of pauses. */
inline constexpr int kSpins = 1000;

/*!
 * \brief The same within a request, where each worker can have a core: about ten milliseconds.
 *
 * To wake a sleeper takes some 30 us on a virtual machine, of which the waker loses 10 to the
 * system call: as much as a kernel, and by far less than waits that are longer than this.
 */
inline constexpr int kRunSpins = 300 * kSpins;

/*!
 * \brief The same for a worker that is pinned to no core: some 0.3 ms, a kernel or two.
 *
 * Where other programs compute it may lie on the core of whom it waits for, and keeps it waiting.
 */
inline constexpr int kLooseSpins = 8 * kSpins;

/*! \brief Looks between two questions whether the core is still to spare. */
inline constexpr int kSpinsPerQuestion = 64;

/*! \brief A moment that never comes. */
inline constexpr int64_t kNever = INT64_MAX;

/*! \brief ns of a monotonic clock. */
int64_t NowNs();

/*! \brief Tells the core that this is a spin loop. */
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/*! \brief Sleeps until `word` is woken, no longer is `seen`, or `deadline_ns` of NowNs is past. */
void SleepOn(std::atomic<uint32_t>* word, uint32_t seen, int64_t deadline_ns);

/*! \brief Wakes all who sleep on a word. */
void WakeAll(std::atomic<uint32_t>* word);

/*!
 * \brief Lets threads sleep until a condition on other atomics holds. Any thread may call it.
 *
 * Whoever makes the condition true stores first and calls Ring after. No wake-up is lost: the
 * waiter counts itself in `sleepers_` before it looks at the condition a last time, the ringer
 * looks at `sleepers_` after its store, and all four are sequentially consistent, so at least one
 * of the two sees the other. Ringing when nobody sleeps is one load and no system call.
 */
class Bell {
 public:
  /*!
   * \brief Returns true once `ready()`, which must read its atomics in sequential consistency;
   * false if it does not hold at the deadline.
   * \param core on which the caller counts as at work: it spins so often, while that is to spare.
   */
  template <typename Ready>
  bool WaitUntil(const Ready& ready, CoreShare* core, int spins, int64_t deadline_ns = kNever) {
    for (int i = 0; i < spins; ++i) {
      if (ready()) return true;
      Pause();
      if (i % kSpinsPerQuestion == kSpinsPerQuestion - 1 && !core->MaySpin(i < kSpins)) break;
    }
    core->Leave();
    const bool is_ready = Sleep(ready, deadline_ns);
    core->Enter();
    return is_ready;
  }

  /*! \brief The same without spinning, for a thread that counts nowhere as at work. */
  template <typename Ready>
  bool Sleep(const Ready& ready, int64_t deadline_ns = kNever) {
    sleepers_.fetch_add(1);
    bool is_ready = false;
    for (;;) {
      // Heard before the look at the condition: a ring after that look changes the count.
      const uint32_t heard = count_.load();
      is_ready = ready();
      if (is_ready || (deadline_ns != kNever && NowNs() >= deadline_ns)) break;
      SleepOn(&count_, heard, deadline_ns);
    }
    sleepers_.fetch_sub(1);
    return is_ready;
  }

  /*! \brief Wakes all sleepers, to look at their conditions again. */
  void Ring() {
    if (sleepers_.load() == 0) return;
    count_.fetch_add(1);
    WakeAll(&count_);
  }

 private:
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> count_{0};
};

/*!
 * \brief How far one queue is. Written by its worker, read by all; never reset.
 *
 * Instruction i of request k is done when `done` is at least k * (length of the queue) + i + 1.
 */
struct alignas(kCacheLineBytes) Progress {
  /*! \brief Instructions finished (asynchronous queues: issued); only awaited ones are told. */
  std::atomic<int64_t> done{0};
  /*! \brief Rung after `done` was raised, and when a request is cancelled. */
  Bell bell;
  /*! \brief Rung with it, for threads that wait for several queues at once; null: there are none.
   * Constant after load. */
  Bell* all = nullptr;
  /*! \brief Of an asynchronous queue: a count that a core has found reached by its event. */
  std::atomic<int64_t> seen{0};
  /*! \brief Of a queue of a GPU: the low half of what `done` was when that work was issued which
   * the device has finished by now. Written by the device. */
  alignas(kCacheLineBytes) std::atomic<uint32_t> reached{0};

  /*! \brief Tells that the first `count` instructions are done. */
  void Publish(int64_t count) {
    done.store(count);
    bell.Ring();
    if (all != nullptr) all->Ring();
  }

  /*! \brief Whether the device has come so far. */
  bool HasReached(int64_t count) const {
    // Half of the numbers lie before a count: no queue is that far ahead of who waits for it.
    return ReachedAfter(count) >= 0;
  }

  /*! \brief How far the device is behind a count; negative: not there. */
  int32_t ReachedAfter(int64_t count) const {
    return static_cast<int32_t>(reached.load(std::memory_order_acquire) -
                                static_cast<uint32_t>(count));
  }
};

}  // namespace heteroplace::exec
