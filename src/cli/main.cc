// The program `heteroplace-run`: a compiled file on all devices of its plan, without Python.
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/exit_codes.h"
#include "cli/run_model.h"
#include "cli/run_options.h"
#include "exec/net/mpi_abi.h"
#include "support/error.h"
#include "support/shown_text.h"

namespace {

using heteroplace::cli::ExitCode;

/*! \brief What one process of a job knows of itself before it meets the others. */
struct Process {
  heteroplace::cli::Job job;
  bool is_rank = false;
};

int End(const Process& process, ExitCode code, const char* text) {
  std::fflush(stdout);
  // Of a job that failed one rank has said why.
  if (!process.job.has_failed.load()) {
    std::fprintf(stderr, "heteroplace-run: %s\n", heteroplace::ShownText(text).c_str());
  }
  return static_cast<int>(code);
}

void Main(const std::vector<std::string>& arguments, Process* process) {
  const heteroplace::cli::RunOptions options = heteroplace::cli::ParseRunOptions(arguments);
  if (options.is_help) {
    std::fputs(heteroplace::cli::kHelp, stdout);
    return;
  }
  // A launcher that starts one rank is as none, unless that is meant.
  const bool is_meant = !options.hosts.empty() || !options.mpi_library.empty();
  process->is_rank = is_meant || heteroplace::exec::LaunchedRanks().value_or(1) > 1;
  heteroplace::cli::RunModel(options, process->is_rank ? &process->job : nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  Process process;
  try {
    Main({argv + 1, argv + argc}, &process);
    return std::fflush(stdout) == 0
               ? 0
               : End(process, ExitCode::kBadArray, "stdout cannot be written");
  } catch (const heteroplace::cli::Stop& stop) {
    return End(process, stop.code(), stop.what());
  } catch (const heteroplace::Error& error) {
    return End(process, ExitCode::kBadArray, error.what());  // of a file that was read or written here
  } catch (const std::bad_alloc&) {
    return End(process, ExitCode::kOutOfMemory, "the host has no memory left for inputs and outputs");
  } catch (const std::exception& error) {
    return End(process, ExitCode::kInternal, error.what());
  }
}
