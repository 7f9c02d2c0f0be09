// Where TVM's library is: given, or beside this program.
#pragma once

#include <string>

namespace heteroplace::capi {

/*!
 * \brief Finds TVM's library, and loads it; the process keeps it.
 *
 * In this order: the given path, and no other; libtvm_runtime.so, else libtvm.so, in the folder of
 * the running program or of this library, in `../lib` of it, in the packages of the Python
 * environment that it lies in; and by their names, as the loader does.
 * \param given "" if none is.
 * \return what `dlopen` takes.
 * \throws Fault HETEROPLACE_NO_TVM: where it was looked for, and what the loader said of each.
 */
std::string FindTvm(const std::string& given);

}  // namespace heteroplace::capi
