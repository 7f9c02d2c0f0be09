// What `heteroplace-run` ends with.
#pragma once

#include <stdexcept>
#include <string>

namespace heteroplace::cli {

/*! \brief As `--help` says. */
enum class ExitCode : int {
  kDone = 0,
  kInternal = 1,     ///< a fault of this program
  kUsage = 2,        ///< the command line
  kBadFile = 3,      ///< the compiled file
  kBadArray = 4,     ///< a file of an input or output, or what is in it
  kNoTvm = 5,        ///< TVM's library
  kFailed = 6,       ///< a device is missing, a kernel failed
  kTimedOut = 7,     ///< a run took longer than --timeout
  kOutOfMemory = 8,  ///< of the host
};

/*! \brief Ends the program: a code, and a text that says what, where and how to mend it. */
class Stop : public std::runtime_error {
 public:
  Stop(ExitCode code, const std::string& text) : std::runtime_error(text), code_(code) {}

  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

}  // namespace heteroplace::cli
