// A whole request by one thread: the state of all queues, and the order of their instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heteroplace::exec {

class Engine;
class Slot;
class Worker;

/*!
 * \brief Does one request at a time, instruction by instruction, in one order of all queues.
 *
 * No instruction waits: those before it are done. The workers are the lane's own, so requests in
 * lanes and those of the plan's workers know nothing of each other. Of one thread at a time.
 */
class SerialLane {
 public:
  /*! \param workers of all queues; \param order whose next instruction is done, one after the
   * other. Both must outlive the lane. */
  SerialLane(Engine* engine, std::vector<Worker*> workers, std::vector<Worker*> order);

  /*! \brief Begins the request in a slot. */
  void Begin(Slot* slot);
  /*! \brief Does the next instruction; false where the request is over, and the lane given back. */
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
