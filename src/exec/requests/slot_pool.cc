#include "exec/requests/slot_pool.h"

#include <utility>

namespace heteroplace::exec {

SlotPool::SlotPool(const Image* image, int max_slots, std::function<void(Slot*)> prepare)
    : image_(image),
      max_slots_(max_slots),
      prepare_(std::move(prepare)),
      slots_(static_cast<size_t>(max_slots)),
      is_held_(static_cast<size_t>(max_slots)) {}

Slot* SlotPool::Acquire(const Limit& limit) {
  for (;;) {
    // Read before the look at the slots: one that is given back after it changes the number.
    const uint64_t seen = num_released_.load();
    if (Slot* slot = TryAcquire(/*is_first=*/false)) return slot;
    if (!limit.Wait(&released_bell_, [&] { return num_released_.load() != seen; })) return nullptr;
  }
}

Slot* SlotPool::AcquireFirst(const Limit& limit) {
  for (;;) {
    const uint64_t seen = num_released_.load();
    if (Slot* slot = TryAcquire(/*is_first=*/true)) return slot;
    if (!limit.Wait(&released_bell_, [&] { return num_released_.load() != seen; })) return nullptr;
  }
}

Slot* SlotPool::TryAcquire(bool is_first) {
  size_t index = 0;
  {
    std::scoped_lock lock(mutex_);
    const size_t end = is_first ? 1 : slots_.size();
    while (index < end && is_held_[index]) ++index;
    if (index == end) return nullptr;
    is_held_[index] = true;
    ++num_held_;
    if (slots_[index] != nullptr) {
      slots_[index]->state.store(SlotState::kHeld);
      return slots_[index].get();
    }
  }
  // Held, so nobody else makes it; memory takes too long to be asked for under a lock.
  return Make(index);
}

Slot* SlotPool::Make(size_t index) {
  const auto give_up = [&] {
    {
      std::scoped_lock lock(mutex_);
      is_held_[index] = false;
      --num_held_;
    }
    num_released_.fetch_add(1);
    released_bell_.Ring();
  };
  try {
    auto slot = std::make_unique<Slot>(image_, static_cast<int>(index));
    slot->state.store(SlotState::kHeld);
    prepare_(slot.get());
    std::scoped_lock lock(mutex_);
    slots_[index] = std::move(slot);
    return slots_[index].get();
  } catch (...) {
    give_up();
    throw;
  }
}

void SlotPool::Release(Slot* slot) {
  slot->LeaveSession();
  {
    std::scoped_lock lock(mutex_);
    slot->state.store(SlotState::kFree);
    is_held_[static_cast<size_t>(slot->index())] = false;
    --num_held_;
  }
  num_released_.fetch_add(1);
  released_bell_.Ring();
}

void SlotPool::Lock() {
  mutex_.lock();
  for (std::unique_ptr<Slot>& slot : slots_) {
    if (slot != nullptr) slot->Lock();
  }
}

void SlotPool::Unlock() {
  for (std::unique_ptr<Slot>& slot : slots_) {
    if (slot != nullptr) slot->Unlock();
  }
  mutex_.unlock();
}

std::vector<int64_t> SlotPool::HeldBytes() {
  std::vector<int64_t> bytes(image_->program().spaces.size());
  std::scoped_lock lock(mutex_);
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (slot == nullptr) continue;
    for (size_t space = 0; space < bytes.size(); ++space) {
      bytes[space] += slot->HeldBytes(space);
    }
  }
  return bytes;
}

}  // namespace heteroplace::exec
