#include "parts/hosts/job.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "exec/file/sha256.h"
#include "exec/program/bundle.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Raised when ranks of two versions of this library could not work together. */
constexpr int kGroupVersion = 1;

std::string NamesOf(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

std::vector<std::string> HostsOf(const std::string& program_text) {
  std::vector<std::string> names;
  for (const Program& program : ParsePrograms(program_text)) names.push_back(program.host);
  return names;
}

std::string HowToStart(size_t num_hosts) {
  return "start " + std::to_string(num_hosts) + ": mpiexec -n " + std::to_string(num_hosts);
}

/*! \brief The hosts of ranks 0, 1, ... as positions. \throws Error kExecution. */
std::vector<int> OrderOf(const std::vector<std::string>& names, const std::string& hosts) {
  std::vector<int> order;
  if (hosts.empty()) {
    for (size_t host = 0; host < names.size(); ++host) order.push_back(static_cast<int>(host));
    return order;
  }
  for (size_t at = 0; at <= hosts.size();) {
    const size_t end = std::min(hosts.find(',', at), hosts.size());
    const auto found = std::ranges::find(names, hosts.substr(at, end - at));
    const auto host = static_cast<int>(found - names.begin());
    const bool is_twice = std::ranges::find(order, host) != order.end();
    if (found == names.end() || is_twice) break;
    order.push_back(host);
    at = end + 1;
  }
  if (order.size() == names.size()) return order;
  throw Error(ErrorKind::kExecution, "hosts are '" + hosts + "'; expected each of " +
                                         NamesOf(names) + " once, with commas between");
}

}  // namespace

JobFile JobFileOf(const std::string& path, const CompiledFile& file) {
  const Needs& needs = file.needs();
  const std::string all = needs.code + needs.weights + needs.program + file.manifest();
  return {path, HexOf(Sha256Of(all.data(), all.size())), file.program_text(), ""};
}

std::vector<std::string> AgreeOnFile(Group* group, const JobFile& file, const std::string& hosts,
                                     int max_in_flight, const Limit& limit) {
  std::vector<std::string> names;
  std::string fault = file.fault;
  try {
    if (fault.empty()) names = HostsOf(file.program_text);
  } catch (const Error& error) {
    fault = file.path + ": " + error.what();
  }
  const std::vector<Term> terms = {{"version", std::to_string(kGroupVersion)},
                                   {"MPI library", group->transport_name()},
                                   {"file", file.digest},
                                   {"hosts", hosts.empty() ? "as in the file" : hosts},
                                   {"max_in_flight", std::to_string(max_in_flight)}};
  group->Agree(terms, fault, limit);
  // All have the same from here on, and find the same.
  const auto num_ranks = static_cast<size_t>(group->num_ranks());
  if (names.size() != num_ranks) {
    group->FailAlike(file.path + " is for " + std::to_string(names.size()) + " host" +
                     (names.size() == 1 ? "" : "s") + " (" + NamesOf(names) + "), and " +
                     std::to_string(num_ranks) + " rank" + (num_ranks == 1 ? " was" : "s were") +
                     " started; " + HowToStart(names.size()));
  }
  try {
    group->SetHosts(names, OrderOf(names, hosts));
  } catch (const Error& error) {
    group->FailAlike(error.what());
  }
  return names;
}

void ExpectNoServedState(Group* group, const JobFile& file) {
  const std::vector<Program> programs = ParsePrograms(file.program_text);
  const auto feeding = static_cast<size_t>(FeedingHost(programs));
  std::string found;
  for (size_t host = 0; host < programs.size(); ++host) {
    if (host == feeding || !programs[host].HasState()) continue;
    std::vector<std::string> names;
    for (const Port& port : programs[host].inputs) names.push_back(port.name);
    found +=
        (found.empty() ? "" : "; ") + NamesOf(names) + " on host '" + programs[host].host + "'";
  }
  if (found.empty()) return;
  group->FailAlike(file.path + " has state that no rank could set here: " + found +
                   ", where only host '" + programs[feeding].host +
                   "' is given values; load it in Python, where executor.state(name, value) sets "
                   "state on any rank, or place what replaces it on that host");
}

void ExpectOneHost(const std::string& path, const std::string& program_text) {
  const std::vector<std::string> names = HostsOf(program_text);
  if (names.size() == 1) return;
  throw Error(ErrorKind::kExecution, path + " is for " + std::to_string(names.size()) + " hosts (" +
                                         NamesOf(names) + "), one rank each; " +
                                         HowToStart(names.size()) + " PROGRAM");
}

void ForgetSharedFiles() {
  constexpr char kPrefix[] = "/dev/shm/mpich_shm_";
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t at = line.find(kPrefix);
    // One that has lost its name has " (deleted)" behind it, and is not found.
    if (at != std::string::npos) unlink(line.c_str() + at);
  }
}

}  // namespace heteroplace::exec
