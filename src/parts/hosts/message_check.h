// What is said of a message, and of one that cannot be made: the same words for every transport.
#pragma once

#include <cstdint>
#include <string>

#include "support/error.h"

namespace heteroplace::exec {

/*! \brief A message as one rank sees it. */
struct MessageEnds {
  /*! \brief Whose side this is. */
  int rank;
  /*! \brief The other one. */
  int peer;
  int64_t tag;
  int64_t bytes;
  bool is_send;
};

/*! \brief "rank 0: send of 8 bytes to rank 1 (tag 3)". */
inline std::string DescribeMessage(const MessageEnds& ends) {
  return "rank " + std::to_string(ends.rank) + (ends.is_send ? ": send of " : ": receive of ") +
         std::to_string(ends.bytes) + " bytes " + (ends.is_send ? "to" : "from") + " rank " +
         std::to_string(ends.peer) + " (tag " + std::to_string(ends.tag) + ")";
}

/*! \brief Throws Error kExecution unless a message may have these ends. */
inline void CheckMessage(const MessageEnds& ends, int num_ranks) {
  std::string fault;
  if (ends.peer < 0 || ends.peer >= num_ranks || ends.peer == ends.rank) {
    fault = "expected another one of the " + std::to_string(num_ranks) + " ranks, 0 .. " +
            std::to_string(num_ranks - 1);
  } else if (ends.tag < 0 || ends.bytes < 0) {
    fault = "expected a tag and a size of at least 0";
  }
  if (!fault.empty()) throw Error(ErrorKind::kExecution, DescribeMessage(ends) + ": " + fault);
}

/*! \brief Throws Error kExecution if what came has not the size that was expected. */
inline void CheckReceivedBytes(const MessageEnds& ends, int64_t received) {
  if (received == ends.bytes) return;
  throw Error(ErrorKind::kExecution, DescribeMessage(ends) + ": " + std::to_string(received) +
                                         " bytes were sent; run the same file on all ranks");
}

/*! \brief Throws Error kExecution: a message is started again before `Test` was true. */
[[noreturn]] inline void RefuseSecondStart(const MessageEnds& ends) {
  throw Error(ErrorKind::kExecution, DescribeMessage(ends) + ": it is still in flight");
}

}  // namespace heteroplace::exec
