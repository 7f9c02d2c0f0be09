// The program `heteroplace-run`: a compiled file on all devices of its plan, without Python.
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/exit_codes.h"
#include "cli/run_model.h"
#include "cli/run_options.h"
#include "support/error.h"
#include "support/shown_text.h"

namespace {

using heteroplace::cli::ExitCode;

int End(ExitCode code, const char* text) {
  std::fflush(stdout);
  std::fprintf(stderr, "heteroplace-run: %s\n", heteroplace::ShownText(text).c_str());
  return static_cast<int>(code);
}

void Main(const std::vector<std::string>& arguments) {
  const heteroplace::cli::RunOptions options = heteroplace::cli::ParseRunOptions(arguments);
  if (options.is_help) {
    std::fputs(heteroplace::cli::kHelp, stdout);
  } else {
    heteroplace::cli::RunModel(options);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Main({argv + 1, argv + argc});
    return std::fflush(stdout) == 0 ? 0 : End(ExitCode::kBadArray, "stdout cannot be written");
  } catch (const heteroplace::cli::Stop& stop) {
    return End(stop.code(), stop.what());
  } catch (const heteroplace::Error& error) {
    return End(ExitCode::kBadArray, error.what());  // of a file that was read or written here
  } catch (const std::bad_alloc&) {
    return End(ExitCode::kOutOfMemory, "the host has no memory left for inputs and outputs");
  } catch (const std::exception& error) {
    return End(ExitCode::kInternal, error.what());
  }
}
