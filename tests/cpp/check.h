// The harness of the C++ tests: checks that tell where, the values and the case; named tests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "support/random.h"

namespace heteroplace::test {

/*! \brief The case at work, told with a check that fails. */
inline std::string current_case = "no case";

[[noreturn]] inline void Fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s, in %s\n", file, line, what.c_str(), current_case.c_str());
  std::exit(1);
}

template <typename T>
std::string ToText(const T& value) {
  if constexpr (requires { std::to_string(value); }) {
    return std::to_string(value);
  } else {
    std::string text = "[";
    for (const auto& item : value) text += (text.size() > 1 ? ", " : "") + ToText(item);
    return text + "]";
  }
}

template <typename Left, typename Right>
void CheckEqual(const Left& left, const Right& right, const char* file, int line,
                const char* text) {
  if (!(left == right)) Fail(file, line, text + (": " + ToText(left) + ", " + ToText(right)));
}

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) ::heteroplace::test::Fail(__FILE__, __LINE__, #condition); \
  } while (false)

#define CHECK_EQ(left, right) \
  ::heteroplace::test::CheckEqual(left, right, __FILE__, __LINE__, #left " == " #right)

/*! \brief The number in a variable of the environment; 0 without it. */
inline int NumberIn(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : 0;
}

/*! \brief From one case to the next that is run: each eighth, every one where ALL_CASES is set. */
inline int Stride() { return NumberIn("ALL_CASES") != 0 ? 1 : 8; }

/*! \brief How many of `all` cases are run, at the least. */
inline int NumCases(int all) { return all / Stride(); }

/*! \brief Runs a test for the seeds 0 ... all - 1, or those of them whose turn TURN says it is. */
inline void ForSeeds(const char* name, int all, const std::function<void(Random&)>& test) {
  int count = 0;
  for (int seed = NumberIn("TURN") % Stride(); seed < all; seed += Stride(), ++count) {
    current_case = std::string(name) + ", seed " + std::to_string(seed);
    Random random(static_cast<uint64_t>(seed));
    test(random);
  }
  std::printf("%s: %d cases\n", name, count);
}

}  // namespace heteroplace::test
