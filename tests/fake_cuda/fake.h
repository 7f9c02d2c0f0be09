// A CUDA without a GPU: what its files share.
//
// The library stands in for libcudart.so.12 and libcuda.so.1 in a process of its own. Devices are
// threads and host memory; kernels are TVM's CUDA code, compiled for the host. Work runs late, in
// the order of its stream and beside that of others. A call that breaks a rule of CUDA, or one that
// the executor has set itself (no blocking during a run), is reported; any call can be made to
// fail.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fake {

inline constexpr int kMaxDevices = 8;
inline constexpr int64_t kAnyNumber = int64_t{1} << 40;

// Codes of CUDA's own errors; driver and runtime agree on them.
inline constexpr int kInvalidValue = 1;
inline constexpr int kOutOfMemory = 2;
inline constexpr int kInvalidDevice = 101;
inline constexpr int kInvalidContext = 201;
inline constexpr int kNoBinaryForGpu = 209;
inline constexpr int kInvalidHandle = 400;
inline constexpr int kNotFound = 500;
inline constexpr int kNotReady = 600;
inline constexpr int kPeerAlreadyEnabled = 704;
inline constexpr int kPeerNotEnabled = 705;
inline constexpr int kTooManyPeers = 711;
inline constexpr int kHostAlreadyRegistered = 712;
inline constexpr int kHostNotRegistered = 713;
inline constexpr int kCaptureUnsupported = 900;
inline constexpr int kCaptureInvalidated = 901;
inline constexpr int kCaptureIsolation = 905;

/*! \brief What a call does beside its purpose. */
enum CallKind : unsigned {
  kPlain = 0,
  /*! \brief The calling thread sleeps in the driver until a device has done something. */
  kBlocks = 1,
  /*! \brief Takes memory or code from a device or gives it back: not during a run. */
  kChangesMemory = 2,
  /*! \brief Not allowed while a stream is captured. */
  kNotInCapture = 4,
  /*! \brief Gives back; done also where an injected fault says that it failed. */
  kReleases = 8,
  /*! \brief Works after a fault of the device too. */
  kSurvives = 16,
};

struct Event {
  int device = 0;
  bool is_timed = false;
  bool is_captured = false;
  std::mutex mutex;
  std::condition_variable reached_changed;
  uint64_t issued = 0;   // guarded by mutex
  uint64_t reached = 0;  // guarded by mutex
  std::chrono::steady_clock::time_point time;

  bool IsReached(uint64_t number);
  void WaitFor(uint64_t number);
};

/*! \brief One piece of work of a stream. Control work (events) is done after a fault too. */
struct Work {
  std::function<void()> body;
  bool is_control = false;
  /*! \brief Takes no time, and tells how far the stream is: a record of an event, a word. */
  bool is_mark = false;
  /*! \brief Its turn in the channel of its device; 0: it has none. */
  uint64_t turn = 0;
};

struct Graph {
  std::vector<Work> work;
  int device = 0;
  /*! \brief Whether it can be launched, and has been brought to the device. */
  bool is_executable = false;
  bool is_uploaded = false;
};

/*! \brief Who may not call what during a capture; CUDA's own numbers. */
enum CaptureMode { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

class Stream {
 public:
  Stream(int device);
  ~Stream();
  void Push(Work work);
  bool IsIdle();
  void Drain();

  const int device;
  /*! \brief Of the whole device: always there. */
  bool is_default = false;
  /*! \brief What is captured; null otherwise. Guarded by the state's mutex. */
  std::unique_ptr<Graph> capture;
  bool is_capture_broken = false;
  CaptureMode capture_mode = kGlobal;
  std::thread::id capturer;

 private:
  void Run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;  // guarded by mutex_
  bool is_busy_ = false;    // guarded by mutex_
  bool is_over_ = false;    // guarded by mutex_
  std::thread thread_;
};

struct Allocation {
  char* base;  // with the zones around it
  size_t bytes;
  int device;  // -1: pinned memory of the host
};

struct Fault {
  int after_calls;
  int code;
};

/*! \brief All there is. One lock: the fake is slow, not subtle. */
struct State {
  std::mutex mutex;
  int num_devices = 2;
  int64_t delay_ns = 20'000;
  /*! \brief By how much the clock of events is ahead of the host's. */
  int64_t clock_ahead_ns = 0;
  bool can_pin = true;
  /*! \brief Of a range that can be registered. */
  int64_t max_registered_bytes = kAnyNumber;
  bool has_peers = true;
  int64_t max_peers = kMaxDevices;
  bool has_words = true;
  /*! \brief Whether all work of a device is begun in the order of issue, as where its streams share
   * one queue of the hardware. */
  bool has_one_channel = false;
  /*! \brief Work of a device that was issued and done in that case. */
  uint64_t channel_issued[kMaxDevices] = {};
  uint64_t channel_done[kMaxDevices] = {};
  std::condition_variable channel_moved;
  std::map<std::string, int> calls;
  std::map<std::string, Fault> faults;
  std::vector<std::string> reports;
  /*! \brief Live memory by address: of devices, and pinned. */
  std::map<uintptr_t, Allocation> memory;
  std::map<uintptr_t, size_t> registered;
  std::map<void*, std::shared_ptr<Stream>> streams;
  std::map<void*, std::shared_ptr<Event>> events;
  std::map<void*, std::shared_ptr<Graph>> graphs;
  int num_modules = 0;
  int device_errors[kMaxDevices] = {};
  bool peers[kMaxDevices][kMaxDevices] = {};
  /*! \brief Whether the context that the runtime works in has been made. */
  bool has_context[kMaxDevices] = {};
  /*! \brief While a run is on, no thread but its caller may block or allocate. */
  bool is_running = false;
  std::thread::id caller;
  /*! \brief What was issued during runs, by device: functions in order, and by which threads. */
  std::string issued[kMaxDevices];
  std::set<std::thread::id> issuers[kMaxDevices];
  /*! \brief Set to let work that hangs go on. */
  bool is_released = false;
};

State& Get();

/*! \brief The device of the calling thread's context, or the one that it has chosen. */
int CurrentDevice();
bool HasCurrentContext();
/*! \brief What the runtime does before it needs a context; the state is locked. */
void MakeChosenContext();

/*!
 * \brief Begins every API function: counts it, checks the rules, injects faults.
 * \param device whose fault is returned; -1: the current one.
 * \return 0, or what the function must return.
 */
int Begin(const char* function, unsigned kind, int device = -1);

/*! \brief Says that a rule was broken; returns `code`. */
int Broken(const std::string& text, int code);

/*! \brief Whether work is lost from now on, as its device has had a fault. */
bool HasFault(int device);
void SetFault(int device, int code);

/*! \brief Sleeps as long as `State::delay_ns` says. */
void Delay();

/*! \brief Why a range cannot be read or written by a device; empty if it can. */
std::string WhyNotUsable(const void* data, size_t bytes, int device, const char* what);
/*! \brief Device of an address: 0 and more, -1 pinned host memory, -2 pageable memory. */
int PlaceOf(const void* data);

/*! \brief Live objects; null after reporting a wrong or dead handle. */
std::shared_ptr<Stream> FindStream(void* handle, const char* function);
std::shared_ptr<Event> FindEvent(void* handle, const char* function);

/*! \brief Puts work into a stream, or into the graph that is captured from it. */
void Issue(Stream* stream, Work work);

/*! \brief An attribute of a device, by the number that driver and runtime have for it. */
int AttributeOf(int attribute);

/*! \brief Live objects of the fake libraries; and forgets which of its code is on devices. */
int64_t NumLibraryObjects();
void ForgetLibraryCode();

/*! \brief Zones of known bytes around memory. */
inline constexpr size_t kZoneBytes = 512;
void* TakeMemory(size_t bytes, int device);
/*! \brief Gives back; false if this is no such memory. Reports writes beside it. */
bool GiveMemory(void* data, int device);

}  // namespace fake
