// SPDX-License-Identifier: Apache-2.0
// JSON written piece by piece, without building the document in memory: each member of an opened
// object and each item of an opened array begins a line.
#pragma once

#include <string_view>

#include "sim/base/json_value.h"
#include "sim/base/output_file.h"

namespace dlsim::sim {

class JsonStream {
 public:
  // Opens the document: an object with its schema, and what was read with the options of the call.
  JsonStream(std::string_view schema, OutputFile& out);
  JsonStream(std::string_view schema, const Json& trace, const Json& options, OutputFile& out);

  // Closes the document.
  void Finish();

  // Members of the object that is open; those of `members` share a line.
  void Member(std::string_view key, const Json& value) { Begin(key, DumpJson(value), kNext); }
  void Members(const Json& members);
  void BeginObject(std::string_view key) { Begin(key, "{", kNone); }
  void BeginArray(std::string_view key) { Begin(key, "[", kLine); }

  // Items of the array that is open.
  void Item(const Json& value) { Begin(DumpJson(value), kNext); }
  void BeginObject() { Begin("{", kNone); }

  void EndObject() { End("}"); }
  void EndArray() { End("]"); }

  // A whole array, of what to_json makes of the items.
  template <class Items, class ToJson>
  void Array(std::string_view key, const Items& items, const ToJson& to_json) {
    BeginArray(key);
    for (const auto& item : items) Item(to_json(item));
    EndArray();
  }

 private:
  // What goes between the last piece and the next.
  static constexpr std::string_view kNone = "", kLine = "\n", kNext = ",\n";

  void Begin(std::string_view text, std::string_view separator);
  void Begin(std::string_view key, std::string_view text, std::string_view separator);
  void End(std::string_view bracket);

  OutputFile& out_;
  std::string_view separator_ = kNone;
};

}  // namespace dlsim::sim
