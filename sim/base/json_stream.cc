// SPDX-License-Identifier: Apache-2.0
#include "sim/base/json_stream.h"

#include <nlohmann/json.hpp>
#include <string>

namespace dlsim::sim {

JsonStream::JsonStream(std::string_view schema, OutputFile& out) : out_(out) {
  BeginObject();
  Member("schema", schema);
}

JsonStream::JsonStream(std::string_view schema, const Json& trace, const Json& options,
                       OutputFile& out)
    : JsonStream(schema, out) {
  Member("trace", trace);
  Member("options", options);
}

void JsonStream::Finish() {
  EndObject();
  out_.Write("\n");
}

void JsonStream::Members(const Json& members) {
  const std::string object = DumpJson(members);
  Begin(std::string_view(object).substr(1, object.size() - 2), kNext);
}

void JsonStream::Begin(std::string_view text, std::string_view separator) {
  out_.Write(separator_);
  out_.Write(text);
  separator_ = separator;
}

void JsonStream::Begin(std::string_view key, std::string_view text, std::string_view separator) {
  Begin(DumpJson(key) + ":", kNone);
  Begin(text, separator);
}

void JsonStream::End(std::string_view bracket) {
  out_.Write(bracket);
  separator_ = kNext;
}

}  // namespace dlsim::sim
