// What the ranks of one machine see of each other without a message: a page of memory per rank,
// and a word in it that the system itself changes when the rank dies.
//
// Linux, robust futexes (linux/futex.h, Documentation/locking/robust-futexes.rst): the word says
// which thread holds it, and a thread that ends, however it ends, has the word marked and its
// waiters woken. That is the first thing that happens to a process that is killed, before its
// memory and its sockets go, and so before a launcher sees it and ends the others too.
#pragma once

#include <linux/futex.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exec/engine/engine.h"

namespace heteroplace::exec {

/*! \brief The shared part: written by its rank alone, but for the word. */
struct RankPage {
  static constexpr size_t kTextBytes = 2048;
  enum State : uint32_t { kHere, kLeft, kFailed };

  /*! \brief Tells this page from any other. */
  uint64_t token;
  /*! \brief Where the system finds the word; of the rank alone. */
  robust_list link;
  /*! \brief The number of the thread that lives, marked by the system when it does not. */
  std::atomic<uint32_t> alive;
  /*! \brief A State; who changes it wakes the watchers. */
  std::atomic<uint32_t> state;
  /*! \brief Raised to wake the rank's own watcher. */
  std::atomic<uint32_t> calls;
  std::atomic<int64_t> request;
  std::atomic<int64_t> step;
  /*! \brief Written before kFailed: why. */
  char text[kTextBytes];

  StepReached reached() const { return {request.load(), step.load()}; }
};

/*! \brief This rank's page, in memory that has no name and goes with its last user. */
class OwnPage {
 public:
  /*! \throws Error kExecution: the system gives no memory for it. */
  OwnPage();
  ~OwnPage();
  OwnPage(const OwnPage&) = delete;
  OwnPage& operator=(const OwnPage&) = delete;

  RankPage& page() { return *page_; }
  /*! \brief Where others of this machine find it: a text for `OtherPage`. */
  std::string address() const;

  /*! \brief Ties the word to the calling thread, until its end or `Release` by it. */
  void Hold();
  void Release();
  /*! \brief Wakes `WaitForPages` of this rank. Any thread. */
  void WakeOwner() noexcept;
  /*! \brief Says why this rank has failed, and wakes who watches it. Any thread, once. */
  void TellFailure(std::string_view text) noexcept;
  /*! \brief Says that it has ended well. */
  void TellLeft() noexcept;

 private:
  int file_ = -1;
  RankPage* page_ = nullptr;
  /*! \brief What the system reads when the holding thread ends. */
  std::unique_ptr<robust_list_head> list_;
};

/*! \brief The page of another rank. */
class OtherPage {
 public:
  /*! \brief Null if it is on another machine, or this process may not look into that one. */
  static std::unique_ptr<OtherPage> Open(const std::string& address);
  ~OtherPage();
  OtherPage(const OtherPage&) = delete;
  OtherPage& operator=(const OtherPage&) = delete;

  const RankPage& page() const { return *page_; }
  /*! \brief Whether its process has died; wakes the other watchers, of whom the system wakes one.
   */
  bool IsDead() const;
  /*! \brief The process, in this machine's numbers. */
  int pid() const { return pid_; }

 private:
  OtherPage(RankPage* page, int pid) : page_(page), pid_(pid) {}

  RankPage* page_;
  int pid_;
};

/*! \brief Sleeps until one that is here changes or dies, `own` is woken, or a time of NowNs.
 * \param heard `calls` of `own` before the caller last looked at what it is woken for. */
void WaitForPages(const RankPage& own, uint32_t heard, const std::vector<const OtherPage*>& others,
                  int64_t deadline_ns);

}  // namespace heteroplace::exec
