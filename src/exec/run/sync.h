// How workers wait for each other: spin for a short time, then sleep in the kernel.
#pragma once

#include <atomic>
#include <cstdint>

namespace heteroplace::exec {

/*! \brief Two cache lines: adjacent ones are fetched together on x86. */
inline constexpr size_t kCacheLineBytes = 128;

/*! \brief Looks at its condition that a waiter takes before it sleeps; 10 to 50 us of pauses. */
inline constexpr int kSpins = 1000;

/*!
 * \brief The same for a worker with a core of its own, within a run: about ten milliseconds.
 *
 * To wake a sleeper takes some 30 us on a virtual machine, of which the waker loses 10 to the
 * system call: as much as a kernel, and by far less than waits that are longer than this.
 */
inline constexpr int kRunSpins = 300 * kSpins;

/*! \brief Tells the core that this is a spin loop. */
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

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
  /*! \brief Returns once `ready()`, which must read its atomics in sequential consistency. */
  template <typename Ready>
  void WaitUntil(Ready ready, int spins = kSpins) {
    for (int i = 0; i < spins; ++i) {
      if (ready()) return;
      Pause();
    }
    sleepers_.fetch_add(1);
    for (;;) {
      // Heard before the look at the condition: a ring after that look changes the count.
      const uint32_t heard = count_.load();
      if (ready()) break;
      count_.wait(heard);
    }
    sleepers_.fetch_sub(1);
  }

  /*! \brief Wakes all sleepers, to look at their conditions again. */
  void Ring() {
    if (sleepers_.load() == 0) return;
    count_.fetch_add(1);
    count_.notify_all();
  }

 private:
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> count_{0};
};

/*! \brief How far one queue is in the present run. Written by its worker, read by all. */
struct alignas(kCacheLineBytes) Progress {
  /*! \brief Instructions finished (asynchronous queues: issued); only awaited ones are told. */
  std::atomic<uint32_t> done{0};
  /*! \brief Rung after `done` was raised, and when the run is cancelled. */
  Bell bell;

  /*! \brief Tells that the first `count` instructions are done. */
  void Publish(uint32_t count) {
    done.store(count);
    bell.Ring();
  }
};

}  // namespace heteroplace::exec
