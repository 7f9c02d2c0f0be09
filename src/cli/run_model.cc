#include "cli/run_model.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>

#include "cli/exit_codes.h"
#include "cli/model.h"
#include "cli/npy.h"
#include "exec/file/sha256.h"
#include "support/error.h"
#include "support/files.h"
#include "support/shown_text.h"

namespace heteroplace::cli {

namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/*! \brief A file that the command line names for an input. */
struct GivenInput {
  std::string name;
  std::string title;  // for messages
  std::string bytes;
  NpyArray array;  // lies in the bytes
};

/*! \brief Read before the model is loaded: a file that is missing or damaged is told at once. */
std::vector<GivenInput> ReadInputs(const RunOptions& options) {
  std::vector<GivenInput> inputs(options.inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& [name, file] = options.inputs[i];
    inputs[i].name = name;
    inputs[i].title = "input '" + name + "': " + file;
    inputs[i].bytes = ReadWhole(file);
    inputs[i].array = ReadNpy(inputs[i].bytes, inputs[i].title);
  }
  return inputs;
}

/*! \brief Files that cannot be written are told before all the runs. */
void CheckFiles(const RunOptions& options) {
  for (const auto& [name, file] : options.outputs) CheckWritable(file);
  if (!options.trace.empty()) CheckWritable(options.trace);
}

/*! \brief The port of a name; null, with a text added to the faults, if there is none. */
Port* Find(std::vector<Port>* ports, const char* kind, const std::string& name,
           std::string* faults) {
  std::string names;
  for (Port& port : *ports) {
    if (port.name() == name) return &port;
    names += (names.empty() ? "'" : ", '") + port.name() + "'";
  }
  *faults += std::string(faults->empty() ? "" : "; ") + "the model has no " + kind + " '" + name +
             "'; it has " + (names.empty() ? "none" : names);
  return nullptr;
}

/*! \brief Takes an array of the port's type: bfloat16 comes as the bits of uint16. */
void Fill(Port* port, GivenInput* given, std::string* faults) {
  exec::DLDataType got = given->array.dtype;
  const exec::DLDataType expected = port->dtype();
  const bool is_bits =
      expected.code == exec::kDLBfloat && got.code == exec::kDLUInt && got.bits == expected.bits;
  if (is_bits) got = expected;
  const bool is_same_type = got.code == expected.code && got.bits == expected.bits;
  if (!is_same_type || given->array.shape != port->shape()) {
    *faults += (faults->empty() ? "" : "; ") + given->title + ": expected " + port->Describe() +
               ", got " + exec::DescribeTensor(got, given->array.shape);
  }
  port->data = given->array.data;
  port->tensor.data = port->data.data();
  given->bytes = {};
}

/*! \brief Ties files to ports; all that is wrong is told before anything is run. */
void TakeInputs(std::vector<GivenInput> inputs, const RunOptions& options, Model* model) {
  std::string faults;
  for (GivenInput& given : inputs) {
    Port* port = Find(&model->inputs, "input", given.name, &faults);
    if (port != nullptr) Fill(port, &given, &faults);
  }
  for (const auto& [name, file] : options.outputs) Find(&model->outputs, "output", name, &faults);
  for (const Port& port : model->inputs) {
    if (port.tensor.data != nullptr) continue;
    faults += (faults.empty() ? "input '" : "; input '") + port.name() + "' is missing: give " +
              port.Describe() + " by --input NAME=FILE.npy";
  }
  if (!faults.empty()) throw Stop(ExitCode::kBadArray, faults);
}

std::vector<heteroplace_tensor> TensorsOf(const std::vector<Port>& ports) {
  std::vector<heteroplace_tensor> tensors;
  tensors.reserve(ports.size());
  for (const Port& port : ports) tensors.push_back(port.tensor);
  return tensors;
}

/*! \brief Times of a series of runs. */
struct Series {
  std::vector<double> run_ms;  // in the order of their ends
  double all_ms = 0;
};

/*! \brief One run after the other; each from the caller's inputs to the caller's outputs. */
Series RunInTurn(const Model& model, int num_runs, double timeout_s) {
  const std::vector<heteroplace_tensor> inputs = TensorsOf(model.inputs);
  const std::vector<heteroplace_tensor> outputs = TensorsOf(model.outputs);
  Series series;
  const Clock::time_point start = Clock::now();
  for (int run = 0; run < num_runs; ++run) {
    const Clock::time_point begin = Clock::now();
    Expect(heteroplace_run(model.handle(), inputs.data(), static_cast<int32_t>(inputs.size()),
                           outputs.data(), static_cast<int32_t>(outputs.size()), timeout_s));
    series.run_ms.push_back(MillisecondsSince(begin));
  }
  series.all_ms = MillisecondsSince(start);
  return series;
}

/*! \brief Several runs at a time, in a ring: the oldest is awaited when all are at work. */
Series RunInFlight(const Model& model, int num_runs, int num_requests, double timeout_s) {
  std::vector<Request> ring;
  for (int i = 0; i < std::min(num_requests, num_runs); ++i) {
    heteroplace_request* request = nullptr;
    Expect(heteroplace_begin(model.handle(), timeout_s, &request));
    ring.emplace_back(request);
  }
  Series series;
  std::vector<Clock::time_point> begins(ring.size());
  const Clock::time_point start = Clock::now();
  for (int run = 0; run < num_runs + static_cast<int>(ring.size()); ++run) {
    const size_t place = static_cast<size_t>(run) % ring.size();
    heteroplace_request* request = ring[place].get();
    if (run >= static_cast<int>(ring.size())) {
      const double left_s = timeout_s - MillisecondsSince(begins[place]) / 1000;
      Expect(heteroplace_finish(request, timeout_s < 0 ? timeout_s : std::max(left_s, 0.0)));
      for (const Port& port : model.outputs) Expect(heteroplace_get_output(request, &port.tensor));
      series.run_ms.push_back(MillisecondsSince(begins[place]));
    }
    if (run >= num_runs) continue;
    begins[place] = Clock::now();
    for (const Port& port : model.inputs) Expect(heteroplace_set_input(request, &port.tensor));
    Expect(heteroplace_submit(request));
  }
  series.all_ms = MillisecondsSince(start);
  return series;
}

double Quantile(const std::vector<double>& sorted, double part) {
  const double at = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

void Tell(const Series& series, int num_requests) {
  std::vector<double> sorted = series.run_ms;
  std::ranges::sort(sorted);
  const size_t count = sorted.size();
  std::printf(
      "%zu run%s, %d at a time: median %.3f ms, min %.3f ms, p90 %.3f ms, %.1f per second\n", count,
      count == 1 ? "" : "s", num_requests, Quantile(sorted, 0.5), sorted[0], Quantile(sorted, 0.9),
      static_cast<double>(count) / series.all_ms * 1000);
}

void Describe(const char* kind, const std::vector<Port>& ports) {
  for (const Port& port : ports) {
    std::printf("%s %s %s\n", kind, ShownText(port.name()).c_str(), port.Describe().c_str());
  }
}

void GiveOutputs(const RunOptions& options, Model* model) {
  for (const Port& port : model->outputs) {
    const exec::Digest digest = exec::Sha256Of(port.data.data(), port.data.size());
    std::printf("output %s %s sha256 %s\n", ShownText(port.name()).c_str(), port.Describe().c_str(),
                exec::HexOf(digest).c_str());
  }
  for (const auto& [name, file] : options.outputs) {
    for (const Port& port : model->outputs) {
      if (port.name() != name) continue;
      WriteWhole(file, WriteNpy(port.dtype(), port.shape(), port.data));
    }
  }
}

/*! \brief All runs, and what is written and told of them. */
void Run(const RunOptions& options, Model* model) {
  for (Port& port : model->outputs) {
    port.data.resize(port.tensor.bytes);
    port.tensor.data = port.data.data();
  }
  const int num_more = options.repeat - 1;
  const auto record = [&] {
    if (options.trace.empty()) return;
    Expect(heteroplace_start_trace(model->handle(), 0));
  };
  if (num_more == 0) record();
  const Series first = RunInTurn(*model, 1, options.timeout_s);
  std::printf("first run %.3f ms\n", first.all_ms);
  if (num_more > 0) {
    record();
    const int num_requests = options.requests_in_flight;
    Tell(num_requests == 1 ? RunInTurn(*model, num_more, options.timeout_s)
                           : RunInFlight(*model, num_more, num_requests, options.timeout_s),
         num_requests);
  }
  GiveOutputs(options, model);
  if (!options.trace.empty()) {
    Expect(heteroplace_stop_trace(model->handle(), options.trace.c_str(), HETEROPLACE_NO_LIMIT));
  }
}

/*! \brief What the options ask for, of a rank that feeds the model or a process alone. */
void Feed(std::vector<GivenInput> inputs, const RunOptions& options, Model* model) {
  if (options.is_description) {
    Describe("input", model->inputs);
    Describe("output", model->outputs);
  } else {
    TakeInputs(std::move(inputs), options, model);
    Run(options, model);
  }
  if (std::fflush(stdout) != 0) throw Stop(ExitCode::kBadArray, "stdout cannot be written");
}

}  // namespace

void RunModel(const RunOptions& options, Job* job) {
  if (job == nullptr) {
    CheckFiles(options);
    std::vector<GivenInput> inputs = ReadInputs(options);
    Model model(options, job);
    return Feed(std::move(inputs), options, &model);
  }
  Model model(options, job);
  if (!model.IsFeeding()) return Expect(heteroplace_serve(model.handle()));
  try {
    // Not before it is loaded: of several ranks only this one may have the files.
    CheckFiles(options);
    Feed(ReadInputs(options), options, &model);
  } catch (const std::exception& error) {
    model.Fail(CauseOf(error));  // else the others would end well
    throw;
  }
}

}  // namespace heteroplace::cli
