// A library that calls itself MPI and is none of those whose handles are known, for
// check_transport.
#include <cstring>

extern "C" __attribute__((visibility("default"))) int MPI_Get_library_version(char* text,
                                                                              int* length) {
  std::strcpy(text, "Foreign MPI 1.2\nof nobody");
  *length = static_cast<int>(std::strlen(text));
  return 0;
}
