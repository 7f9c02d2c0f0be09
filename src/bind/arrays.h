#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "bind/gil.h"
#include "model/problem.h"
#include "support/error.h"

namespace heteroplace::bind {

/*! \brief Arrays that Python passes; they are never converted or copied on the way. */
using Ints =
    nanobind::ndarray<const int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Doubles =
    nanobind::ndarray<const double, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
/*! \brief Steps of a plan, [num_steps][4]: kind, task or tensor, device or memory, source memory.
 */
using StepRows = nanobind::ndarray<const int64_t, nanobind::shape<-1, 4>, nanobind::c_contig,
                                   nanobind::device::cpu>;

/*! \brief Arrays that Python gets, with memory of their own. */
template <typename T, typename Shape = nanobind::ndim<1>>
using Numpy = nanobind::ndarray<nanobind::numpy, T, Shape, nanobind::c_contig>;
using NumpyInts = Numpy<int64_t>;
using NumpyStepRows = Numpy<int64_t, nanobind::shape<-1, 4>>;

/*! \brief The values of an array. */
inline std::vector<int64_t> ToWide(const Ints& array) {
  return {array.data(), array.data() + array.size()};
}

/*! \brief The values of an array where they lie. */
inline std::span<const int64_t> View(const Ints& array) { return {array.data(), array.size()}; }

/*! \brief The values of an array as a narrower type. */
template <typename T = int>
std::vector<T> ToNarrow(const Ints& array) {
  std::vector<T> values;
  values.reserve(array.size());
  for (int64_t value : View(array)) values.push_back(static_cast<T>(value));
  return values;
}

/*! \brief A list of lists as Python has it: offsets and values. */
using Rows = std::pair<Ints, Ints>;

/*! \brief A list of lists. Throws Error(kGraph) if the offsets do not fit the values. */
inline model::Csr ToCsr(const Rows& rows) {
  model::Csr csr{ToNarrow(rows.first), ToNarrow(rows.second)};
  const std::vector<int>& ends = csr.offsets;
  if (ends.empty() || ends.front() != 0 || !std::ranges::is_sorted(ends) ||
      ends.back() != static_cast<int>(csr.values.size())) {
    throw Error(ErrorKind::kGraph, "the offsets of a list of lists do not rise from 0 to its size");
  }
  return csr;
}

/*! \brief Hands a vector to numpy without copying it; with two dimensions in rows of `columns`. */
template <typename Shape = nanobind::ndim<1>, typename T>
Numpy<T, Shape> ToNumpy(std::vector<T> values, size_t columns = 1) {
  auto* owned = new std::vector<T>(std::move(values));  // Deleted by the capsule.
  nanobind::capsule owner(owned,
                          [](void* data) noexcept { delete static_cast<std::vector<T>*>(data); });
  const size_t shape[] = {owned->size() / columns, columns};
  constexpr size_t kDimensions = std::is_same_v<Shape, nanobind::ndim<1>> ? 1 : 2;
  return Numpy<T, Shape>(owned->data(), kDimensions, shape, owner);
}

/*! \brief The same for values of another type, which are copied. */
template <typename T>
NumpyInts Widen(const std::vector<T>& values) {
  return ToNumpy(std::vector<int64_t>(values.begin(), values.end()));
}

}  // namespace heteroplace::bind
