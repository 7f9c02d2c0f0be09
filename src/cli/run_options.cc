#include "cli/run_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "cli/exit_codes.h"

namespace heteroplace::cli {

const char kHelp[] =
    R"(heteroplace-run MODEL [options]: run a compiled file on all devices of its plan

  --input NAME=FILE.npy      an input, from numpy's file format; each must be given
  --output NAME=FILE.npy     write an output of the last run
  --repeat N                 runs (1); the first, which is slower, is told apart from the others
  --requests-in-flight N     runs at work at a time (1), each with memory of its own
  --timeout S                most seconds of each run, and of silence of a rank
  --trace FILE.json          write a trace of the timed runs, the last ones that 8 MiB hold, for
                             https://ui.perfetto.dev
  --tvm-library PATH         libtvm_runtime.so or libtvm.so, for files that need it (GPUs, sorting); else
                             looked for beside this program, in ../lib, in the Python environment
                             around it, and where the loader looks
  --hosts B,A                a file for several hosts: which of them each rank runs, in the order
                             of the ranks; else in the order of the cluster
  --mpi LIBRARY              libmpi.so; else that of the launcher, or where the loader looks
  --helping auto|on|off      whether a core that waits does parts of other cores' kernels (auto:
                             those that share a cache do); outputs are the same to the last bit
  --adapt on|off             whether one thread does a run alone while that is faster: if other programs
                             or runs use the cores (on); outputs are the same to the last bit
  --trusted-key KEY.pem      run only what this public key has signed; may be given again
  --describe                 only say what the model takes and gives
  --help                     this text

A file for several hosts is run by one rank each: mpiexec -n 2 heteroplace-run MODEL ... All take
the same options; the rank whose host feeds the model reads and writes the files.

No Python is needed. Without --output the digests (SHA-256) of the outputs are told.

Exit codes: 0 done; 1 a fault of this program; 2 command line; 3 compiled file refused; 4 a file of
an input or output, or its type or shape; 5 no TVM library; 6 a device is missing or a kernel
failed; 7 a run took longer than --timeout; 8 out of memory. If any rank fails all end with a code
that is not 0, and one of them says why
)";

namespace {

[[noreturn]] void Fail(const std::string& text) {
  throw Stop(ExitCode::kUsage, text + "; see heteroplace-run --help");
}

template <typename Number>
Number NumberOf(const std::string& option, const std::string& text, const char* expected) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || text.empty()) {
    Fail(option + " is '" + text + "'; expected " + expected);
  }
  return number;
}

int CountOf(const std::string& option, const std::string& text) {
  constexpr char kExpected[] = "a whole number from 1 on";
  const int count = NumberOf<int>(option, text, kExpected);
  if (count < 1) Fail(option + " is '" + text + "'; expected " + kExpected);
  return count;
}

double SecondsOf(const std::string& option, const std::string& text) {
  constexpr char kExpected[] = "seconds, from 0 on";
  const double seconds = NumberOf<double>(option, text, kExpected);
  if (!std::isfinite(seconds) || seconds < 0) {
    Fail(option + " is '" + text + "'; expected " + kExpected);
  }
  return seconds;
}

std::pair<std::string, std::string> PairOf(const std::string& option, const std::string& text) {
  const size_t at = text.find('=');
  if (at == std::string::npos || at == 0 || at + 1 == text.size()) {
    Fail(option + " is '" + text + "'; expected NAME=FILE.npy");
  }
  return {text.substr(0, at), text.substr(at + 1)};
}

void Add(std::vector<std::pair<std::string, std::string>>* pairs, const std::string& option,
         const std::string& text) {
  const auto pair = PairOf(option, text);
  const bool is_twice =
      std::ranges::any_of(*pairs, [&](const auto& other) { return other.first == pair.first; });
  if (is_twice) Fail(option + " is given twice for '" + pair.first + "'");
  pairs->push_back(pair);
}

heteroplace_helping HelpingOf(const std::string& option, const std::string& text) {
  constexpr std::pair<std::string_view, heteroplace_helping> kWords[] = {
      {"auto", HETEROPLACE_HELPING_AUTO},
      {"on", HETEROPLACE_HELPING_ON},
      {"off", HETEROPLACE_HELPING_OFF}};
  for (const auto& [word, helping] : kWords) {
    if (text == word) return helping;
  }
  Fail(option + " is '" + text + "'; expected auto, on or off");
}

bool IsOn(const std::string& option, const std::string& text) {
  if (text != "on" && text != "off") Fail(option + " is '" + text + "'; expected on or off");
  return text == "on";
}

/*! \brief An option with a value. */
struct Option {
  std::string_view name;
  void (*take)(const std::string& option, const std::string& value, RunOptions* options);
};

constexpr Option kOptions[] = {
    {"--input", [](const auto& o, const auto& value, auto* to) { Add(&to->inputs, o, value); }},
    {"--output", [](const auto& o, const auto& value, auto* to) { Add(&to->outputs, o, value); }},
    {"--helping",
     [](const auto& o, const auto& value, auto* to) { to->helping = HelpingOf(o, value); }},
    {"--adapt", [](const auto& o, const auto& value, auto* to) { to->adapts = IsOn(o, value); }},
    {"--repeat",
     [](const auto& o, const auto& value, auto* to) { to->repeat = CountOf(o, value); }},
    {"--requests-in-flight", [](const auto& o, const auto& value,
                                auto* to) { to->requests_in_flight = CountOf(o, value); }},
    {"--timeout",
     [](const auto& o, const auto& value, auto* to) { to->timeout_s = SecondsOf(o, value); }},
    {"--hosts", [](const auto&, const auto& value, auto* to) { to->hosts = value; }},
    {"--mpi", [](const auto&, const auto& value, auto* to) { to->mpi_library = value; }},
    {"--trace", [](const auto&, const auto& value, auto* to) { to->trace = value; }},
    {"--trusted-key",
     [](const auto&, const auto& value, auto* to) { to->trusted_keys.push_back(value); }},
    {"--tvm-library", [](const auto&, const auto& value, auto* to) { to->tvm_library = value; }},
};

const Option& Find(const std::string& name) {
  for (const Option& option : kOptions) {
    if (option.name == name) return option;
  }
  Fail("there is no option " + name);
}

/*! \brief Whether two names are of one file: links, symbolic or hard, are followed. */
bool IsSameFile(const std::string& one, const std::string& other) {
  std::error_code fault;
  if (std::filesystem::equivalent(one, other, fault)) return true;
  const auto path = [&](const std::string& file) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(file, fault), fault);
  };
  const std::filesystem::path first = path(one);
  return !fault && first == path(other);
}

/*! \brief A file of the command line. */
struct NamedFile {
  std::string file;
  std::string what;
};

std::vector<NamedFile> ReadFiles(const RunOptions& options) {
  std::vector<NamedFile> files = {{options.model, "the model"}};
  for (const auto& [name, file] : options.inputs) files.push_back({file, "input '" + name + "'"});
  for (const std::string& key : options.trusted_keys) files.push_back({key, "a trusted key"});
  files.push_back({options.tvm_library, "TVM's library"});
  files.push_back({options.mpi_library, "MPI's library"});
  return files;
}

/*! \brief No output may replace another one, or an input; devices (/dev/null) take any number. */
void CheckWrittenFiles(const RunOptions& options) {
  std::vector<NamedFile> written;
  const std::vector<NamedFile> read = ReadFiles(options);
  const auto add = [&](const std::string& file, const std::string& what) {
    std::error_code fault;
    const std::filesystem::file_status status = std::filesystem::status(file, fault);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) return;
    for (const NamedFile& other : written) {
      if (!IsSameFile(file, other.file)) continue;
      Fail(other.what + " and " + what + " are both written to '" + file +
           "'; give each a file of its own");
    }
    for (const NamedFile& other : read) {
      if (other.file.empty() || !IsSameFile(file, other.file)) continue;
      Fail(what + " would overwrite '" + file + "', which is read as " + other.what +
           "; give another file to write");
    }
    written.push_back({file, what});
  };
  for (const auto& [name, file] : options.outputs) add(file, "output '" + name + "'");
  if (!options.trace.empty()) add(options.trace, "the trace");
}

}  // namespace

RunOptions ParseRunOptions(const std::vector<std::string>& arguments) {
  RunOptions options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      options.is_help = true;
      return options;
    }
    if (argument == "--describe") {
      options.is_description = true;
    } else if (!argument.starts_with('-')) {
      if (!options.model.empty()) {
        Fail("there are two models, '" + options.model + "' and '" + argument + "'");
      }
      options.model = argument;
    } else {
      const size_t equals = argument.find('=');
      const std::string name = argument.substr(0, equals);
      const Option& option = Find(name);
      if (equals != std::string::npos) {
        option.take(name, argument.substr(equals + 1), &options);
      } else if (++i < arguments.size()) {
        option.take(name, arguments[i], &options);
      } else {
        Fail(name + " has no value");
      }
    }
  }
  if (options.model.empty()) Fail("no compiled file is given");
  if (options.requests_in_flight > 1 && options.repeat == 1) {
    Fail("--requests-in-flight is about runs behind the first one; give --repeat N, too");
  }
  CheckWrittenFiles(options);
  return options;
}

}  // namespace heteroplace::cli
