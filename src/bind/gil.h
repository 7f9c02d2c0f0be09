// Without the interpreter's lock, and back: also in threads that the end of the interpreter meets.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>

#include "exec/requests/limit.h"
#include "support/error.h"

#ifdef Py_LIMITED_API
// Not in the stable ABI of 3.12: the interpreter has one of these two, by its version.
extern "C" int Py_IsFinalizing() __attribute__((weak));   // 3.13 and later
extern "C" int _Py_IsFinalizing() __attribute__((weak));  // 3.12
#endif

namespace heteroplace::bind {

/*! \brief Whether the interpreter is on its way out, and gives its lock to nobody. */
inline bool IsFinalizing() {
#ifdef Py_LIMITED_API
  return (Py_IsFinalizing != nullptr ? Py_IsFinalizing() : _Py_IsFinalizing()) != 0;
#elif PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/*! \brief Whether this is the thread that the process began with, which hears signals and ends it.
 */
inline bool IsMainThread() { return syscall(SYS_gettid) == getpid(); }

/*!
 * \brief Takes the interpreter's lock. At the end of the interpreter it does not return, but in the
 * main thread, in which that takes place: finalizers may run executors still.
 *
 * A daemon thread that asks for the lock then is ended by the interpreter (before 3.14): its stack
 * is unwound, which the bindings' functions cannot be, and the process would abort. It sleeps
 * instead until the process is gone.
 */
template <typename Take>
auto TakeGil(const Take& take) {
  try {
    while (IsFinalizing() && !IsMainThread()) pause();
    return take();
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
}

/*!
 * \brief A scope without the interpreter's lock, also for `nanobind::call_guard`, whose own guard
 * would be unwound.
 */
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    TakeGil([this] { PyEval_RestoreThread(state_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

/*! \brief Runs a function of the core without the interpreter's lock. */
template <typename Work>
auto Unlocked(const Work& work) {
  const WithoutGil unlocked;
  return work();
}

/*! \brief The interpreter's lock for a scope, where the thread has it already, too. */
class WithGil {
 public:
  WithGil() : state_(TakeGil([] { return PyGILState_Ensure(); })) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

/*! \brief How long a call of the core may take, `seconds` or for ever; Ctrl-C ends it. */
inline exec::Limit LimitOf(std::optional<double> seconds) {
  exec::Limit limit;
  // Signals are for the main thread alone: others need not take the lock to ask.
  if (IsMainThread()) {
    limit.hook = [] {
      const WithGil locked;
      if (PyErr_CheckSignals() != 0) nanobind::raise_python_error();
    };
  }
  if (!seconds.has_value()) return limit;
  if (!(*seconds >= 0)) {  // nor is it a number
    throw Error(ErrorKind::kExecution,
                "timeout_s is " + std::to_string(*seconds) + "; expected seconds, or None");
  }
  constexpr double kMaxSeconds = 1e9;
  return limit.Within(static_cast<int64_t>(std::min(*seconds, kMaxSeconds) * 1e9));
}

}  // namespace heteroplace::bind
