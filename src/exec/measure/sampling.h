// Measuring: one kernel alone, over and over, and the processor time of every instruction in place.
//
// Wall times are of a monotonic clock, processor times of the threads' own clocks, which stand
// still while another program has the core: the two together tell a slow kernel from a disturbed
// one.
#pragma once

#include <cstdint>
#include <vector>

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

/*! \brief Processor time of the calling thread. */
int64_t ThreadCpuNs();

/*! \brief Processor time of all the threads that these clocks belong to. */
int64_t CpuNs(const std::vector<int>& clocks);

/*! \brief Least time between two readings of ThreadCpuNs: a call into the system. */
int64_t ThreadCpuClockNs();

}  // namespace heteroplace::exec
