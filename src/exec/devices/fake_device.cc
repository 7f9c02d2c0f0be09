// An asynchronous device made of threads: tests and tutorials without a GPU.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

#include "exec/devices/device.h"
#include "exec/devices/workspace.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

using Clock = std::chrono::steady_clock;

/*! \brief Reached when the stream's thread comes to the record; any thread may wait. */
class FakeEvent : public Event {
 public:
  bool IsReached() override {
    std::scoped_lock lock(mutex_);
    if (reached_ < recorded_) return false;
    if (!error_.empty()) throw Error(ErrorKind::kExecution, error_);
    return true;
  }

  void HostWait() override {
    std::unique_lock lock(mutex_);
    const uint64_t target = recorded_;
    reached_changed_.wait(lock, [&] { return reached_ >= target; });
  }

  std::optional<int64_t> HostNs() const override {
    return std::chrono::nanoseconds(time_.time_since_epoch()).count();
  }

  int64_t ElapsedNs(const Event& earlier) const override {
    const auto& other = dynamic_cast<const FakeEvent&>(earlier);
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time_ - other.time_).count();
  }

  /*! \brief Issues a record; returns its number. */
  uint64_t Issue() {
    std::scoped_lock lock(mutex_);
    return ++recorded_;
  }

  /*! \brief Number of the last record that was issued. */
  uint64_t Recorded() {
    std::scoped_lock lock(mutex_);
    return recorded_;
  }

  /*! \brief Stream's thread: the record is reached, after a fault unless the text is empty. */
  void Reach(uint64_t number, const std::string& error) {
    std::scoped_lock lock(mutex_);
    reached_ = number;
    try {
      error_ = error;
    } catch (const std::bad_alloc&) {
      error_ = kMemoryIsShort;
    }
    time_ = Clock::now();
    reached_changed_.notify_all();
  }

  /*! \brief Stream's thread: blocks until the given record is reached. */
  void WaitFor(uint64_t number) {
    std::unique_lock lock(mutex_);
    reached_changed_.wait(lock, [&] { return reached_ >= number; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable reached_changed_;
  uint64_t recorded_ = 0;   // guarded by mutex_
  uint64_t reached_ = 0;    // guarded by mutex_
  std::string error_;       // guarded by mutex_
  Clock::time_point time_;  // guarded by mutex_; read after HostWait
};

class FakeStream : public Stream {
 public:
  FakeStream(const TvmAbi* abi, int64_t delay_ns, Device* host)
      : abi_(abi), delay_(delay_ns), workspace_(host), thread_([this] { Work(); }) {}

  ~FakeStream() override {
    {
      std::scoped_lock lock(mutex_);
      is_ending_ = true;
      work_changed_.notify_one();
    }
    thread_.join();
  }

  void Attach() override {}

  void Launch(const KernelCall& call) override {
    Issue([this, call] {
      if (!error_.empty()) return;  // as a CUDA stream: nothing runs after a fault
      if (CallKernel(*abi_, call) != 0) {
        TakeError();
        workspace_.Clear();
      }
      std::this_thread::sleep_for(delay_);
    });
  }

  void Copy(const DLTensor& dst, const DLTensor& src, int64_t bytes) override {
    Issue([this, to = dst.data, from = src.data, bytes] {
      if (!error_.empty()) return;
      if (bytes != 0) __builtin_memmove(to, from, static_cast<size_t>(bytes));
      std::this_thread::sleep_for(delay_);
    });
  }

  std::unique_ptr<Event> MakeEvent(bool) override { return std::make_unique<FakeEvent>(); }

  void Record(Event* event) override {
    auto* fake = dynamic_cast<FakeEvent*>(event);
    Issue([this, fake, number = fake->Issue()] { fake->Reach(number, error_); });
  }

  void RecordEnd(Event* event) override {
    Record(event);
    Issue([this] { error_.clear(); });
  }

  bool Wait(Event* event) override {
    auto* fake = dynamic_cast<FakeEvent*>(event);
    if (fake == nullptr) return false;
    Issue([fake, number = fake->Recorded()] { fake->WaitFor(number); });
    return true;
  }

  bool IsIdle() override {
    std::scoped_lock lock(mutex_);
    if (!work_.empty() || is_busy_) return false;
    ThrowFault();
    return true;
  }

  void Synchronise() override {
    std::unique_lock lock(mutex_);
    is_idle_changed_.wait(lock, [&] { return work_.empty() && !is_busy_; });
    ThrowFault();
  }

 private:
  /*! \brief With the lock, while the thread is idle: throws the first fault, and forgets it. */
  void ThrowFault() {
    if (error_.empty()) return;
    std::string error;
    error.swap(error_);
    throw Error(ErrorKind::kExecution, error);
  }

  void TakeError() {
    try {
      error_ = abi_->LastErrorLine();
    } catch (const std::bad_alloc&) {
      error_ = kMemoryIsShort;
    }
  }

  void Issue(std::function<void()> work) {
    std::scoped_lock lock(mutex_);
    work_.push_back(std::move(work));
    work_changed_.notify_one();
  }

  /*! \brief Body of the thread: does the work in order, all of it before it ends. */
  void Work() {
    SetWorkspacePool(abi_, &workspace_);
    for (;;) {
      std::unique_lock lock(mutex_);
      is_busy_ = false;
      if (work_.empty()) is_idle_changed_.notify_all();
      work_changed_.wait(lock, [&] { return !work_.empty() || is_ending_; });
      if (work_.empty()) return;
      std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      is_busy_ = true;
      lock.unlock();
      work();
    }
  }

  const TvmAbi* abi_;
  std::chrono::nanoseconds delay_;
  std::mutex mutex_;
  std::condition_variable work_changed_;
  std::condition_variable is_idle_changed_;
  std::deque<std::function<void()>> work_;  // guarded by mutex_
  bool is_busy_ = false;                    // guarded by mutex_
  bool is_ending_ = false;                  // guarded by mutex_
  /*! \brief First fault; of the thread while it is busy, else guarded by mutex_. */
  std::string error_;
  /*! \brief Scratch memory of the kernels; of the thread. */
  WorkspacePool workspace_;
  std::thread thread_;  // last: it uses all of the above
};

/*! \brief Host memory, with fake streams. */
class FakeDevice : public Device {
 public:
  FakeDevice(const TvmAbi* abi, int64_t delay_ns)
      : abi_(abi), delay_ns_(delay_ns), memory_(MakeCpuDevice()) {}

  void* Allocate(int64_t bytes) override { return memory_->Allocate(bytes); }
  void Free(void* data, int64_t bytes) override { memory_->Free(data, bytes); }
  void Upload(void* dst, const void* src, int64_t bytes) override {
    memory_->Upload(dst, src, bytes);
  }
  void Download(void* dst, const void* src, int64_t bytes) override {
    memory_->Download(dst, src, bytes);
  }
  void CopyWithin(const std::vector<MovedBytes>& all) override { memory_->CopyWithin(all); }
  std::unique_ptr<Stream> MakeStream() override {
    try {
      return std::make_unique<FakeStream>(abi_, delay_ns_, memory_.get());
    } catch (const std::system_error& error) {
      throw Error(ErrorKind::kExecution,
                  std::string("cannot start the thread of a fake device: ") + error.what());
    }
  }

 private:
  const TvmAbi* abi_;
  int64_t delay_ns_;
  std::unique_ptr<Device> memory_;
};

}  // namespace

std::unique_ptr<Device> MakeFakeDevice(const TvmAbi* abi, int64_t delay_ns) {
  return std::make_unique<FakeDevice>(abi, delay_ns);
}

}  // namespace heteroplace::exec
