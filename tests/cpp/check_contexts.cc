// Several requests at once on one core: while one waits for another core, the next one goes on.
// Arguments: the path of libtvm.so or "", and of the library of kernels.cc.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>

#include "check.h"
#include "exec/engine/executor.h"
#include "random_program.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

constexpr int kRequests = 12;

/*!
 * \brief The first core begins and ends each request, and the second one, between, waits until the
 * first has begun a later one, whose number the input says.
 */
std::string Pipeline() {
  const std::vector<int> cores = Cores();
  std::string text = "heteroplace-program 1\nspace 0 ram 1 0 " + std::to_string(12 * kExtent);
  for (int q = 0; q < 2; ++q) {
    text += "\nqueue " + std::to_string(q) + " q" + std::to_string(q) + " cpu 1 0 0 " +
            std::to_string(cores[static_cast<size_t>(q)]);
  }
  for (int slot = 0; slot < 3; ++slot) {
    text += "\ntensor " + std::to_string(slot) + " 0 arena " + std::to_string(4 * kExtent * slot) +
            " 2 32 64";
  }
  return text +
         "\ntensor 3 0 external - 2 32 64\ninput x 3\noutput y 2\n"
         "kernel 0 arrive\nkernel 1 await_arrivals\nkernel 2 add\n"
         "call 0 0 0 1 3,0 -\ncall 1 1 1 1 0,1 0:1\ncall 0 2 2 1 0,1,2 1:1\nend\n";
}

/*! \brief A core that is first and last in a request has begun others before it ends the first. */
void ACoreGoesOnWhileARequestWaits(int num_ahead) {
  static int64_t num_arrived = 0;  // of this process, as the kernels count
  exec::ExecutorSource source = SourceOf(Pipeline(), num_ahead + 1);
  exec::Executor executor(source);
  executor.StartTrace({});
  std::deque<std::unique_ptr<exec::Request>> in_flight;
  const auto finish = [&] {
    in_flight.front()->Finish();
    in_flight.pop_front();
  };
  for (int r = 0; r < kRequests; ++r) {
    if (r > num_ahead) finish();
    // The last ones wait for nobody who comes after them.
    const int last = std::min(r + num_ahead, kRequests - 1);
    const Vector value(kExtent, static_cast<float>(num_arrived + last + 1));
    in_flight.push_back(executor.Begin());
    in_flight.back()->SetInput("x", {exec::kDLFloat, 32, 1}, {kExtent}, value.data());
    in_flight.back()->Submit();
  }
  while (!in_flight.empty()) finish();
  num_arrived += kRequests;
  const exec::Trace trace = executor.StopTrace();
  std::map<std::pair<int64_t, int32_t>, int64_t> finish_ns;  // of instructions of the first queue
  for (const exec::TraceEvent& event : trace.events) {
    CHECK(event.is_done && event.wait_ns >= 0);
    if (event.queue == 0) finish_ns[{event.request, event.instruction}] = event.finish_ns;
  }
  for (int64_t r = 0; r + num_ahead < kRequests; ++r) {
    const std::pair<int64_t, int32_t> ends(r, 1), later(r + num_ahead, 0);
    CHECK(finish_ns.at(later) < finish_ns.at(ends));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK_EQ(argc, 3);
  libtvm_path = argv[1];
  library_path = argv[2];
  if (Cores().size() < 2) return 0;
  const exec::Executor kept(SourceOf(Pipeline(), 1));  // the library keeps its count of arrivals
  for (const int num_ahead : {1, 2, 7}) ACoreGoesOnWhileARequestWaits(num_ahead);
  return 0;
}
