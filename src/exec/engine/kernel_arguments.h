// The check that calls pass what their kernels take. It is done once, when a program is loaded.
#pragma once

#include <string_view>

#include "exec/program/program.h"

namespace heteroplace::exec {

/*! \brief Symbol of a text in a library: the arguments of kernels that do not check them in each
 * call. */
inline constexpr const char* kKernelArguments = "heteroplace_kernel_arguments";

/*!
 * \brief Compares the device and the tensors of each call with what its kernel takes.
 * \param table lines as "symbol; cpu; float32 (1, 64); float32 (1, 64)", tensors as by
 *   DescribeTensor. Kernels without a line check their arguments themselves.
 * \throws Error kArtifact, which names the line of the program, both lists and what to do.
 */
void CheckKernelArguments(const Program& program, std::string_view table);

}  // namespace heteroplace::exec
