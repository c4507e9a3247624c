// SPDX-License-Identifier: Apache-2.0
// A step in memory: dlsim._core.HeldStep.
#include "python/src/held_step.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <utility>

#include "python/src/bindings.h"
#include "sim/profile/ladder_settings.h"
#include "sim/replay/profile_source.h"

namespace dlsim::python {

using namespace sim;

namespace {

class HeldSource final : public GradientSource {
 public:
  HeldSource(ProfileStep step, const ProfileSettings& settings, const HistogramEdges& edges)
      : step_(std::move(step)), edges_(edges) {
    KeepTensors("*", step_, LossesOf(1, [this](size_t) { return step_; }));
    facts_.steps = 1;
    facts_.first_step = facts_.last_step = step_.step;
    facts_.profile = ProfileFacts{settings, edges.bits().size()};
  }

  const SourceFacts& facts() const override { return facts_; }
  size_t step_count() const override { return 1; }
  const HistogramEdges* edges() const override { return &edges_; }

  std::unique_ptr<GradientStep> Load(size_t /*i*/, StepNeeds needs) const override {
    if (needs == StepNeeds::kTotals) return OpenTotals(TotalsOf(step_));
    return OpenProfileStep(step_, edges_, questions_);
  }

 private:
  ProfileStep step_;
  const HistogramEdges& edges_;
  SourceFacts facts_;
  mutable QuestionCache questions_;
};

ProfileSettings SettingsFor(const std::vector<std::string>& formats) {
  LadderSettings ladder;
  ladder.formats = formats;
  ProfileSettings settings;
  settings.ladder = LadderOf(ladder);
  return settings;
}

}  // namespace

HeldStep::HeldStep(const std::vector<std::string>& formats)
    : settings_(SettingsFor(formats)), parts_(settings_) {}

std::unique_ptr<GradientSource> HeldStep::Take() {
  return std::make_unique<HeldSource>(parts_.Take(), settings_, parts_.edges());
}

void BindHeldStep(nb::module_& module) {
  nb::class_<HeldStep>(module, "HeldStep", "A step, counted from arrays, that run_command takes.")
      .def(nb::init<const std::vector<std::string>&>(), nb::arg("formats"))
      .def(
          "add",
          [](HeldStep& held, int64_t step, const Part& part) { held.parts().Add(step, part); },
          nb::arg("step"), nb::arg("part"),
          nb::sig("def add(self, step: int, part: tuple[int, float, Mapping[str, str], "
                  "Sequence[tuple[str, str, typing.Any]]]) -> None"),
          "Counts one part of a step, as ProfileWriter.add.")
      .def(
          "drop", [](HeldStep& held) { held.parts().Drop(); }, "Forgets the parts.");
}

}  // namespace dlsim::python
