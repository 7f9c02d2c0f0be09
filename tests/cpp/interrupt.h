// What ends the waiting of a caller.
#pragma once

#include <stdexcept>

#include "exec/requests/limit.h"

namespace heteroplace::test {

struct Interrupt : std::runtime_error {
  Interrupt() : std::runtime_error("interrupted") {}
};

/*! \brief Whether a call with a limit throws what its hook has thrown. */
template <typename Call>
bool IsInterrupted(const Call& call) {
  exec::Limit limit;
  limit.hook = [] { throw Interrupt(); };
  try {
    call(limit);
  } catch (const Interrupt&) {
    return true;
  }
  return false;
}

}  // namespace heteroplace::test
