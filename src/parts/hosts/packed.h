// Numbers and recordings as bytes, between ranks of one version on machines of one byte order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/trace/trace.h"

namespace heteroplace::exec {

std::string Packed(const std::vector<int64_t>& numbers);
/*! \throws Error kExecution if the bytes are none of `Packed`; as all below. */
std::vector<int64_t> UnpackedNumbers(const std::string& bytes);

std::string Packed(const Trace& trace);
Trace UnpackedTrace(const std::string& bytes);

}  // namespace heteroplace::exec
