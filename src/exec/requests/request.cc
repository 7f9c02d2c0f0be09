#include "exec/requests/request.h"

#include <algorithm>
#include <utility>

#include "exec/engine/executor.h"
#include "support/error.h"

namespace heteroplace::exec {

Request::Request(Executor* executor, Slot* slot, std::shared_ptr<Session> session)
    : executor_(executor), slot_(slot) {
  slot->Use(std::move(session));
  slot->is_input_given.assign(slot->is_input_given.size(), false);
  slot->has_outputs = false;
}

class Request::Use {
 public:
  explicit Use(Request* request) : request_(request) {
    if (request_->is_used_.exchange(true)) {
      throw Error(ErrorKind::kExecution,
                  "the request is in use by another thread; make a request for each");
    }
    if (request_->is_closed_) {
      request_->is_used_.store(false);
      throw Error(ErrorKind::kExecution,
                  "the request is closed, or was lost to a step that does not end; make a new one");
    }
  }
  ~Use() { request_->is_used_.store(false); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  Request* request_;
};

// Closing fails only where no memory is left for a message, which ends the process.
Request::~Request() {  // NOLINT(bugprone-exception-escape)
  if (!is_closed_) Close();
}

void Request::Close() {
  if (is_closed_) return;
  const Use use(this);
  is_closed_ = true;
  if (is_in_flight_) {
    Cancel("the request was dropped");
    executor_->engine_->Abandon(slot_, /*is_stuck=*/false);
  } else {
    executor_->engine_->slots().Release(slot_);
  }
}

void Request::CheckIdle() const {
  if (is_in_flight_) {
    throw Error(ErrorKind::kExecution, "the request is in flight; wait for its end first");
  }
}

const Program& Request::program() const { return executor_->program(); }

const Tensor& Request::OutputTensor(const std::string& name) const {
  return executor_->OutputTensor(name);
}

void Request::SetInput(const std::string& name, const DLDataType& dtype,
                       const std::vector<int64_t>& shape, const void* data) {
  const Use use(this);
  CheckIdle();
  executor_->WriteInput(slot_, name, dtype, shape, data);
}

std::vector<std::string> Request::InputsNotGiven() {
  const Use use(this);
  CheckIdle();
  std::vector<std::string> names;
  for (size_t i = 0; i < slot_->is_input_given.size(); ++i) {
    if (!slot_->is_input_given[i]) names.push_back(program().inputs[i].name);
  }
  return names;
}

void Request::Submit(const Limit& limit, bool is_waited) {
  const Use use(this);
  CheckIdle();
  executor_->FillInputs(slot_);
  slot_->Prepare(RequestKind::kRun, nullptr);
  executor_->engine_->Submit(slot_, limit, is_waited, &number_);
  is_in_flight_ = true;
  has_new_state_ = slot_->HasSession();
}

bool Request::Wait(const Limit& limit) {
  const Use use(this);
  if (!is_in_flight_) return true;
  if (!executor_->engine_->Await(slot_, limit)) return false;
  is_in_flight_ = false;
  return true;
}

void Request::Finish(const Limit& limit) {
  const Use use(this);
  if (number_.load() < 0) {
    throw Error(ErrorKind::kExecution, "the request was not submitted");
  }
  // However this ends, no worker is in the slot then, or it is lost.
  is_in_flight_ = false;
  const bool has_new_state = std::exchange(has_new_state_, false);
  executor_->engine_->Finish(slot_, limit, &is_closed_);
  if (has_new_state) slot_->KeepState();
}

void Request::Cancel(std::string_view why) noexcept {
  const int64_t number = number_.load();
  if (number >= 0) executor_->engine_->Cancel(slot_, number, why);
}

void Request::GetOutput(const std::string& name, void* data) {
  const Use use(this);
  CheckIdle();
  executor_->ReadOutput(slot_, name, data);
}

}  // namespace heteroplace::exec
