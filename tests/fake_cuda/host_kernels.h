// Included before TVM's CUDA code, so that a C++ compiler takes it for the host.
//
// One block is carried out by one thread: its CUDA threads are fibers that go on in turn from one
// meeting to the next, or, if a kernel has no meetings, simply come one after the other.
#include <math.h>
#include <stdint.h>
#include <string.h>

struct dim3 {
  unsigned x, y, z;
};
struct uint3 {
  unsigned x, y, z;
};

// Of libcudart's stand-in.
extern "C" {
extern thread_local dim3 fake_block, fake_thread;
void fake_meet_block();
unsigned fake_meet_warp(unsigned bits, unsigned mask, int lane);
unsigned fake_live_lanes();
int fake_lane();
}

#define blockIdx fake_block
#define threadIdx fake_thread
#define __global__
#define __device__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
// A block stays on its thread from begin to end.
#define __shared__ static thread_local
#define __syncthreads() fake_meet_block()
#define __activemask() fake_live_lanes()

template <typename T>
static T FakeShuffle(unsigned mask, T value, int lane) {
  static_assert(sizeof(T) == 4, "shuffles of four bytes");
  unsigned bits;
  memcpy(&bits, &value, 4);
  bits = fake_meet_warp(bits, mask, lane);
  memcpy(&value, &bits, 4);
  return value;
}
template <typename T>
static T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = fake_lane();
  const int from =
      lane % width + static_cast<int>(delta) < width ? lane + static_cast<int>(delta) : lane;
  return FakeShuffle(mask, value, from);
}
template <typename T>
static T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int lane = fake_lane();
  return FakeShuffle(mask, value, lane - lane % width + from % width);
}

#define FAKE_VECTORS(type, name)                                          \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; };                \
  struct name##3 { type x, y, z; };                                       \
  struct alignas(4 * sizeof(type)) name##4 { type x, y, z, w; };          \
  static inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
  static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
FAKE_VECTORS(float, float)
FAKE_VECTORS(double, double)
FAKE_VECTORS(int, int)
FAKE_VECTORS(signed char, char)
FAKE_VECTORS(unsigned char, uchar)
FAKE_VECTORS(long long, longlong)

static inline float __ldg(const float* at) { return *at; }
// Macros: the C library has functions of these names for itself.
#define __expf expf
#define __logf logf
#define __powf powf
#define __tanf tanf
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <typename T>
static T max(T a, T b) {
  return a > b ? a : b;
}
template <typename T>
static T min(T a, T b) {
  return a < b ? a : b;
}

template <typename T>
struct FakeIsPointer {
  static constexpr bool value = false;
};
template <typename T>
struct FakeIsPointer<T*> {
  static constexpr bool value = true;
};
template <unsigned... kIndex>
struct FakeIndices {};
template <unsigned kCount, unsigned... kRest>
struct FakeCount : FakeCount<kCount - 1, kCount - 1, kRest...> {};
template <unsigned... kIndex>
struct FakeCount<0, kIndex...> {
  using type = FakeIndices<kIndex...>;
};

/*! \brief A kernel as the stand-in for the driver calls it. */
struct FakeKernel {
  void (*call)(void** arguments);
  unsigned num_arguments;
  const unsigned* sizes;
  const bool* are_pointers;
  bool has_meetings;
  unsigned max_threads;
};

template <typename F, F kFunction>
struct FakeEntry;
template <typename... A, void (*kFunction)(A...)>
struct FakeEntry<void (*)(A...), kFunction> {
  static constexpr unsigned sizes[] = {sizeof(A)..., 0};
  static constexpr bool are_pointers[] = {FakeIsPointer<A>::value..., false};
  template <unsigned... kIndex>
  static void Unpack(void** arguments, FakeIndices<kIndex...>) {
    kFunction(*static_cast<A*>(arguments[kIndex])...);
  }
  static void Call(void** arguments) {
    Unpack(arguments, typename FakeCount<sizeof...(A)>::type());
  }
  static constexpr FakeKernel Describe(bool has_meetings, unsigned max_threads) {
    return {&Call, sizeof...(A), sizes, are_pointers, has_meetings, max_threads};
  }
};
#define FAKE_KERNEL(name, has_meetings, max_threads)                                      \
  extern "C" __attribute__((visibility("default"))) const FakeKernel fake_kernel_##name = \
      FakeEntry<decltype(&name), &name>::Describe(has_meetings, max_threads);
