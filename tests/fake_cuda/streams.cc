// Streams and events: threads that do work late and in order.
#include "fake.h"

namespace fake {

namespace {

void AwaitTurn(int device, const Work& work) {
  State& state = Get();
  std::unique_lock lock(state.mutex);
  state.channel_moved.wait(
      lock, [&] { return work.turn == 0 || state.channel_done[device] == work.turn - 1; });
}

void EndTurn(int device, const Work& work) {
  if (work.turn == 0) return;
  State& state = Get();
  std::lock_guard lock(state.mutex);
  state.channel_done[device] = work.turn;
  state.channel_moved.notify_all();
}

}  // namespace

bool Event::IsReached(uint64_t number) {
  std::lock_guard lock(mutex);
  return reached >= number;
}

void Event::WaitFor(uint64_t number) {
  std::unique_lock lock(mutex);
  reached_changed.wait(lock, [&] { return reached >= number; });
}

Stream::Stream(int device) : device(device), thread_([this] { Run(); }) {}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::Push(Work work) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

bool Stream::IsIdle() {
  std::lock_guard lock(mutex_);
  return queue_.empty() && !is_busy_;
}

void Stream::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !is_busy_; });
}

void Stream::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    is_busy_ = false;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_over_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    is_busy_ = true;
    lock.unlock();
    AwaitTurn(device, work);
    const bool is_done = work.is_control || !HasFault(device);
    if (is_done && !work.is_control) Delay();
    if (is_done && !work.is_mark) work.body();
    lock.lock();
    if (is_done && work.is_mark) {
      // Under the lock: whoever sees the mark of the last work sees an idle stream as well.
      work.body();
      is_busy_ = false;
    }
    lock.unlock();
    EndTurn(device, work);
    lock.lock();
  }
}

std::shared_ptr<Stream> FindStream(void* handle, const char* function) {
  State& state = Get();
  const int current = CurrentDevice();
  {
    std::lock_guard lock(state.mutex);
    if (handle == nullptr) {
      // The stream of the whole device; named by an address that no stream has.
      static int names[kMaxDevices];
      std::shared_ptr<Stream>& whole = state.streams[&names[current]];
      if (whole == nullptr) {
        whole = std::make_shared<Stream>(current);
        whole->is_default = true;
      }
      return whole;
    }
    const auto found = state.streams.find(handle);
    if (found != state.streams.end()) return found->second;
  }
  Broken(std::string(function) + ": a stream that does not live", 0);
  return nullptr;
}

void Issue(Stream* stream, Work work) {
  State& state = Get();
  {
    std::lock_guard lock(state.mutex);
    if (stream->capture != nullptr) {
      stream->capture->work.push_back(std::move(work));
      return;
    }
    if (state.has_one_channel) work.turn = ++state.channel_issued[stream->device];
  }
  stream->Push(std::move(work));
}

}  // namespace fake
