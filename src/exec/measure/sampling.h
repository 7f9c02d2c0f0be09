// Measuring: one kernel alone, over and over, and the processor time of every instruction in place.
//
// Wall times are of a monotonic clock, processor times of the threads' own clocks, which stand
// still while another program has the core: the two together tell a slow kernel from a disturbed
// one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/trace/trace_recorder.h"

namespace heteroplace::exec {

/*! \brief Time of one sample, of all its calls together. */
struct KernelSample {
  int64_t wall_ns = 0;
  /*! \brief Of all workers' threads together; 0 on an asynchronous queue. */
  int64_t cpu_ns = 0;
};

/*! \brief How a kernel is sampled; read by the workers while they are at it. */
struct SampleOrder {
  int64_t num_samples = 0;
  /*! \brief Calls that one sample consists of. */
  int64_t num_calls = 1;
  /*! \brief Before every call its arguments are dropped from the caches of all cores. */
  bool is_cold = false;
  /*! \brief Clocks of all workers' threads. */
  std::vector<int> clocks;
  /*! \brief Written by the queue that makes the call. */
  std::vector<KernelSample> samples;
};

/*! \brief What requests are measured for, and what was found. Of the request's caller before and
 * after, of its last worker between two repetitions. */
struct Measurement {
  /*! \brief Repetitions that are left, the present one too. */
  int64_t runs_left = 1;
  std::vector<int64_t> wall_ns;  // of each repetition
  /*! \brief Times of the last repetition, where all instructions are timed; else null. */
  std::shared_ptr<TraceRecorder> trace;
  std::vector<std::vector<int64_t>> durations_ns;  // [num_instructions][timed repetitions]
  SampleOrder sample;
  /*! \brief Set by the caller: no further repetition. */
  std::atomic<bool> is_cancelled{false};
  std::vector<int64_t> line_rounds_ns;
  /*! \brief The line that the transfer test throws between two workers. */
  alignas(128) std::atomic<uint32_t> ball{0};
};

/*! \brief Processor time of the calling thread. */
int64_t ThreadCpuNs();

/*! \brief Processor time of all the threads that these clocks belong to. */
int64_t CpuNs(const std::vector<int>& clocks);

/*! \brief Least time between two readings of ThreadCpuNs: a call into the system. */
int64_t ThreadCpuClockNs();

}  // namespace heteroplace::exec
