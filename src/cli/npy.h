// Arrays in numpy's file format (NEP 1: versions 1.0, 2.0, 3.0): bytes <-> type, shape and data.
//
// What an executor takes: little-endian numbers and booleans, in C order. bfloat16, which numpy
// does not have, is exchanged as uint16 bit patterns, as by the Python package.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exec/devices/tvm_abi.h"

namespace heteroplace::cli {

/*! \brief An array that lies in the bytes of a file. */
struct NpyArray {
  exec::DLDataType dtype;  // bool has 8 bits
  std::vector<int64_t> shape;
  /*! \brief Of all elements, row major; in the bytes that were read. */
  std::string_view data;
};

/*!
 * \brief Finds the array in the bytes of a file, which must outlive it.
 * \param name of what it is for, for messages: "input 'x': x.npy".
 * \throws Stop kBadArray: no such file, truncated, of another order, type or version.
 */
NpyArray ReadNpy(std::string_view bytes, const std::string& name);

/*! \brief The bytes of a file in version 1.0, as `numpy.save` writes it.
 * \param data row major, as many bytes as type and shape take. */
std::string WriteNpy(const exec::DLDataType& dtype, const std::vector<int64_t>& shape,
                     std::string_view data);

}  // namespace heteroplace::cli
