// A library with two kernels, linked as `lower/library.py` links, for check_file.
#include <cmath>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int first(float* data, int, int, void*, int*, void*) {
  data[0] = std::tanh(data[0]);
  return 0;
}

EXPORT int second(float* data, int, int, void*, int*, void*) {
  data[0] = std::exp(data[0]);
  return 0;
}
