// Inputs and outputs by name, and the executor's own slot.
#include "exec/engine/executor.h"

#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

std::string Quoted(const std::vector<Port>& ports) {
  std::string text;
  for (const Port& port : ports) text += (text.empty() ? "'" : ", '") + port.name + "'";
  return text.empty() ? "none" : text;
}

size_t FindPort(const std::vector<Port>& ports, const char* kind, const std::string& name) {
  for (size_t i = 0; i < ports.size(); ++i) {
    if (ports[i].name == name) return i;
  }
  throw Error(ErrorKind::kExecution, std::string("the program has no ") + kind + " '" + name +
                                         "'; it has " + Quoted(ports));
}

Slot* TakeFirst(Engine* engine, const Limit& limit) {
  engine->CheckUsable();
  Slot* slot = engine->slots().AcquireFirst(limit);
  if (slot != nullptr) return slot;
  throw Error(ErrorKind::kExecution,
              "the executor's first slot was in use by others for the whole limit");
}

/*! \brief The first slot, for the length of one function. */
class Held {
 public:
  Held(Engine* engine, const Limit& limit) : engine_(engine), slot_(TakeFirst(engine, limit)) {
    try {
      slot_->Use(nullptr);
    } catch (...) {
      engine_->slots().Release(slot_);
      throw;
    }
  }
  ~Held() { engine_->slots().Release(slot_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  Slot* slot() const { return slot_; }

 private:
  Engine* engine_;
  Slot* slot_;
};

}  // namespace

Executor::Executor(const ExecutorSource& source) : engine_(std::make_unique<Engine>(source)) {}

Executor::~Executor() {
  if (engine_->Stop()) return;
  // Threads that cannot be ended now still read what the engine holds.
  Engine* engine = engine_.release();
  if (!engine->CanEnd()) return;
  try {
    std::thread([engine] {
      while (!engine->Stop()) {
      }
      delete engine;
    }).detach();
  } catch (const std::system_error&) {  // it stays for ever
  } catch (const std::bad_alloc&) {     // the same
  }
}

std::shared_ptr<Session> Executor::NewSession() {
  return std::make_shared<Session>(&engine_->image());
}

std::unique_ptr<Request> Executor::Begin(const Limit& limit, std::shared_ptr<Session> session) {
  engine_->CheckUsable();
  Slot* slot = engine_->slots().Acquire(limit);
  if (slot == nullptr) return nullptr;
  try {
    return std::make_unique<Request>(this, slot, std::move(session));
  } catch (...) {
    engine_->slots().Release(slot);
    throw;
  }
}

void Executor::SetInput(const std::string& name, const DLDataType& dtype,
                        const std::vector<int64_t>& shape, const void* data, const Limit& limit) {
  const Held held(engine_.get(), limit);
  WriteInput(held.slot(), name, dtype, shape, data);
}

void Executor::WriteInput(Slot* slot, const std::string& name, const DLDataType& dtype,
                          const std::vector<int64_t>& shape, const void* data) {
  const size_t input = FindPort(program().inputs, "input", name);
  const int32_t id = program().inputs[input].tensor;
  const Tensor& tensor = program().tensors[static_cast<size_t>(id)];
  const bool is_same_type = dtype.code == tensor.dtype.code && dtype.bits == tensor.dtype.bits &&
                            dtype.lanes == tensor.dtype.lanes;
  if (!is_same_type || shape != tensor.shape) {
    throw Error(ErrorKind::kExecution, "input '" + name + "': expected " +
                                           DescribeTensor(tensor.dtype, tensor.shape) + ", got " +
                                           DescribeTensor(dtype, shape));
  }
  std::unique_lock<std::mutex> lock;
  if (slot->index() == 0) lock = std::unique_lock(inputs_mutex_);
  slot->Write(id, data);
  slot->input_versions[input] = last_version_.fetch_add(1) + 1;
  slot->is_input_given[input] = true;
}

void Executor::FillInputs(Slot* slot, bool is_measured) {
  Slot* first = engine_->slots().first();
  std::string missing;
  for (size_t i = 0; i < slot->is_input_given.size(); ++i) {
    if (slot->is_input_given[i]) continue;
    const bool is_kept = !program().kept_states.empty() && program().is_kept_input[i];
    if (is_kept && (slot->HasSession() || is_measured)) continue;
    std::unique_lock lock(inputs_mutex_);
    // What is kept in the first slot may be that of a session now.
    if (first->input_versions[i] == 0 || (is_kept && slot != first)) {
      missing += (missing.empty() ? "'" : ", '") + program().inputs[i].name + "'";
    } else if (slot->input_versions[i] != first->input_versions[i]) {
      CopyInput(i, first, slot);
    }
  }
  if (!missing.empty()) {
    throw Error(ErrorKind::kExecution, "inputs without a value: " + missing + "; set them first");
  }
}

/*! \brief By way of the host: both slots may lie on a device. */
void Executor::CopyInput(size_t input, Slot* from, Slot* to) {
  const int32_t id = program().inputs[input].tensor;
  std::vector<char> bytes(static_cast<size_t>(program().tensors[static_cast<size_t>(id)].bytes));
  from->Read(id, bytes.data());
  to->Write(id, bytes.data());
  to->input_versions[input] = from->input_versions[input];
}

const Tensor& Executor::OutputTensor(const std::string& name) const {
  const size_t output = FindPort(program().outputs, "output", name);
  return program().tensors[static_cast<size_t>(program().outputs[output].tensor)];
}

void Executor::GetOutput(const std::string& name, void* data, const Limit& limit) {
  const Held held(engine_.get(), limit);
  ReadOutput(held.slot(), name, data);
}

bool Executor::WasLastInFirst() const { return engine_->last_slot() == engine_->slots().first(); }

/*! \brief Whether an output is state with a value, which it has before any run. */
bool Executor::HasState(Slot* slot, const Port& output) const {
  const std::vector<Port>& inputs = program().inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].name == output.name && program().IsState(output)) {
      return slot->input_versions[i] != 0;
    }
  }
  return false;
}

void Executor::ReadOutput(Slot* slot, const std::string& name, void* data) {
  const size_t output = FindPort(program().outputs, "output", name);
  if (!slot->has_outputs && !HasState(slot, program().outputs[output])) {
    throw Error(ErrorKind::kExecution, "output '" + name +
                                           "' has no value: no run has succeeded since the "
                                           "executor was made or since the last failure");
  }
  slot->Read(program().outputs[output].tensor, data);
}

void Executor::Run(const Limit& limit) {
  Request request(this, TakeFirst(engine_.get(), limit));
  request.Submit(limit, /*is_waited=*/true);
  request.Finish(limit);
}

void Executor::StartTrace(std::optional<int64_t> max_requests) {
  engine_->StartTrace(max_requests);
}

Trace Executor::StopTrace(const Limit& limit) { return engine_->StopTrace(limit); }

}  // namespace heteroplace::exec
