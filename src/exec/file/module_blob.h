// The list of modules that TVM has put into a library of kernels (`__tvm_dev_mblob`).
#pragma once

#include <string>
#include <string_view>

namespace heteroplace::exec {

inline constexpr std::string_view kModuleBlobSymbol = "__tvm_dev_mblob";

/*!
 * \brief Checks what TVM reads without bounds: sizes, and the tree of modules.
 * \param blob the bytes behind their count.
 * \return What is wrong with it; "": nothing.
 */
std::string FaultOfModuleBlob(std::string_view blob);

}  // namespace heteroplace::exec
