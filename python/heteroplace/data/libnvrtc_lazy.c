/* libnvrtc_lazy.so: lets a CUDA build of libtvm load without NVRTC, and use that of CUDA 12 or 13.
 *
 * libtvm is linked against the eight functions below, in the version of CUDA 12. This library stands
 * in for libnvrtc.so.12 in its list of needed libraries, opens the real one at the first call, and
 * forwards to it; their signatures are the same in CUDA 13. Without NVRTC every call answers
 * NVRTC_ERROR_INTERNAL_ERROR, and nvrtcGetErrorString says why.
 *
 * Any thread may call any function: the library is opened once.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { kInternalError = 11 };

typedef void* Program;

/* In NVIDIA's wheels, next to the folder of this library, then where the system looks. */
static const char* const kPlaces[] = {
    "/../nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
    "/../nvidia/cu13/lib/libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so.13",
};

static void* nvrtc;
static pthread_once_t nvrtc_once = PTHREAD_ONCE_INIT;

static void OpenNvrtc(void) {
  Dl_info self;
  char folder[PATH_MAX] = "";
  if (dladdr((void*)kPlaces, &self) != 0 && strlen(self.dli_fname) < sizeof(folder)) {
    strcpy(folder, self.dli_fname);
    char* end = strrchr(folder, '/');
    if (end != NULL) *end = '\0';
  }
  for (size_t i = 0; nvrtc == NULL && i < sizeof(kPlaces) / sizeof(*kPlaces); ++i) {
    char path[2 * PATH_MAX];
    const int is_in_wheels = kPlaces[i][0] == '/';
    if (is_in_wheels && folder[0] == '\0') continue;
    snprintf(path, sizeof(path), "%s%s", is_in_wheels ? folder : "", kPlaces[i]);
    nvrtc = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
}

static void* Resolve(const char* name) {
  pthread_once(&nvrtc_once, OpenNvrtc);
  return nvrtc == NULL ? NULL : dlsym(nvrtc, name);
}

#define FORWARD(name, parameters, arguments)                             \
  EXPORT int name parameters {                                           \
    int(*function) parameters = (int(*) parameters)Resolve(#name);       \
    return function == NULL ? kInternalError : function arguments;       \
  }

FORWARD(nvrtcCompileProgram, (Program program, int num_options, const char* const* options),
        (program, num_options, options))
FORWARD(nvrtcCreateProgram,
        (Program * program, const char* source, const char* name, int num_headers,
         const char* const* headers, const char* const* header_names),
        (program, source, name, num_headers, headers, header_names))
FORWARD(nvrtcDestroyProgram, (Program * program), (program))
FORWARD(nvrtcGetPTX, (Program program, char* text), (program, text))
FORWARD(nvrtcGetPTXSize, (Program program, size_t* bytes), (program, bytes))
FORWARD(nvrtcGetProgramLog, (Program program, char* text), (program, text))
FORWARD(nvrtcGetProgramLogSize, (Program program, size_t* bytes), (program, bytes))

EXPORT const char* nvrtcGetErrorString(int status) {
  const char* (*function)(int) = (const char* (*)(int))Resolve("nvrtcGetErrorString");
  if (function != NULL) return function(status);
  return "NVRTC cannot be opened: pip install nvidia-cuda-nvrtc-cu12 (CUDA 12) or "
         "nvidia-cuda-nvrtc (CUDA 13)";
}
