// SPDX-License-Identifier: Apache-2.0
// The header of numpy's .npy files: a strict parser and a writer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/trace.h"
#include "src/trace/byte_source.h"

namespace dlsim {

// Little-endian element types; kVoid2 is what ml_dtypes' 2-byte formats such as bfloat16 become.
enum class NpyType { kF16, kF32, kF64, kU16, kU32, kVoid2 };

// Returns the size of one element in bytes.
size_t NpyTypeSize(NpyType type);

// Returns numpy's name, such as "<f4".
const char* NpyTypeName(NpyType type);

struct NpyHeader {
  NpyType type = NpyType::kF32;
  bool fortran_order = false;
  std::vector<uint64_t> shape;
  uint64_t elements = 1;
  uint64_t data_start = 0;  // offset of the first element in the file
};

// Reads the header only. The elements are known to fill the rest of the source exactly. Throws
// InputError.
NpyHeader ReadNpyHeader(const ByteSource& source);

// Returns the type of a trace's tensor. Throws InputError for types of codes, and for V2 unless
// `void2` says what it holds.
DType TraceDType(const std::string& place, NpyType type, std::optional<DType> void2);

// Returns everything that precedes the elements in a .npy file, padded to 64 bytes.
std::string MakeNpyHeader(NpyType type, std::span<const uint64_t> shape,
                          bool fortran_order = false);

}  // namespace dlsim
