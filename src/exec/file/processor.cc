#include "exec/file/processor.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace heteroplace::exec {

namespace {

struct Feature {
  const char* name;
  bool (*is_present)();
};

#if defined(__x86_64__)

// __builtin_cpu_supports takes a literal. It asks CPUID, and for the registers of AVX and AVX-512
// also whether the system keeps them.
#define FEATURE(name, gcc_name)                                \
  Feature {                                                    \
    name, [] { return __builtin_cpu_supports(gcc_name) != 0; } \
  }

constexpr Feature kFeatures[] = {
    FEATURE("sse3", "sse3"),
    FEATURE("ssse3", "ssse3"),
    FEATURE("sse4.1", "sse4.1"),
    FEATURE("sse4.2", "sse4.2"),
    FEATURE("popcnt", "popcnt"),
    FEATURE("avx", "avx"),
    FEATURE("avx2", "avx2"),
    FEATURE("fma", "fma"),
    FEATURE("f16c", "f16c"),
    FEATURE("bmi", "bmi"),
    FEATURE("bmi2", "bmi2"),
    FEATURE("lzcnt", "lzcnt"),
    FEATURE("movbe", "movbe"),
    FEATURE("adx", "adx"),
    FEATURE("fma4", "fma4"),
    FEATURE("xop", "xop"),
    FEATURE("tbm", "tbm"),
    FEATURE("sse4a", "sse4a"),
    FEATURE("avxvnni", "avxvnni"),
    FEATURE("gfni", "gfni"),
    FEATURE("vaes", "vaes"),
    FEATURE("vpclmulqdq", "vpclmulqdq"),
    FEATURE("avx512f", "avx512f"),
    FEATURE("avx512cd", "avx512cd"),
    FEATURE("avx512bw", "avx512bw"),
    FEATURE("avx512dq", "avx512dq"),
    FEATURE("avx512vl", "avx512vl"),
    FEATURE("avx512er", "avx512er"),
    FEATURE("avx512pf", "avx512pf"),
    FEATURE("avx512ifma", "avx512ifma"),
    FEATURE("avx512vbmi", "avx512vbmi"),
    FEATURE("avx512vbmi2", "avx512vbmi2"),
    FEATURE("avx512vnni", "avx512vnni"),
    FEATURE("avx512bitalg", "avx512bitalg"),
    FEATURE("avx512vpopcntdq", "avx512vpopcntdq"),
    FEATURE("avx512bf16", "avx512bf16"),
    FEATURE("avx512fp16", "avx512fp16"),
    FEATURE("amx-tile", "amx-tile"),
    FEATURE("amx-int8", "amx-int8"),
    FEATURE("amx-bf16", "amx-bf16"),
};
#undef FEATURE

#endif

}  // namespace

std::string MachineName() {
#if defined(__x86_64__)
  return "x86_64";
#else
  return "unknown";
#endif
}

std::vector<std::string> KnownFeatures() {
  std::vector<std::string> names;
#if defined(__x86_64__)
  for (const Feature& feature : kFeatures) names.emplace_back(feature.name);
#endif
  return names;
}

std::vector<std::string> PresentFeatures() {
  std::vector<std::string> names;
#if defined(__x86_64__)
  for (const Feature& feature : kFeatures) {
    if (feature.is_present()) names.emplace_back(feature.name);
  }
#endif
  return names;
}

bool RequestTiles() {
#if defined(__x86_64__) && defined(SYS_arch_prctl)
  // Numbers of Linux, whose headers lack them on older systems.
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace heteroplace::exec
