// Who is at work on which core, over all executors of the process: whether spinning takes time
// from somebody.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace heteroplace::exec {

/*! \brief Cores with a number below this are told apart. */
inline constexpr int kMaxCores = 1024;

/*!
 * \brief Threads of all executors that are awake (they compute or spin), and the cores they have.
 *
 * A thread that sleeps is not counted. The counts are hints: a stale one costs time, never more.
 */
struct CoreTable {
  /*! \brief Awake workers that are pinned to a core. */
  std::atomic<int32_t> awake[kMaxCores];
  /*! \brief Awake threads, pinned or not: workers, and callers that wait. */
  std::atomic<int32_t> all_awake;
  /*! \brief Cores that the process may use at once: its affinity, and its share of processor time
   * rounded down, but one at least; read when an executor is made. */
  std::atomic<int32_t> usable;

  /*! \brief Reads `usable` from the system; the share of time from files below `root`. */
  void Refresh(const std::string& root = "");
  /*! \brief In the child of a fork nobody but the caller lives. */
  void Forget();
};

/*! \brief The table of this process. */
CoreTable& Cores();

/*!
 * \brief The cores that share a core's last cache, as the lowest number among them.
 * \return -1 if the system does not tell.
 */
int CacheDomain(int core, const std::string& root = "/sys/devices/system/cpu");

/*! \brief A thread's entry in the table: counted from the constructor on, but while it sleeps. */
class CoreShare {
 public:
  /*! \param core to which the thread is pinned, or -1. */
  explicit CoreShare(int core) : core_(core < kMaxCores ? core : -1) { Enter(); }
  ~CoreShare() { Leave(); }
  CoreShare(const CoreShare&) = delete;
  CoreShare& operator=(const CoreShare&) = delete;

  void Enter() { Add(1); }
  void Leave() { Add(-1); }

  /*!
   * \brief Whether the thread may go on spinning: at once not where another worker is awake on its
   * core, and after a short time not where more threads are awake than there are cores.
   */
  bool MaySpin(bool is_short) const {
    const CoreTable& table = Cores();
    if (core_ >= 0 && table.awake[core_].load(std::memory_order_relaxed) > 1) return false;
    return is_short || table.all_awake.load(std::memory_order_relaxed) <=
                           table.usable.load(std::memory_order_relaxed);
  }

 private:
  void Add(int32_t change) {
    CoreTable& table = Cores();
    // Relaxed: nothing but the decision to spin hangs on the counts.
    if (core_ >= 0) table.awake[core_].fetch_add(change, std::memory_order_relaxed);
    table.all_awake.fetch_add(change, std::memory_order_relaxed);
  }

  int core_;
};

}  // namespace heteroplace::exec
