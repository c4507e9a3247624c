// SPDX-License-Identifier: Apache-2.0
#include "src/trace/trace_json.h"

#include "dlsim/error.h"
#include "src/trace/strict_json.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

constexpr uint64_t kMaxStep = 999'999'999'999'999'999;  // 18 digits, as in file names

std::vector<std::string> ReadFiles(const std::string& place, const nlohmann::json& value) {
  if (!value.is_array()) throw InputError(place, "'files' has a wrong value", "an array of names");
  std::vector<std::string> files;
  for (const nlohmann::json& entry : value) {
    if (!entry.is_string() || !ParseStepName(entry.get_ref<const std::string&>())) {
      throw InputError(place, "'files' has a wrong entry",
                       "a name like 'step-00000000.safetensors'",
                       entry.is_string() ? Quoted(entry.get<std::string>()) : entry.type_name());
    }
    files.push_back(entry.get<std::string>());
  }
  return files;
}

std::vector<int64_t> ReadSteps(const std::string& place, const nlohmann::json& value) {
  if (!value.is_array()) {
    throw InputError(place, "'steps' has a wrong value", "an array of step numbers");
  }
  std::vector<int64_t> steps;
  for (const nlohmann::json& entry : value) {
    if (!entry.is_number_unsigned() || entry.get<uint64_t>() > kMaxStep) {
      throw InputError(place, "'steps' has a wrong entry", "a step number",
                       Printable(entry.is_number() ? entry.dump() : entry.type_name()));
    }
    steps.push_back(entry.get<int64_t>());
  }
  return steps;
}

RoleMap ReadRoles(const std::string& place, const nlohmann::json& value) {
  if (!value.is_object()) throw InputError(place, "'roles' has a wrong value", "an object");
  RoleMap roles;
  for (const auto& [name, role] : value.items()) {
    const std::string text = role.is_string() ? role.get<std::string>() : "";
    const std::optional<Role> known = ValueNamed<Role>(text);
    if (!known) {
      throw InputError(TensorPlace(place, name), "wrong role",
                       "'grad', 'act_grad', 'act' or 'value'",
                       role.is_string() ? Quoted(text) : role.type_name());
    }
    roles.emplace(name, *known);
  }
  return roles;
}

}  // namespace

TraceJson ReadTraceJson(const std::string& path) {
  const std::string place = Printable(path);
  const nlohmann::json json = ReadJsonFile(path);
  if (!json.is_object()) throw InputError(place, "is not a JSON object");
  TraceJson trace;
  for (const auto& [key, value] : json.items()) {
    if (key == "trace_format" && value != 1) {
      throw InputError(place, "unsupported trace_format", "1", Printable(value.dump()));
    }
    if (key == "files") {
      trace.files = ReadFiles(place, value);
    } else if (key == "steps") {
      trace.steps = ReadSteps(place, value);
    } else if (key == "roles") {
      trace.roles = ReadRoles(place, value);
    } else if (value.is_string()) {
      trace.description.emplace(key, value.get<std::string>());
    }
  }
  return trace;
}

}  // namespace dlsim
