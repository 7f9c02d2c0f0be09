// The command line of `heteroplace-run`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "capi/heteroplace.h"

namespace heteroplace::cli {

/*! \brief What the command line asks for. */
struct RunOptions {
  std::string model;
  /*! \brief Names and files, in the order of the command line. */
  std::vector<std::pair<std::string, std::string>> inputs;
  std::vector<std::pair<std::string, std::string>> outputs;
  int repeat = 1;
  int requests_in_flight = 1;
  /*! \brief Of each run; negative: no limit. */
  double timeout_s = -1;
  /*! \brief File of the trace; "": none. */
  std::string trace;
  std::string tvm_library;
  /*! \brief Hosts of the ranks, "b,a"; "": in the order of the cluster. */
  std::string hosts;
  std::string mpi_library;
  heteroplace_helping helping = HETEROPLACE_HELPING_AUTO;
  bool adapts = true;
  /*! \brief Files of public keys; empty: a signature is not looked at. */
  std::vector<std::string> trusted_keys;
  /*! \brief Only say what the model takes and gives. */
  bool is_description = false;
  /*! \brief Only say how this program is called. */
  bool is_help = false;
};

/*! \brief \throws Stop kUsage: which option is wrong, and what was expected. */
RunOptions ParseRunOptions(const std::vector<std::string>& arguments);

/*! \brief The text of `--help`. */
extern const char kHelp[];

}  // namespace heteroplace::cli
