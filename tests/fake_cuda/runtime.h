// How the functions of libcudart begin and end.
#pragma once

#include "fake.h"

namespace fake {

/*! \brief What the calling thread's last function that failed returned; 0: none failed since. */
int& LastError();

/*! \brief Keeps a function's result as the thread's last error. */
inline int Return(int error) {
  if (error != 0) LastError() = error;
  return error;
}

}  // namespace fake

#define BEGIN(kind, device)                                                          \
  if (const int begin_error = fake::Begin(__func__, kind, device); begin_error != 0) \
  return fake::Return(begin_error)
