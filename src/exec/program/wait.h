// What holds an instruction back.
#pragma once

#include <cstdint>

namespace heteroplace::exec {

/*! \brief Holds an instruction back until `queue` has finished its first `count` instructions. */
struct Wait {
  int32_t queue;
  int32_t count;
};

}  // namespace heteroplace::exec
