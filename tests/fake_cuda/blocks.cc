// Carries out the blocks of a kernel on the calling thread; see host_kernels.h.
#include <ucontext.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "launch.h"

extern "C" {
__attribute__((visibility("default"))) thread_local fake::Extent fake_block;
__attribute__((visibility("default"))) thread_local fake::Extent fake_thread;
}

namespace fake {

namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr int kWarp = 32;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool is_over = true;
  /*! \brief Meetings of the block that it has come to. */
  int block_meetings = 0;
  /*! \brief Meetings of its warp, and what it brought to the last two. */
  int warp_meetings = 0;
  unsigned brought[2] = {};
};

/*! \brief The fibers of one block of one thread. Stacks are kept for the next block. */
struct Block {
  ucontext_t home;
  std::vector<Fiber> fibers;
  int num_threads = 0;
  int current = 0;
  const FakeKernel* kernel = nullptr;
  void** arguments = nullptr;
};

thread_local Block block;

void FiberMain() {
  block.kernel->call(block.arguments);
  block.fibers[static_cast<size_t>(block.current)].is_over = true;
}

Fiber& Me() { return block.fibers[static_cast<size_t>(block.current)]; }

/*! \brief Lets the others go on. */
void Yield() {
  const int me = block.current;
  swapcontext(&block.fibers[static_cast<size_t>(me)].context, &block.home);
}

Extent ThreadOf(int i, const Extent& extent) {
  const unsigned linear = static_cast<unsigned>(i);
  return {linear % extent.x, linear / extent.x % extent.y, linear / (extent.x * extent.y)};
}

void RunFibers(const Extent& extent) {
  for (int i = 0; i < block.num_threads; ++i) {
    Fiber& fiber = block.fibers[static_cast<size_t>(i)];
    if (fiber.stack == nullptr) fiber.stack.reset(new char[kStackBytes]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &block.home;
    fiber.is_over = false;
    fiber.block_meetings = fiber.warp_meetings = 0;
    makecontext(&fiber.context, FiberMain, 0);
  }
  for (int left = block.num_threads; left > 0;) {
    left = 0;
    for (int i = 0; i < block.num_threads; ++i) {
      Fiber& fiber = block.fibers[static_cast<size_t>(i)];
      if (fiber.is_over) continue;
      block.current = i;
      fake_thread = ThreadOf(i, extent);
      swapcontext(&block.home, &fiber.context);
      if (!fiber.is_over) ++left;
    }
  }
}

}  // namespace

void RunBlocks(const FakeKernel& kernel, const Extent& grid, const Extent& extent,
               void** arguments) {
  block.kernel = &kernel;
  block.arguments = arguments;
  block.num_threads = static_cast<int>(extent.x * extent.y * extent.z);
  if (block.fibers.size() < static_cast<size_t>(block.num_threads)) {
    block.fibers.resize(static_cast<size_t>(block.num_threads));
  }
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        fake_block = {x, y, z};
        if (kernel.has_meetings) {
          RunFibers(extent);
          continue;
        }
        for (int i = 0; i < block.num_threads; ++i) {
          fake_thread = ThreadOf(i, extent);
          kernel.call(arguments);
        }
      }
    }
  }
}

}  // namespace fake

using fake::block;

FAKE_EXPORT int fake_lane() { return block.current % fake::kWarp; }

FAKE_EXPORT unsigned fake_live_lanes() {
  const int first = block.current - fake_lane();
  unsigned lanes = 0;
  for (int lane = 0; lane < fake::kWarp && first + lane < block.num_threads; ++lane) {
    if (!block.fibers[static_cast<size_t>(first + lane)].is_over) lanes |= 1u << lane;
  }
  return lanes;
}

FAKE_EXPORT void fake_meet_block() {
  const int meeting = ++fake::Me().block_meetings;
  for (;;) {
    bool are_all_here = true;
    for (int i = 0; i < block.num_threads; ++i) {
      const fake::Fiber& other = block.fibers[static_cast<size_t>(i)];
      are_all_here = are_all_here && (other.is_over || other.block_meetings >= meeting);
    }
    if (are_all_here) return;
    fake::Yield();
  }
}

/*! \brief What another lane has brought to this meeting of the lanes in `mask`. */
FAKE_EXPORT unsigned fake_meet_warp(unsigned bits, unsigned mask, int lane) {
  const int meeting = ++fake::Me().warp_meetings;
  fake::Me().brought[meeting % 2] = bits;
  const int first = block.current - fake_lane();
  for (;;) {
    bool are_all_here = true;
    for (int i = 0; i < fake::kWarp && first + i < block.num_threads; ++i) {
      const fake::Fiber& other = block.fibers[static_cast<size_t>(first + i)];
      if (!(mask >> i & 1) || other.is_over) continue;
      are_all_here = are_all_here && other.warp_meetings >= meeting;
    }
    if (are_all_here) break;
    fake::Yield();
  }
  if (first + lane >= block.num_threads) return bits;
  return block.fibers[static_cast<size_t>(first + lane)].brought[meeting % 2];
}
