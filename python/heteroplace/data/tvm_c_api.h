/* TVM's C interface as far as its Cython sources (`tvm/_ffi/_cython`) use it: the wheel that they
   come from has no headers. Structures and values are those of DLPack 0.8 and of TVM 0.17. */
#ifndef HETEROPLACE_DATA_TVM_C_API_H_
#define HETEROPLACE_DATA_TVM_C_API_H_

#include <stdint.h>

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;

typedef union {
  int64_t v_int64;
  double v_float64;
  void* v_handle;
  const char* v_str;
  DLDataType v_type;
  DLDevice v_device;
} TVMValue;

typedef int64_t tvm_index_t;
typedef int (*TVMPackedCFunc)(TVMValue* args, int* type_codes, int num_args, void* ret,
                              void* resource_handle);
typedef void (*TVMPackedCFuncFinalizer)(void* resource_handle);

extern "C" {
void TVMAPISetLastError(const char* msg);
void TVMAPISetLastPythonError(void* py_object);
const char* TVMGetLastError(void);
int TVMFuncGetGlobal(const char* name, void** out);
int TVMFuncCall(void* func, TVMValue* arg_values, int* type_codes, int num_args, TVMValue* ret_val,
                int* ret_type_code);
int TVMFuncFree(void* func);
int TVMCFuncSetReturn(void* ret, TVMValue* value, int* type_code, int num_ret);
int TVMFuncCreateFromCFunc(TVMPackedCFunc func, void* resource_handle, TVMPackedCFuncFinalizer fin,
                           void** out);
int TVMCbArgToReturn(TVMValue* value, int* code);
int TVMArrayAlloc(const tvm_index_t* shape, int ndim, DLDataType dtype, DLDevice dev,
                  DLTensor** out);
int TVMArrayFree(DLTensor* handle);
int TVMArrayCopyFromTo(DLTensor* from, DLTensor* to, void* stream);
int TVMArrayFromDLPack(DLManagedTensor* from, DLTensor** out);
int TVMArrayToDLPack(DLTensor* from, DLManagedTensor** out);
void TVMDLManagedTensorCallDeleter(DLManagedTensor* dltensor);
int TVMObjectFree(void* obj);
int TVMObjectGetTypeIndex(void* obj, unsigned* out_tindex);
int TVMBackendRegisterEnvCAPI(const char* name, void* ptr);
}

namespace tvm {
namespace runtime {

/* An NDArray is an Object (two numbers of 32 bits and a pointer), with the tensor behind it. */
inline void* TVMArrayHandleToObjectHandle(void* handle) {
  return handle == nullptr ? nullptr : static_cast<char*>(handle) - 2 * sizeof(int32_t) - sizeof(void*);
}

}  // namespace runtime
}  // namespace tvm

#endif  // HETEROPLACE_DATA_TVM_C_API_H_
