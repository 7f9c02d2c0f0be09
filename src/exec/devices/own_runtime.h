// The functions of TVM's C ABI that kernels for CPUs call, without TVM.
#pragma once

#include <string>

#include "exec/devices/tvm_abi.h"

namespace heteroplace::exec {

/*!
 * \brief What kernels need that call no function of TVM: errors, and nothing else.
 *
 * Parallel loops and scratch memory are the executor's own in any case. There are no modules, no
 * packed functions and no GPUs: `TvmAbi::IsTvm` is false.
 */
TvmAbi OwnRuntime();

/*! \brief Whether kernels of an open library call what only TVM has: packed functions (sorting), or
 * barriers between the parts of a loop. \param library a handle of dlopen. */
bool CallsTvm(void* library);

/*!
 * \brief Whether a program needs TVM's library: it uses a GPU, or its kernels call what only
 * TVM has.
 * \param library_path the library of kernels; "": there is none.
 * \param program_text the program, or those of all hosts.
 * \throws Error kArtifact: the library cannot be loaded, or a program is wrong.
 */
bool NeedsTvm(const std::string& library_path, const std::string& program_text);

}  // namespace heteroplace::exec
