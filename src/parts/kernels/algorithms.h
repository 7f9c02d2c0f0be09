// What NVIDIA's libraries on this machine offer: their versions, and algorithms for a kernel.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exec/devices/tvm_abi.h"

namespace heteroplace::exec {

/*!
 * \brief The version of a library, as 120903 for 12.9.3.
 * \param prefix of its kernels' names: "cublaslt" or "cudnn".
 * \throws Error kExecution: there is none; kArtifact: there is no such library.
 */
int64_t LibraryVersion(const TvmAbi& abi, std::string_view prefix);

/*!
 * \brief The algorithms that a library offers for a kernel on a device, likely ones first.
 * \param symbol its version and algorithm are not looked at.
 * \param max_workspace_bytes that an algorithm may need.
 * \param max_count of algorithms.
 * \return names of the kernel with each; none: the library cannot compute it.
 * \throws Error kExecution where there is no library or device; kArtifact: it is no such kernel.
 */
std::vector<std::string> FindAlgorithms(const TvmAbi& abi, int device, std::string_view symbol,
                                        int64_t max_workspace_bytes, int max_count);

}  // namespace heteroplace::exec
