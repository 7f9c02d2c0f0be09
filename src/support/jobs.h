#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "support/error.h"

namespace heteroplace {

/*! \brief Between two calls of the hook of a search. */
inline constexpr double kHookSeconds = 0.05;

/*!
 * \brief Runs job(0) ... job(count - 1) on some threads (at least one), each job once, and waits
 * for all.
 *
 * Jobs are taken in order but may end in any. The caller's thread calls `watch` every few
 * milliseconds meanwhile; without a `watch` it is one of the threads. The first exception of a job
 * is thrown again here.
 */
inline void RunJobs(int count, int threads, const std::function<void(int)>& job,
                    const std::function<void()>& watch = nullptr) {
  std::atomic<int> next{0};
  std::mutex mutex;
  std::condition_variable all_done;
  int num_done = 0;                // guarded by mutex
  std::exception_ptr first_error;  // guarded by mutex
  const auto work = [&] {
    for (int index = next++; index < count; index = next++) {
      std::exception_ptr error;
      try {
        job(index);
      } catch (...) {
        error = std::current_exception();
      }
      const std::scoped_lock lock(mutex);
      if (error && !first_error) first_error = error;
      if (++num_done == count) all_done.notify_one();
    }
  };
  {
    std::vector<std::jthread> workers;
    const int num_threads = std::min(std::max(threads, 1), count);
    try {
      for (int thread = watch ? 0 : 1; thread < num_threads; ++thread) workers.emplace_back(work);
    } catch (const std::system_error& error) {
      // The system has no more threads: those that are there do all jobs.
      if (watch && workers.empty()) {
        throw Error(ErrorKind::kExecution, std::string("cannot start a thread (") + error.what() +
                                               "); allow more of them (ulimit -u)");
      }
    }
    if (!watch) work();
    std::unique_lock<std::mutex> lock(mutex);
    while (watch && num_done < count) {
      all_done.wait_for(lock, std::chrono::milliseconds(5));
      lock.unlock();
      watch();
      lock.lock();
    }
  }
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace heteroplace
