// Carries out the blocks of a kernel on the calling thread; see host_kernels.h.
#include <setjmp.h>
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
  std::unique_ptr<char[]> stack;
  /*! \brief Where it goes on; it begins by a context, as only that can name a stack. */
  jmp_buf place;
  bool has_begun = false;
  bool is_over = true;
  /*! \brief Meetings of its warp, and what it brought to the last two. */
  int warp_meetings = 0;
  unsigned brought[2] = {};
};

/*! \brief The fibers of one block of one thread. Stacks are kept for the next block. */
struct Block {
  jmp_buf home;
  std::vector<Fiber> fibers;
  int num_threads = 0;
  /*! \brief Fibers that are not over, those of them that have come to the present meeting of all,
   * and meetings so far. */
  int num_live = 0;
  int num_here = 0;
  int meetings = 0;
  /*! \brief Where in the code the first one came to it. */
  const void* meeting_place = nullptr;
  int current = 0;
  const FakeKernel* kernel = nullptr;
  void** arguments = nullptr;
};

thread_local Block block;

Fiber& Me() { return block.fibers[static_cast<size_t>(block.current)]; }

/*! \brief Ends the meeting of all once nobody is missing. */
void EndMeeting() {
  if (block.num_here == 0 || block.num_here < block.num_live) return;
  block.num_here = 0;
  ++block.meetings;
}

void FiberMain() {
  block.kernel->call(block.arguments);
  Me().is_over = true;
  --block.num_live;
  EndMeeting();
  _longjmp(block.home, 1);
}

/*! \brief Lets the others go on. */
void Yield() {
  if (_setjmp(Me().place) == 0) _longjmp(block.home, 1);
}

/*! \brief Lets the present fiber go on until it yields or is over. */
void Resume() {
  if (_setjmp(block.home) != 0) return;
  Fiber& fiber = Me();
  if (fiber.has_begun) _longjmp(fiber.place, 1);
  fiber.has_begun = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, FiberMain, 0);
  setcontext(&context);
}

Extent ThreadOf(int i, const Extent& extent) {
  const unsigned linear = static_cast<unsigned>(i);
  return {linear % extent.x, linear / extent.x % extent.y, linear / (extent.x * extent.y)};
}

void RunFibers(const Extent& extent) {
  for (int i = 0; i < block.num_threads; ++i) {
    Fiber& fiber = block.fibers[static_cast<size_t>(i)];
    if (fiber.stack == nullptr) fiber.stack.reset(new char[kStackBytes]);
    fiber.is_over = fiber.has_begun = false;
    fiber.warp_meetings = 0;
  }
  block.num_live = block.num_threads;
  block.num_here = block.meetings = 0;
  while (block.num_live > 0) {
    for (int i = 0; i < block.num_threads; ++i) {
      block.current = i;
      if (Me().is_over) continue;
      fake_thread = ThreadOf(i, extent);
      Resume();
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
  const int meeting = block.meetings;
  const void* place = __builtin_return_address(0);
  if (block.num_here++ == 0) block.meeting_place = place;
  if (block.meeting_place != place) {
    // CUDA leaves open what happens then; TVM's sorting does so, for one.
    fake::Broken("threads of a block meet at different places of a kernel", 0);
  }
  fake::EndMeeting();
  while (block.meetings == meeting) fake::Yield();
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
