#include "parts/hosts/transports/rank_page.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <fstream>
#include <new>
#include <sstream>

#include "exec/engine/sync.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Of linux/futex.h, which has it from 5.16 on. */
struct FutexWait {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};
constexpr long kFutexWaitMany = 449;
constexpr uint32_t kFutexOf32Bits = 2;
/*! \brief Most words of one call. */
constexpr size_t kMaxWords = 128;
/*! \brief Between two looks where the system has no such call. */
constexpr int64_t kLookNs = 10'000'000;

/*! \brief Waiters there may be: the system wakes nobody of a word without this. */
constexpr uint32_t kHeld = FUTEX_WAITERS;

void WakeWord(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/*! \brief The machine as it runs now, and the space of process numbers. */
std::string Machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space = {};
  if (boot.empty() || stat("/proc/self/ns/pid", &space) != 0) return "";
  return boot + ":" + std::to_string(space.st_ino);
}

RankPage* Map(int file) {
  void* place = mmap(nullptr, sizeof(RankPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return place == MAP_FAILED ? nullptr : static_cast<RankPage*>(place);
}

timespec TimeOf(int64_t ns) { return {ns / 1'000'000'000, ns % 1'000'000'000}; }

}  // namespace

OwnPage::OwnPage() : list_(std::make_unique<robust_list_head>()) {
  file_ = static_cast<int>(syscall(SYS_memfd_create, "heteroplace rank", 1U /* close on exec */));
  if (file_ >= 0 && ftruncate(file_, sizeof(RankPage)) == 0) page_ = Map(file_);
  if (page_ == nullptr) {
    const std::string cause = std::strerror(errno);
    if (file_ >= 0) close(file_);
    throw Error(ErrorKind::kExecution,
                "the system gives no memory for what ranks of a machine share: " + cause);
  }
  new (page_) RankPage{};
  page_->request.store(-1);
  page_->step.store(-1);
  if (getrandom(&page_->token, sizeof(page_->token), 0) != sizeof(page_->token)) {
    page_->token = static_cast<uint64_t>(NowNs());
  }
}

OwnPage::~OwnPage() {
  munmap(page_, sizeof(RankPage));
  close(file_);
}

std::string OwnPage::address() const {
  const std::string machine = Machine();
  if (machine.empty()) return "-";
  return machine + " " + std::to_string(getpid()) + " " + std::to_string(file_) + " " +
         std::to_string(page_->token);
}

void OwnPage::Hold() {
  page_->alive.store(static_cast<uint32_t>(syscall(SYS_gettid)) | kHeld);
  page_->link.next = &list_->list;
  list_->list.next = &page_->link;
  list_->futex_offset = offsetof(RankPage, alive) - offsetof(RankPage, link);
  list_->list_op_pending = nullptr;
  // The thread is ours and takes no robust lock of the C library, whose list this replaces.
  syscall(SYS_set_robust_list, list_.get(), sizeof(robust_list_head));
}

void OwnPage::Release() { list_->list.next = &list_->list; }

void OwnPage::WakeOwner() noexcept {
  page_->calls.fetch_add(1);
  WakeWord(page_->calls);
}

void OwnPage::TellFailure(std::string_view text) noexcept {
  const size_t bytes = std::min(text.size(), RankPage::kTextBytes - 1);
  std::memcpy(page_->text, text.data(), bytes);
  page_->text[bytes] = '\0';
  page_->state.store(RankPage::kFailed);
  WakeWord(page_->state);
}

void OwnPage::TellLeft() noexcept {
  uint32_t expected = RankPage::kHere;
  page_->state.compare_exchange_strong(expected, RankPage::kLeft);
  WakeWord(page_->state);
}

std::unique_ptr<OtherPage> OtherPage::Open(const std::string& address) {
  std::istringstream words(address);
  std::string machine;
  int pid = 0, file = 0;
  uint64_t token = 0;
  if (!(words >> machine >> pid >> file >> token) || machine != Machine()) return nullptr;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(file);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return nullptr;
  struct stat found = {};
  const bool is_page = fstat(opened, &found) == 0 && found.st_size == sizeof(RankPage);
  RankPage* page = is_page ? Map(opened) : nullptr;
  close(opened);
  if (page == nullptr) return nullptr;
  if (page->token != token) {
    munmap(page, sizeof(RankPage));
    return nullptr;
  }
  return std::unique_ptr<OtherPage>(new OtherPage(page, pid));
}

OtherPage::~OtherPage() { munmap(page_, sizeof(RankPage)); }

bool OtherPage::IsDead() const {
  if ((page_->alive.load() & FUTEX_OWNER_DIED) == 0) return false;
  WakeWord(page_->alive);
  return true;
}

void WaitForPages(const RankPage& own, uint32_t heard, const std::vector<const OtherPage*>& others,
                  int64_t deadline_ns) {
  std::vector<FutexWait> words;
  const auto add = [&](const std::atomic<uint32_t>& word, uint32_t seen) {
    if (words.size() == kMaxWords) return;
    words.push_back({seen, reinterpret_cast<uint64_t>(&word), kFutexOf32Bits, 0});
  };
  add(own.calls, heard);
  for (const OtherPage* other : others) {
    const uint32_t alive = other->page().alive.load();
    if (other->page().state.load() != RankPage::kHere) continue;
    if ((alive & FUTEX_OWNER_DIED) != 0) return;
    add(other->page().state, RankPage::kHere);
    if (alive != 0) add(other->page().alive, alive);
  }
  const timespec deadline = TimeOf(deadline_ns);
  const long woken =
      syscall(kFutexWaitMany, words.data(), words.size(), 0, &deadline, CLOCK_MONOTONIC);
  if (woken >= 0 || (errno != ENOSYS && errno != EPERM)) return;
  const timespec look = TimeOf(std::clamp<int64_t>(deadline_ns - NowNs(), 0, kLookNs));
  nanosleep(&look, nullptr);
}

}  // namespace heteroplace::exec
