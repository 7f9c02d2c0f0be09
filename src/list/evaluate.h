#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "list/engine/reservation_table.h"
#include "model/memory_use.h"
#include "model/native_plan.h"
#include "model/problem.h"
#include "model/tensor_places.h"

namespace heteroplace::list {

/*! \brief A makespan that no plan has. */
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/*! \brief Value of a placement with an order: less violation first, then less makespan. */
struct Value {
  int64_t makespan_ns = kNever;
  int64_t violation = 0;

  bool operator<(const Value& other) const {
    return violation != other.violation ? violation < other.violation
                                        : makespan_ns < other.makespan_ns;
  }
};

/*!
 * \brief Evaluates (placement, order) pairs, many times over, without allocating.
 *
 * Tasks are taken in the order; each starts when its units are free of the tasks before it and its
 * tensors have arrived. A copy is made for the first reader in a memory and takes the first gap of
 * its channels; a copy that occupies units waits for them like a task. Every order of service of
 * the units can be said by some order.
 */
class Evaluator {
 public:
  explicit Evaluator(const model::Problem& problem);

  /*!
   * \brief Returns the value; kNever as soon as the makespan is sure to exceed limit_ns.
   * \param device [num_tasks]  \param order [num_tasks], a topological order
   */
  Value operator()(std::span<const int> device, std::span<const int> order, int64_t limit_ns);

  /*! \brief The plan of the latest evaluation, which must not have been cut short. */
  model::NativePlan LatestPlan(std::span<const int> device) const;

  /*! \brief Finish of a task in the latest evaluation. */
  int64_t finish_ns(int task) const { return finish_ns_[task]; }

 private:
  /*! \brief The memory where a tensor is made; -1: everywhere. */
  int Home(int tensor, std::span<const int> device) const {
    const int producer = problem_.producer[tensor];
    return producer < 0 ? problem_.host : problem_.device_memory[device[producer]];
  }
  int64_t Arrival(int tensor, int memory, std::span<const int> device);
  int64_t Copy(int tensor, int src, int dst, int64_t ready);
  void CopyOutputs(std::span<const int> device);
  /*! \brief From when to when a tensor lives in a memory. */
  struct Span {
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
  };
  /*! \brief Whether the latest evaluation lacks memory by the static rule, but perhaps not by
   * lifetime. */
  bool MayFitByLifetime() const;
  /*! \brief A quick test of it: live bytes in buckets of time, each with all it touches. */
  bool FitsInBuckets(std::span<const int> device);
  void FindSpans(std::span<const int> device);
  /*! \brief Of the latest evaluation: bytes that memories lack by lifetime, and unreachable. */
  int64_t Violation(std::span<const int> device) const;
  /*! \brief The plan of the latest evaluation, without its violation. */
  model::NativePlan Schedule(std::span<const int> device) const;

  const model::Problem& problem_;
  model::MemoryUse use_;
  std::vector<int64_t> unit_free_ns_;   // [num_units]
  std::vector<ReservationTable> busy_;  // [num_resources - num_units]
  std::vector<int64_t> finish_ns_;      // [num_tasks]
  model::TensorPlaces copied_;          // into copies_; kUnreached: there is no way
  std::vector<model::ScheduledCopy> copies_;
  std::vector<int> waiting_outputs_;
  std::vector<Span> home_spans_;      // [num_tensors], in the memory where it is made
  std::vector<Span> copy_spans_;      // of copies_, in the memory that it goes to
  std::vector<int64_t> input_bytes_;  // [num_memories], of model inputs, which are live always
  // Of FitsInBuckets, kept for their storage.
  std::vector<int64_t> live_, held_, workspace_;
  int64_t makespan_ns_ = 0;
  int64_t unreachable_ = 0;
};

}  // namespace heteroplace::list
