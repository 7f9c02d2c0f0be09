// Runs a program over all its devices at once. One worker thread per queue; no interpreter.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/measure/sampling.h"
#include "exec/program/program.h"
#include "exec/run/kernel_library.h"
#include "exec/run/tensor_store.h"
#include "exec/run/worker.h"

namespace heteroplace::exec {

/*! \brief What an executor is made from. */
struct ExecutorSource {
  /*! \brief Path of the libtvm.so in use. */
  std::string libtvm_path;
  /*!
   * \brief Absolute path of the artefact, or "".
   *
   * It may hold the program (symbols `heteroplace_program`, `heteroplace_program_size`) and the
   * weights (`heteroplace_blob`, `heteroplace_blob_size`); the sizes are 64-bit integers.
   */
  std::string library_path;
  /*! \brief Instead of a file: a TVM module in memory, of which a reference is taken. */
  TVMModuleHandle module = nullptr;
  /*! \brief The program; "" to take the library's. */
  std::string program_text;
  /*! \brief The weights, which must outlive the executor; null to take the library's. */
  Blob blob;
};

/*!
 * \brief A loaded program, ready to run many times.
 *
 * Any thread may call any function; a second call while one is at work is an Error kExecution.
 * After a failed run the executor can be used again.
 */
class Executor {
 public:
  /*! \throws Error kArtifact for a wrong file or program; kExecution for a missing device. */
  explicit Executor(const ExecutorSource& source);
  /*! \brief Ends and joins the workers. No call may be at work. */
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Program& program() const { return program_; }

  /*! \brief Sets an input until it is set again; `data` is compact and row major. */
  void SetInput(const std::string& name, const DLDataType& dtype, const std::vector<int64_t>& shape,
                const void* data);

  /*! \brief The tensor of an output, for its type and shape. */
  const Tensor& OutputTensor(const std::string& name) const;

  /*! \brief Copies an output of the last run. */
  void GetOutput(const std::string& name, void* data);

  /*! \brief Runs once. \throws Error kExecution with step, queue, kernel and cause. */
  void Run();

  /*! \brief Runs once and measures every instruction; queue by queue. [num_instructions] */
  std::vector<Span> RunTimed();

  /*! \brief ns of every instruction in each timed run. [num_instructions][num_runs] as RunTimed. */
  std::vector<int64_t> Profile(int64_t num_runs);

  /*!
   * \brief Wall ns of each of some runs in a row. [num_runs]
   *
   * From the start that the last worker gives to the moment at which the last worker ends; the
   * caller's own wake-up is not in it, as no caller takes part between two runs.
   */
  std::vector<int64_t> Benchmark(int64_t num_runs);

  /*! \brief As Profile, but processor ns of the worker. Without asynchronous queues only. */
  std::vector<int64_t> ProfileCpu(int64_t num_runs);

  /*!
   * \brief Measures the only kernel call of the program; all else is done once, before it.
   * \param num_calls that one sample consists of.
   * \param is_cold whether the arguments are dropped from all caches before every call.
   * \return [num_samples]
   */
  std::vector<KernelSample> Sample(int64_t num_samples, int64_t num_calls, bool is_cold);

  /*!
   * \brief Bytes held for each space, after the runs so far. [num_spaces]
   *
   * Scratch memory is that of the cores' workers, which grows in the first run. What kernels of a
   * GPU take from TVM's pool of its memory is not known.
   */
  std::vector<SpaceBytes> MemoryBytes();

  /*! \brief ns for a cache line to go between the first two CPU queues; none with fewer. */
  std::optional<int64_t> CoreToCoreNs();

 private:
  enum class Order { kRun, kCoreToCore, kSample, kStop };

  void Load(const ExecutorSource& source);
  std::string ProgramText(const ExecutorSource& source) const;
  Blob LibraryBlob() const;
  void PrepareCuda();
  void StartWorkers();
  void StopWorkers();
  void WorkerMain(size_t queue);
  void PrepareWorker(size_t queue);
  void Command(Order order, bool is_timed, int64_t num_runs);
  void RunMany(bool is_timed, int64_t num_runs);
  void BeginOne();
  void FinishOne();
  void PassLine(bool is_first);
  std::unique_lock<std::mutex> Occupy();
  void CheckInputs() const;

  TvmAbi abi_;
  std::unique_ptr<KernelLibrary> library_;
  Program program_;
  std::unique_ptr<TensorStore> store_;
  RunState state_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;
  std::vector<bool> is_input_set_;  // [num_inputs]; guarded by occupied_
  bool has_outputs_ = false;        // guarded by occupied_
  /*! \brief Held by whoever uses the executor. */
  std::mutex occupied_;

  // The order to the workers: written before `epoch_` is raised, or by the last worker of a run.
  Order order_ = Order::kRun;
  bool is_timed_ = false;
  bool is_cpu_timed_ = false;  // times of `is_timed_` are processor times
  SampleOrder sample_order_;
  int64_t runs_left_ = 0;
  /*! \brief Whether another run follows the present one, for which workers stay awake. */
  std::atomic<bool> is_repeating_{false};
  std::vector<int64_t> wall_ns_;                    // of the runs of this order
  std::vector<std::vector<int64_t>> durations_ns_;  // [num_instructions][timed runs]
  std::vector<int64_t> line_rounds_ns_;

  /*! \brief Raised to start the workers. */
  alignas(kCacheLineBytes) std::atomic<uint32_t> epoch_{0};
  Bell epoch_bell_;
  /*! \brief Workers that have not finished the run. */
  alignas(kCacheLineBytes) std::atomic<uint32_t> working_{0};
  /*! \brief Orders carried out; what the caller waits for. */
  alignas(kCacheLineBytes) std::atomic<uint32_t> carried_out_{0};
  Bell carried_out_bell_;
  /*! \brief The line that the transfer test throws between two workers. */
  alignas(kCacheLineBytes) std::atomic<uint32_t> ball_{0};
};

}  // namespace heteroplace::exec
