#pragma once

#include <vector>

namespace heteroplace::model {

/*!
 * \brief A number for some of all pairs of tensor and memory.
 *
 * A tensor is in few memories, so it has a list of them: with 10^5 tensors and 300 memories a table
 * of all pairs would take longer to make than a plan to schedule.
 */
class TensorPlaces {
 public:
  static constexpr int kNone = -1;

  explicit TensorPlaces(int num_tensors) : first_(num_tensors, kNone) {}

  /*! \brief Forgets all pairs. O(pairs). */
  void Clear() {
    for (const Place& place : places_) first_[place.tensor] = kNone;
    places_.clear();
  }

  /*! \brief The number of a pair; kNone: it has none. O(memories of the tensor). */
  int Find(int tensor, int memory) const {
    int index = first_[tensor];
    while (index != kNone && places_[index].memory != memory) index = places_[index].next;
    return index == kNone ? kNone : places_[index].value;
  }

  /*! \brief Gives a number to a pair that has none. */
  void Add(int tensor, int memory, int value) {
    places_.push_back({tensor, memory, value, first_[tensor]});
    first_[tensor] = static_cast<int>(places_.size()) - 1;
  }

  struct Place {
    int tensor;
    int memory;
    int value;
    int next;  // of the same tensor, into the places; kNone: the last one
  };

  /*! \brief All pairs with their numbers, in the order of adding. */
  const std::vector<Place>& places() const { return places_; }

 private:
  std::vector<int> first_;  // [num_tensors], into the places; kNone: no pair
  std::vector<Place> places_;
};

}  // namespace heteroplace::model
