// A request that one thread does: the state of all queues, and the order of their instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace heteroplace::exec {

class Engine;
class Slot;
class Worker;

/*!
 * \brief Does one request at a time, instruction by instruction, in one order of all queues.
 *
 * No instruction waits, because all instructions before it are done. The context has workers of its
 * own, so it shares no state with requests that run as planned. One thread uses it at a time.
 */
class SerialContext {
 public:
  /*!
   * \param workers of all queues. They must outlive the context.
   * \param order the worker of each instruction, in the order of execution.
   */
  SerialContext(Engine* engine, std::vector<Worker*> workers, std::vector<Worker*> order);

  /*! \brief Begins the request in a slot. */
  void Begin(Slot* slot);
  /*! \brief Does the next instruction; false if the request is over, and the context given back. */
  bool Step();
  /*! \brief When the request was submitted. */
  int64_t start_ns() const;
  /*! \brief The request at work; null: none. */
  Slot* slot() const { return slot_; }
  /*! \brief The worker of the first queue. */
  Worker* first() const { return workers_.front(); }

 private:
  Engine* engine_;
  const std::vector<Worker*> workers_;  // [num_queues]
  const std::vector<Worker*> order_;    // [num_instructions]
  Slot* slot_ = nullptr;
  size_t num_done_ = 0;
};

}  // namespace heteroplace::exec
