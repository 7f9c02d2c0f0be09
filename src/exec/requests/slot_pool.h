// The slots of an executor: who holds which, and how many there are.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "exec/requests/limit.h"
#include "exec/requests/slot.h"

namespace heteroplace::exec {

/*! \brief Slots, made as they are needed, up to a maximum. Any thread may call it. */
class SlotPool {
 public:
  /*! \param prepare is called once for each new slot, before anybody holds it. */
  SlotPool(const Image* image, int max_slots, std::function<void(Slot*)> prepare);

  /*!
   * \brief The free slot of the lowest number, or a new one; null if there is none until the limit.
   * \throws Error kExecution when memory is short.
   */
  Slot* Acquire(const Limit& limit);
  /*! \brief The first slot; null if it is not free until the limit. */
  Slot* AcquireFirst(const Limit& limit);
  /*! \brief Gives a slot back that no worker is in. */
  void Release(Slot* slot);

  int max_slots() const { return max_slots_; }
  Slot* first() { return slots_[0].get(); }
  /*! \brief Bytes of all slots in each space. [num_spaces] */
  std::vector<int64_t> HeldBytes();

  /*! \brief Around a fork: no other thread is in the pool, or cancels a request of a slot. */
  void Lock();
  void Unlock();
  /*! \brief Between the two: whether anybody holds a slot. */
  bool IsInUse() const { return num_held_ != 0; }

 private:
  Slot* TryAcquire(bool is_first);
  Slot* Make(size_t index);

  const Image* image_;
  const int max_slots_;
  std::function<void(Slot*)> prepare_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Slot>> slots_;  // [max_slots]; null: not made; guarded by mutex_
  std::vector<bool> is_held_;                 // [max_slots]; guarded by mutex_
  int num_held_ = 0;                          // guarded by mutex_
  /*! \brief Raised when a slot is given back. */
  std::atomic<uint64_t> num_released_{0};
  Bell released_bell_;
};

}  // namespace heteroplace::exec
