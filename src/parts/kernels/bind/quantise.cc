// `_core.quantise` and `_core.quantise_with_minimums`: weights that a few bits hold exactly.
#include <nanobind/ndarray.h>

#include "bind/bind.h"
#include "bind/gil.h"
#include "parts/kernels/minimum_weights.h"
#include "parts/kernels/quantised_weights.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

bool Quantise(const Matrix<const float>& weights, int bits, const Matrix<uint8_t>& numbers,
              const Matrix<float>& scales, const Matrix<uint8_t>& zeros) {
  const WithoutGil unlocked;
  return kernels::Quantise({weights.data(), weights.size()},
                           static_cast<int64_t>(weights.size() / scales.size()), bits,
                           {{numbers.data(), numbers.size()},
                            {scales.data(), scales.size()},
                            {zeros.data(), zeros.size()}});
}

bool QuantiseWithMinimums(const Matrix<const float>& weights, const Matrix<uint8_t>& numbers,
                          const Matrix<float>& scales, const Matrix<float>& minimums) {
  const WithoutGil unlocked;
  return kernels::QuantiseWithMinimums({weights.data(), weights.size()},
                                       static_cast<int64_t>(weights.size() / scales.size()),
                                       {{numbers.data(), numbers.size()},
                                        {scales.data(), scales.size()},
                                        {minimums.data(), minimums.size()}});
}

}  // namespace

void BindQuantise(nb::module_& module) {
  module.def("quantise", &Quantise, nb::arg("weights").noconvert(), nb::arg("bits"),
             nb::arg("numbers").noconvert(), nb::arg("scales").noconvert(),
             nb::arg("zeros").noconvert(), R"(
Write weights as (numbers - zeros) * scales, with one scale and zero for each block of a row.

Parameters
----------
weights
    [rows, depth], float32.
bits
    Of a number: 4 or 8.
numbers
    Written: [rows, depth], uint8.
scales, zeros
    Written: [rows, blocks], float32 and uint8; the blocks of a row have the same size.

Returns
-------
Whether that is exact for every weight; if not, what was written has no meaning.
)");
  module.def("quantise_with_minimums", &QuantiseWithMinimums, nb::arg("weights").noconvert(),
             nb::arg("numbers").noconvert(), nb::arg("scales").noconvert(),
             nb::arg("minimums").noconvert(), R"(
Write weights as numbers * scales + minimums, with numbers of 4 bits.

Parameters
----------
weights
    [rows, depth], float32.
numbers
    Written: [rows, depth], uint8.
scales, minimums
    Written: [rows, blocks], float32; values of float16 where such ones are exact.

Returns
-------
Whether that is exact for every weight; if not, what was written has no meaning.
)");
}

}  // namespace heteroplace::bind
