// The program `heteroplace-run`: a compiled file on all devices of its plan, without Python.
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/exit_codes.h"
#include "cli/run_model.h"
#include "cli/run_options.h"
#include "parts/hosts/transports/mpi_abi.h"
#include "support/error.h"
#include "support/shown_text.h"

namespace {

using heteroplace::cli::ExitCode;
using heteroplace::cli::Job;

int End(const Job& job, ExitCode code, const char* text) {
  std::fflush(stdout);
  // Of a job that failed one rank has said why, and the command line is that of all.
  const bool is_told =
      job.has_failed.load() || (code == ExitCode::kUsage && !heteroplace::exec::IsFirstLaunched());
  if (!is_told) {
    std::fprintf(stderr, "heteroplace-run: %s\n", heteroplace::ShownText(text).c_str());
  }
  return static_cast<int>(code);
}

void Main(const std::vector<std::string>& arguments, Job* job) {
  const heteroplace::cli::RunOptions options = heteroplace::cli::ParseRunOptions(arguments);
  if (options.is_help) {
    std::fputs(heteroplace::cli::kHelp, stdout);
    return;
  }
  // A launcher that starts one rank is as none, unless that is meant.
  const bool is_meant = !options.hosts.empty() || !options.mpi_library.empty();
  const bool is_rank = is_meant || heteroplace::exec::LaunchedRanks() > 1;
  heteroplace::cli::RunModel(options, is_rank ? job : nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  Job job;
  try {
    Main({argv + 1, argv + argc}, &job);
    return std::fflush(stdout) == 0 ? 0 : End(job, ExitCode::kBadArray, "stdout cannot be written");
  } catch (const heteroplace::cli::Stop& stop) {
    return End(job, stop.code(), stop.what());
  } catch (const heteroplace::Error& error) {
    return End(job, ExitCode::kBadArray, error.what());  // of a file that was read or written here
  } catch (const std::bad_alloc&) {
    return End(job, ExitCode::kOutOfMemory, "the host has no memory left for inputs and outputs");
  } catch (const std::exception& error) {
    return End(job, ExitCode::kInternal, error.what());
  }
}
