// Making an executor: program, memory, kernels, workers.
#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <system_error>

#include "exec/run/executor.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Bytes between two symbols that the artefact's assembler wrote; none without them. */
std::string_view Section(const KernelLibrary& library, const char* data, const char* size) {
  const void* begin = library.Symbol(data);
  const void* bytes = library.Symbol(size);
  if (begin == nullptr || bytes == nullptr) return {};
  uint64_t count = 0;
  std::memcpy(&count, bytes, sizeof(count));
  return {static_cast<const char*>(begin), static_cast<size_t>(count)};
}

}  // namespace

Executor::Executor(const ExecutorSource& source) {
  // A destructor does not run for a constructor that throws, and threads must be joined.
  try {
    Load(source);
    StartWorkers();
  } catch (...) {
    StopWorkers();
    throw;
  }
}

Executor::~Executor() { StopWorkers(); }

std::string Executor::ProgramText(const ExecutorSource& source) const {
  if (!source.program_text.empty()) return source.program_text;
  std::string_view text = Section(*library_, "heteroplace_program", "heteroplace_program_size");
  if (text.empty()) {
    throw Error(ErrorKind::kArtifact,
                source.library_path.empty()
                    ? "no program: give its text, or a library that holds it"
                    : "'" + source.library_path +
                          "' holds no program (symbol "
                          "heteroplace_program); it was not made by heteroplace");
  }
  return std::string(text);
}

Blob Executor::LibraryBlob() const {
  std::string_view blob = Section(*library_, "heteroplace_blob", "heteroplace_blob_size");
  return {blob.data(), static_cast<int64_t>(blob.size())};
}

void Executor::Load(const ExecutorSource& source) {
  abi_ = LoadTvmAbi(source.libtvm_path);
  library_ = std::make_unique<KernelLibrary>(&abi_, source.library_path, source.module);
  program_ = ParseProgram(ProgramText(source));
  if (library_->IsInMemory()) {
    if (abi_.SetMaxConcurrency == nullptr) {
      throw Error(ErrorKind::kExecution,
                  "this TVM does not let workers bound its thread pool, so kernels in memory would "
                  "use cores of other workers; export the module to a library file");
    }
    for (const Queue& queue : program_.queues) {
      for (const Instruction& at : queue.instructions) {
        if (at.opcode == Opcode::kCall && at.threads > 1) {
          throw Error(ErrorKind::kArtifact, "program line " + std::to_string(at.line) +
                                                ": a call has " + std::to_string(at.threads) +
                                                " threads, but kernels in memory have no "
                                                "teams; export the module to a library file");
        }
      }
    }
  }
  store_ = std::make_unique<TensorStore>(&abi_, program_,
                                         source.blob.data != nullptr ? source.blob : LibraryBlob());
  std::vector<KernelFunction> kernels;
  for (const std::string& symbol : program_.kernels) kernels.push_back(library_->Function(symbol));
  PrepareCuda();
  Device* host = store_->DeviceOf({kDLCPU, 0});
  // Workers of copies and GPUs have no cores of their own: spinning ones would starve them.
  const bool all_have_cores = program_.queues.size() <= std::thread::hardware_concurrency();
  state_.run_spins = all_have_cores ? kRunSpins : kSpins;
  for (size_t q = 0; q < program_.queues.size(); ++q) {
    workers_.push_back(std::make_unique<Worker>(&abi_, program_, q, &state_, host));
    state_.workers.push_back(workers_.back().get());
    workers_.back()->MakeStream(store_.get());
  }
  size_t num_instructions = 0;
  for (std::unique_ptr<Worker>& worker : workers_) {
    worker->Bind(program_, store_.get(), library_.get(), kernels, workers_);
    num_instructions += worker->spans().size();
  }
  durations_ns_.resize(num_instructions);
  is_input_set_.assign(program_.inputs.size(), false);
  // Arenas of cores are touched by those cores; here the ones that no core works in.
  for (size_t s = 0; s < program_.spaces.size(); ++s) {
    const bool has_core =
        std::any_of(program_.queues.begin(), program_.queues.end(), [&](const Queue& queue) {
          return queue.kind == QueueKind::kCpu && queue.space == static_cast<int32_t>(s);
        });
    if (program_.spaces[s].device.device_type == kDLCPU && !has_core) {
      store_->TouchArena(static_cast<int32_t>(s));
    }
  }
}

/*! \brief Brings each GPU the code of its kernels, and joins the pairs that copy. */
void Executor::PrepareCuda() {
  std::map<int32_t, std::vector<std::string>> symbols;
  for (const Queue& queue : program_.queues) {
    if (queue.device.device_type != kDLCUDA) continue;
    for (const Instruction& at : queue.instructions) {
      if (at.opcode == Opcode::kCall) {
        symbols[queue.device.device_id].push_back(program_.kernels[static_cast<size_t>(at.kernel)]);
        continue;
      }
      const DLDevice src = store_->Get(at.tensors[0])->device;
      const DLDevice dst = store_->Get(at.tensors[1])->device;
      if (src.device_type != kDLCUDA || dst.device_type != kDLCUDA || src == dst) continue;
      store_->DeviceOf(src)->EnablePeer(dst.device_id);
      store_->DeviceOf(dst)->EnablePeer(src.device_id);
    }
  }
  if (symbols.empty()) return;
  if (library_->IsInMemory()) {
    throw Error(ErrorKind::kArtifact,
                "kernels for GPUs cannot be run from a module in memory; export it to a library "
                "file");
  }
  for (const auto& [device, names] : symbols) {
    store_->DeviceOf({kDLCUDA, device})->LoadKernels(library_->device_functions(), names);
  }
}

void Executor::StartWorkers() {
  working_.store(static_cast<uint32_t>(workers_.size()));
  try {
    for (size_t q = 0; q < workers_.size(); ++q) {
      threads_.emplace_back([this, q] { WorkerMain(q); });
    }
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::kExecution, "cannot start " + std::to_string(workers_.size()) +
                                           " worker threads: " + error.what());
  }
  // The workers prepare themselves and count down as after a run.
  carried_out_bell_.WaitUntil([&] { return carried_out_.load() != 0; }, /*spins=*/0);
  if (state_.is_cancelled.load()) throw Error(ErrorKind::kExecution, state_.failure);
}

void Executor::StopWorkers() {
  if (threads_.empty()) return;
  order_ = Order::kStop;
  epoch_.fetch_add(1);
  epoch_bell_.Ring();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Executor::PrepareWorker(size_t queue) {
  Worker& worker = *workers_[queue];
  worker.Attach();
  if (worker.queue().kind != QueueKind::kCpu) return;
  for (size_t other = 0; other < queue; ++other) {
    const Queue& earlier = program_.queues[other];
    if (earlier.kind == QueueKind::kCpu && earlier.space == worker.queue().space) return;
  }
  store_->TouchArena(worker.queue().space);
}

}  // namespace heteroplace::exec
