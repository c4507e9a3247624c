// SPDX-License-Identifier: Apache-2.0
// The container of a profile's steps: numpy's .npz, whose arrays are lists of numbers or rows of
// named fields. A member is written and read whole.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "src/trace/npz.h"

namespace dlsim {

static_assert(std::endian::native == std::endian::little);

struct NpzBytes {
  std::string name;      // of the array
  std::string contents;  // of its .npy file
};

// Returns an archive of these members, deflated; the same bytes for the same members.
std::string MakeNpz(const std::vector<NpzBytes>& members);

// The data of a .npy file of one dimension. `type` is numpy's text of the type of an element:
// "'<u8'", or a list of fields.
std::string MakeNpyList(std::string_view type, size_t elements, std::string_view data);

// Returns the data of an array of which MakeNpyList made the header. Throws InputError if there is
// none, it has another type, or is damaged.
std::string ReadNpyList(const std::shared_ptr<NpzArchive>& archive, std::string_view name,
                        std::string_view type, size_t element_bytes);

// numpy's text of the type of a field.
template <class T>
std::string NpyField(const char* name) {
  if constexpr (requires { std::tuple_size<T>::value; }) {
    std::string text = NpyField<typename T::value_type>(name);
    text.insert(text.size() - 1, ", (" + std::to_string(std::tuple_size_v<T>) + ",)");
    return text;
  } else {
    const char kind = std::floating_point<T> ? 'f' : std::signed_integral<T> ? 'i' : 'u';
    return std::string("('") + name + "', '<" + kind + std::to_string(sizeof(T)) + "')";
  }
}

// A row is a struct that names its fields: Row::Fields(row, visit) calls visit(name, field) for
// each of them, in order.
template <class Row>
std::string NpyRowType() {
  std::string type;
  Row row;
  Row::Fields(row, [&]<class T>(const char* name, const T&) {
    type += (type.empty() ? "[" : ", ") + NpyField<T>(name);
  });
  return type + "]";
}

template <class Row>
size_t NpyRowBytes() {
  size_t bytes = 0;
  Row row;
  Row::Fields(row, [&](const char*, const auto& field) { bytes += sizeof(field); });
  return bytes;
}

template <class Row>
NpzBytes PackRows(const std::string& name, const std::vector<Row>& rows) {
  std::string data;
  data.reserve(rows.size() * NpyRowBytes<Row>());
  for (const Row& row : rows) {
    Row::Fields(row, [&](const char*, const auto& field) {
      data.append(reinterpret_cast<const char*>(&field), sizeof(field));
    });
  }
  return {name, MakeNpyList(NpyRowType<Row>(), rows.size(), data)};
}

template <class Row>
std::vector<Row> ReadRows(const std::shared_ptr<NpzArchive>& archive, std::string_view name) {
  const size_t row_bytes = NpyRowBytes<Row>();
  const std::string data = ReadNpyList(archive, name, NpyRowType<Row>(), row_bytes);
  std::vector<Row> rows(data.size() / row_bytes);
  const char* from = data.data();
  for (Row& row : rows) {
    Row::Fields(row, [&](const char*, auto& field) {
      std::memcpy(&field, from, sizeof(field));
      from += sizeof(field);
    });
  }
  return rows;
}

}  // namespace dlsim
