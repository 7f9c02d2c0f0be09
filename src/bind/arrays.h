#pragma once

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/problem.h"
#include "support/error.h"

namespace heteroplace::bind {

/*! \brief One-dimensional arrays that Python passes. */
using Ints =
    nanobind::ndarray<const int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Doubles =
    nanobind::ndarray<const double, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

/*! \brief The values of an array. */
inline std::vector<int64_t> ToWide(const Ints& array) {
  return {array.data(), array.data() + array.size()};
}

/*! \brief The values of an array as a narrower type. */
template <typename T = int>
std::vector<T> ToNarrow(const Ints& array) {
  std::vector<T> values;
  values.reserve(array.size());
  for (size_t index = 0; index < array.size(); ++index) {
    values.push_back(static_cast<T>(array.data()[index]));
  }
  return values;
}

/*! \brief A list of lists. Throws Error(kGraph) if the offsets do not fit the values. */
inline model::Csr ToCsr(const Ints& offsets, const Ints& values) {
  model::Csr csr;
  csr.offsets = ToNarrow(offsets);
  csr.values = ToNarrow(values);
  const std::vector<int>& ends = csr.offsets;
  if (ends.empty() || ends.front() != 0 || !std::is_sorted(ends.begin(), ends.end()) ||
      ends.back() != static_cast<int>(csr.values.size())) {
    throw Error(ErrorKind::kGraph, "the offsets of a list of lists do not rise from 0 to its size");
  }
  return csr;
}

/*! \brief Hands a vector to numpy without copying it. */
inline nanobind::object ToNumpy(std::vector<int64_t> values, size_t columns = 1) {
  auto* owned = new std::vector<int64_t>(std::move(values));  // Deleted by the capsule.
  nanobind::capsule owner(
      owned, [](void* data) noexcept { delete static_cast<std::vector<int64_t>*>(data); });
  if (columns == 1) {
    return nanobind::cast(
        nanobind::ndarray<nanobind::numpy, int64_t>(owned->data(), {owned->size()}, owner));
  }
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, int64_t>(
      owned->data(), {owned->size() / columns, columns}, owner));
}

}  // namespace heteroplace::bind
