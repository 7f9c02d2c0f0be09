// One call of a program, from its inputs to its outputs, in a slot of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exec/engine/engine.h"

namespace heteroplace::exec {

class Executor;

/*!
 * \brief Holds a slot of an executor, which must outlive it.
 *
 * One thread at a time may call it (a second one gets an Error kExecution), but Cancel, which any
 * thread may call. Requests of one executor are independent: each has the values of its own inputs,
 * and its own failure.
 */
class Request {
 public:
  /*! \brief Of Executor::Begin. */
  Request(Executor* executor, Slot* slot, std::shared_ptr<Session> session = nullptr);
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  const Program& program() const;
  /*! \brief The tensor of an output, for its type and shape. */
  const Tensor& OutputTensor(const std::string& name) const;

  /*! \brief Sets an input; `data` is compact and row major. \throws Error kExecution. */
  void SetInput(const std::string& name, const DLDataType& dtype, const std::vector<int64_t>& shape,
                const void* data);

  /*! \brief Names of the inputs that SetInput has not set in this request; of state also after a
   * run that failed. \throws Error kExecution. */
  std::vector<std::string> InputsNotGiven();

  /*!
   * \brief Hands the request to the workers, after those that were submitted before.
   *
   * An input that was not set has the value that the executor's own SetInput, or the last request
   * in its first slot, gave it. It may be submitted again once it has ended; state must then be
   * set anew if it has failed.
   * \param is_waited whether Finish follows at once; the request may then end within this call.
   * \throws Error kExecution for an input without a value, or if the executor cannot be used.
   */
  void Submit(const Limit& limit = {}, bool is_waited = false);

  /*! \brief Waits for the end; false at the limit, and it goes on. */
  bool Wait(const Limit& limit = {});

  /*!
   * \brief Waits for the end; at the limit, or when its hook throws, the request is cancelled.
   * \throws Error kExecution with step, queue, kernel and cause if it failed or was cancelled. If a
   * step does not end even then, so that this call takes kGraceNs more than its limit, the slot is
   * lost to the request, and the executor cannot be used until that step ends.
   */
  void Finish(const Limit& limit = {});

  /*! \brief Ends it early if it is in flight: Finish then throws RequestError kCancelled with this
   * text. Any thread. Of several hosts it ends the job. */
  void Cancel(std::string_view why) noexcept;

  /*! \brief Its number in the recording that was on when it was last submitted; -1: none was. */
  int64_t trace_number() const { return slot_->trace_number; }

  /*! \brief Copies an output of the request. \throws Error kExecution before it has succeeded. */
  void GetOutput(const std::string& name, void* data);

  /*!
   * \brief Gives the slot back; the destructor does. Does not wait: a request in flight is
   * cancelled, and its slot freed when it has ended.
   */
  void Close();

 private:
  /*! \brief The call of one thread. */
  class Use;

  void CheckIdle() const;

  Executor* executor_;
  Slot* const slot_;
  /*! \brief Whether it was submitted and has not been waited for to its end. */
  bool is_in_flight_ = false;
  /*! \brief The slot was given back, or left to a step that does not end. */
  bool is_closed_ = false;
  /*! \brief Whether the outputs of its last run are to become the state of its session. */
  bool has_new_state_ = false;
  std::atomic<bool> is_used_{false};
  std::atomic<int64_t> number_{-1};  // of the last time that it was submitted; -1: never
};

}  // namespace heteroplace::exec
