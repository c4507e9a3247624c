// SPDX-License-Identifier: Apache-2.0
// The header of numpy's .npy files: a strict parser and a writer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/trace.h"
#include "src/base/file.h"

namespace dlsim {

// What the Python dictionary of a header says, and where the elements begin.
struct NpyHeader {
  std::string descr;  // as "<f4", little-endian; the text of a list for structures
  bool fortran_order = false;
  std::vector<uint64_t> shape;
  uint64_t item_bytes = 0;  // of an element
  uint64_t elements = 1;
  uint64_t data_start = 0;  // offset of the first element in the file
};

// What an error expects of an array: any that is read, one of numbers, or one of several in a
// trace.
inline constexpr std::string_view kNpyTypes = "<f2, <f4, <f8, <u2, <u4 or |V2";
inline constexpr std::string_view kFloatNpyTypes = "<f2, <f4 or <f8";
inline constexpr std::string_view kTraceNpyTypes =
    "<f2, <f4 or <f8, or --tensors with a pattern without it";

// Reads the header only, and checks nothing that it says: without the size and number of elements.
// Throws InputError.
NpyHeader ReadNpyText(const ByteSource& source);

// The same for "<f2", "<f4", "<f8", "<u2", "<u4", and "|V2", which is what ml_dtypes' 2-byte
// formats such as bfloat16 become. The elements are known to fill the rest of the source exactly.
// `expected` is said of a type that is not read.
NpyHeader ReadNpyHeader(const ByteSource& source, std::string_view expected = kNpyTypes);

// Returns whether the elements are floating-point numbers, or may be: V2. Reads the header; throws
// InputError if it is damaged.
bool HoldsFloats(const ByteSource& source);

// Returns the type of a trace's tensor. Throws InputError for types of codes, and for V2 unless
// `void2` says what it holds.
DType TraceDType(const std::string& place, std::string_view descr, std::optional<DType> void2,
                 std::string_view expected = kTraceNpyTypes);

// Returns the elements of a file that MakeNpyHeader(descr, {any number}) begins; throws InputError
// for another one.
std::string ReadNpyList(const ByteSource& source, std::string_view descr, size_t element_bytes);

// Returns everything that precedes the elements in a .npy file, padded to 64 bytes.
std::string MakeNpyHeader(std::string_view descr, std::span<const uint64_t> shape,
                          bool fortran_order = false);

}  // namespace dlsim
