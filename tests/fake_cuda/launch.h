// A kernel for the host and its launch: between the driver's functions and the blocks.
#pragma once

#include "fake.h"

namespace fake {

struct Extent {
  unsigned x, y, z;
};

/*! \brief As in host_kernels.h, which is not included with the library. */
struct FakeKernel {
  void (*call)(void** arguments);
  unsigned num_arguments;
  const unsigned* sizes;     // [num_arguments]
  const bool* are_pointers;  // [num_arguments]
  bool has_meetings;
  unsigned max_threads;
};

/*! \brief Carries out all blocks on the calling thread. */
void RunBlocks(const FakeKernel& kernel, const Extent& grid, const Extent& extent,
               void** arguments);

}  // namespace fake
