// SPDX-License-Identifier: Apache-2.0
#include "sim/base/json_value.h"

#include <cmath>

namespace dlsim::sim {

Json JsonNumber(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return value;
}

Json JsonFields(std::span<const NamedValue> fields) {
  Json object = Json::object();
  for (const NamedValue& field : fields) {
    std::visit(
        [&](const auto& value) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) {
            object[field.name] = JsonNumber(value);
          } else {
            object[field.name] = value;
          }
        },
        field.value);
  }
  return object;
}

Json JsonEvent(const ScalerEvent& event) {
  Json object = {{"step", event.step},
                 {"type", event.type},
                 {"message", event.message},
                 {"fatal", event.fatal}};
  object.update(JsonFields(event.details));
  return object;
}

void AddCounters(const TensorStats& stats, Json& object) {
  ForEachCounter([&](auto row) {
    if constexpr (row.kInJson)
      object[row.kColumns.json] = JsonNumber(std::invoke(row.kRow.of, stats));
  });
}

std::string DumpJson(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace dlsim::sim
