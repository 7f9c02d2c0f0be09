/* libcuda_lazy.so: lets a CUDA build of libtvm load on a machine that has no NVIDIA driver.
 *
 * libtvm is linked against the nine driver functions below. This library stands in for libcuda.so.1
 * in its list of needed libraries, opens the real driver at the first call, and forwards to it.
 * Without a driver every call answers CUDA_ERROR_NO_DEVICE, which TVM reports as "no device".
 *
 * Any thread may call any function: the driver is opened once, and a function pointer that two
 * threads look up at the same time is the same pointer for both.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

enum { kSuccess = 0, kErrorNoDevice = 100 };

/* The driver API's own types; handles are opaque here. */
typedef unsigned long long DevicePointer;
typedef void* Handle;

static void* driver;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

static void OpenDriver(void) { driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL); }

static void* Resolve(const char* name) {
  pthread_once(&driver_once, OpenDriver);
  return driver == NULL ? NULL : dlsym(driver, name);
}

/* Defines `name`. The looked-up address is kept: cuLaunchKernel runs once per kernel. */
#define FORWARD(name, parameters, arguments)                       \
  EXPORT int name parameters {                                     \
    typedef int(*Function) parameters;                             \
    static Function known;                                         \
    Function function = __atomic_load_n(&known, __ATOMIC_RELAXED); \
    if (function == NULL) {                                        \
      function = (Function)Resolve(#name);                         \
      if (function == NULL) return kErrorNoDevice;                 \
      __atomic_store_n(&known, function, __ATOMIC_RELAXED);        \
    }                                                              \
    return function arguments;                                     \
  }

FORWARD(cuDeviceGetName, (char* name, int length, int device), (name, length, device))
FORWARD(cuFuncSetAttribute, (Handle kernel, int attribute, int value), (kernel, attribute, value))
FORWARD(cuLaunchKernel,
        (Handle kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
         unsigned block_y, unsigned block_z, unsigned shared_bytes, Handle stream, void** arguments,
         void** extra),
        (kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments,
         extra))
FORWARD(cuMemsetD32_v2, (DevicePointer start, unsigned value, size_t count), (start, value, count))
FORWARD(cuModuleGetFunction, (Handle * kernel, Handle module, const char* name),
        (kernel, module, name))
FORWARD(cuModuleGetGlobal_v2,
        (DevicePointer * start, size_t* bytes, Handle module, const char* name),
        (start, bytes, module, name))
FORWARD(cuModuleLoadData, (Handle * module, const void* image), (module, image))
FORWARD(cuModuleUnload, (Handle module), (module))

/* TVM prints the text without looking at the result, so it must be set also without a driver. */
EXPORT int cuGetErrorName(int error, const char** text) {
  int (*function)(int, const char**) = (int (*)(int, const char**))Resolve("cuGetErrorName");
  if (function != NULL) return function(error, text);
  *text = "CUDA_ERROR_NO_DEVICE (libcuda.so.1 cannot be opened: no NVIDIA driver)";
  return kSuccess;
}
