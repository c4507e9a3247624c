// SPDX-License-Identifier: Apache-2.0
// Loss-scaling policies as state machines: dlsim._core.LossScaler.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/format.h"
#include "dlsim/sim/loss_scaler.h"
#include "dlsim/sim/policies.h"
#include "python/src/bindings.h"
#include "sim/base/parse.h"
#include "sim/base/quantity.h"

namespace dlsim::python {

using namespace sim;

namespace {

nb::dict FieldsOf(const std::vector<NamedValue>& values) {
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
  dict["details"] = FieldsOf(event->details);
  return dict;
}

[[noreturn]] void Refuse(const PolicyRefusal& refusal) {
  const nb::object type = nb::module_::import_("dlsim._errors").attr("PolicyRefusal");
  const nb::object error = type(refusal.type, refusal.message);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

using Settings = std::map<std::string, nb::object>;
using Texts = std::map<std::string, std::string>;
using State = std::map<std::string, std::variant<double, std::string>>;

// Values as the command reads them.
std::string SettingText(const std::string& name, const nb::object& value) {
  const nb::object text_of = nb::module_::import_("dlsim._values").attr("text_of");
  return nb::cast<std::string>(text_of("LossScaler: " + name, value));
}

Texts TextsOf(const Settings& settings) {
  Texts texts;
  for (const auto& [key, value] : settings) texts[key] = SettingText(key, value);
  return texts;
}

// A policy with its parameters and its state, and what it was made of.
struct BoundScaler {
  const PolicyInfo* policy;
  ConfiguredScaler configured;
  Texts settings;
  std::string format;
};

BoundScaler Make(const std::string& policy, const Texts& settings, const std::string& format) {
  const PolicyInfo& info = FindPolicy(policy);
  if (!format.empty()) ParseFormat(format);  // refuses names that are unknown
  std::vector<std::string> assignments;
  for (const auto& [key, value] : settings) assignments.push_back(key + "=" + value);
  try {
    return {&info, info.make(ResolveParameters(info, assignments), format), settings, format};
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

// A value of checkpoint(), which is text where a double must keep all its bits.
double NumberOf(const std::variant<double, std::string>& value) {
  if (const double* number = std::get_if<double>(&value)) return *number;
  const nb::object type = nb::module_::import_("builtins").attr("float");
  return nb::cast<double>(type.attr("fromhex")(std::get<std::string>(value)));
}

void Restore(BoundScaler& self, const State& state) {
  LossScaler restored = self.configured.scaler;
  for (const auto& [name, field] : state) {
    const double value = NumberOf(field);
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

void RestartAt(BoundScaler& self, const nb::object& given) {
  const double scale =
      nb::cast<double>(nb::module_::import_("dlsim.arrays._convert").attr("scale_of")(given));
  if (!std::isfinite(scale) || scale < 0) {
    throw UsageError("scale", "not a loss scale", "a finite number", PythonRepr(scale));
  }
  self.configured.scaler.RestartAt(scale);
}

std::string Repr(const BoundScaler& self) {
  const nb::object scale = nb::float_(self.configured.scaler.scale());
  return "<dlsim.LossScaler " + std::string(self.policy->name) + ": scale " +
         nb::repr(scale).c_str() + ">";
}

// What pickle and copy keep: how it was made, and its state.
using Pickled = std::tuple<std::string, Texts, std::string, nb::dict>;

Pickled GetState(const BoundScaler& self) {
  return {std::string(self.policy->name), self.settings, self.format,
          FieldsOf(self.configured.scaler.Checkpoint())};
}

void SetState(BoundScaler& self, const Pickled& pickled) {
  const auto& [policy, settings, format, state] = pickled;
  new (&self) BoundScaler(Make(policy, settings, format));
  Restore(self, nb::cast<State>(state));
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
          [](BoundScaler* self, const std::string& policy, const Settings& settings,
             const nb::object& format) {
            new (self) BoundScaler(Make(policy, TextsOf(settings), SettingText("format", format)));
          },
          nb::arg("policy"), nb::arg("settings") = Settings{}, nb::arg("format") = "",
          nb::sig("def __init__(self, policy: str, settings: Mapping[str, bool | float | str] = "
                  "{}, format: FormatName = '') -> None"))
      .def("__repr__", &Repr)
      .def("__getstate__", &GetState, nb::sig("def __getstate__(self) -> tuple[typing.Any, ...]"))
      .def("__setstate__", &SetState, nb::arg("state"),
           nb::sig("def __setstate__(self, state: tuple[typing.Any, ...]) -> None"))
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
                     return std::string(NameOf(self.policy->rules.finite_test));
                   })
      .def_prop_ro(
          "parameters",
          [](const BoundScaler& self) { return FieldsOf(self.configured.parameters); },
          nb::sig("def parameters(self) -> dict[str, typing.Any]"),
          "All parameters, defaults included, under the original's names.")
      .def_prop_ro(
          "notes", [](const BoundScaler& self) { return self.configured.notes; },
          "Surprises of this configuration, a line each.")
      .def(
          "checkpoint",
          [](const BoundScaler& self) { return FieldsOf(self.configured.scaler.Checkpoint()); },
          nb::sig("def checkpoint(self) -> dict[str, typing.Any]"),
          "The whole state, under the original's names.")
      .def("restore", &Restore, nb::arg("state"),
           nb::sig("def restore(self, state: Mapping[str, float | str]) -> None"),
           "Sets fields of checkpoint().")
      .def("restart_at", &RestartAt, nb::arg("scale"),
           nb::sig("def restart_at(self, scale: float | str) -> None"),
           "Continues from a checkpoint that holds the loss scale only.");
  module.def("policy_names", PolicyNames, "The names of all policies.");
}

}  // namespace dlsim::python
