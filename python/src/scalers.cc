// SPDX-License-Identifier: Apache-2.0
// Loss-scaling policies as state machines: dlsim._core.LossScaler.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/loss_scaler.h"
#include "python/src/bindings.h"
#include "sim/policies/registry.h"
#include "sim/suggest.h"

namespace nb = nanobind;

namespace dlsim::python {
namespace {

nb::dict DictOf(const std::vector<NamedValue>& values) {
  nb::dict dict;
  for (const NamedValue& value : values) {
    std::visit([&](const auto& v) { dict[value.name.c_str()] = v; }, value.value);
  }
  return dict;
}

nb::object EventOf(const std::optional<ScalerEvent>& event) {
  if (!event) return nb::none();
  nb::dict dict;
  dict["step"] = event->step;
  dict["type"] = event->type;
  dict["message"] = event->message;
  dict["fatal"] = event->fatal;
  dict["details"] = DictOf(event->details);
  return dict;
}

[[noreturn]] void Refuse(const PolicyRefusal& refusal) {
  const nb::object type = nb::module_::import_("dlsim._errors").attr("PolicyRefusal");
  const nb::object error = type(refusal.type, refusal.message);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

// A policy with its parameters and its state.
struct BoundScaler {
  const PolicyInfo* policy;
  ConfiguredScaler configured;
};

BoundScaler Make(const std::string& policy, const std::map<std::string, std::string>& settings,
                 const std::string& format) {
  const PolicyInfo& info = FindPolicy(policy);
  std::vector<std::string> assignments;
  for (const auto& [key, value] : settings) assignments.push_back(key + "=" + value);
  try {
    return {&info, info.make(ResolveParameters(info, assignments), format)};
  } catch (const PolicyRefusal& refusal) {
    Refuse(refusal);
  }
}

nb::dict Next(BoundScaler& self, bool overflow, float absmax) {
  const ScalerDecision decision =
      self.configured.scaler.Next({.overflow = overflow, .absmax = absmax});
  nb::dict dict;
  dict["skip"] = decision.skip;
  dict["event"] = EventOf(decision.event);
  return dict;
}

void Restore(BoundScaler& self, const std::map<std::string, double>& state) {
  LossScaler restored = self.configured.scaler;
  for (const auto& [name, value] : state) {
    switch (restored.Restore(name, value)) {
      case LossScaler::Restored::kOk:
        break;
      case LossScaler::Restored::kUnknownField:
        throw UsageError("state", "unknown field", "a field of checkpoint()", Quoted(name));
      case LossScaler::Restored::kBadValue:
        throw UsageError("state", "bad value of " + Quoted(name), "a whole number below 2^31",
                         std::to_string(value));
    }
  }
  self.configured.scaler = std::move(restored);
}

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const PolicyInfo& policy : Policies()) names.emplace_back(policy.name);
  return names;
}

}  // namespace

void BindScalers(nb::module_& module) {
  nb::class_<BoundScaler>(module, "LossScaler",
                          "A loss-scaling policy with its state, as `dlsim scaler` runs it.")
      .def(
          "__init__",
          [](BoundScaler* self, const std::string& policy,
             const std::map<std::string, std::string>& settings,
             const std::string& format) { new (self) BoundScaler(Make(policy, settings, format)); },
          nb::arg("policy"), nb::arg("settings") = std::map<std::string, std::string>{},
          nb::arg("format") = "")
      .def_prop_ro("policy", [](const BoundScaler& self) { return std::string(self.policy->name); })
      .def_prop_ro(
          "scale", [](const BoundScaler& self) { return self.configured.scaler.scale(); },
          "The loss scale of the coming step.")
      .def("next", &Next, nb::arg("overflow"), nb::arg("absmax") = 0.0f,
           nb::sig("def next(self, overflow: bool, absmax: float = 0.0) -> dict[str, typing.Any]"),
           "Advances by one step; returns what the policy did: {'skip': bool, 'event': dict or "
           "None}.")
      .def_prop_ro("finite_test",
                   [](const BoundScaler& self) {
                     return std::string(FiniteTestName(self.policy->rules.finite_test));
                   })
      .def_prop_ro(
          "parameters", [](const BoundScaler& self) { return DictOf(self.configured.parameters); },
          nb::sig("def parameters(self) -> dict[str, typing.Any]"),
          "All parameters, defaults included, under the original's names.")
      .def_prop_ro(
          "notes", [](const BoundScaler& self) { return self.configured.notes; },
          "Surprises of this configuration, a line each.")
      .def(
          "checkpoint",
          [](const BoundScaler& self) { return DictOf(self.configured.scaler.Checkpoint()); },
          nb::sig("def checkpoint(self) -> dict[str, typing.Any]"),
          "The whole state, under the original's names.")
      .def("restore", &Restore, nb::arg("state"), "Sets fields of checkpoint().")
      .def(
          "restart_at",
          [](BoundScaler& self, double scale) { self.configured.scaler.RestartAt(scale); },
          nb::arg("scale"), "Continues from a checkpoint that holds the loss scale only.");
  module.def("policy_names", PolicyNames, "The names of all policies.");
}

}  // namespace dlsim::python
