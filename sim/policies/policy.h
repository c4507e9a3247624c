// SPDX-License-Identifier: Apache-2.0
// What policies are written with: their parameters, where a policy ends up for its notes, and the
// scale that never changes; then the policies, each defined in the file of its family, and their
// settings.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "dlsim/sim/loss_scaler.h"
#include "dlsim/sim/policies.h"
#include "dlsim/sim/replay.h"

namespace dlsim::sim {

// The settings of one policy. Every `name` must stand in the table.
struct Settings {
  std::string_view policy;  // for messages
  std::span<const ParameterInfo> table;
  const ParameterMap& given;

  bool Given(std::string_view name) const { return given.find(name) != given.end(); }
  std::string Text(std::string_view name) const;

  // These throw Error (exit code 2), naming the policy and the parameter.
  double Number(std::string_view name) const;
  int64_t Integer(std::string_view name) const;
  std::optional<double> OptionalNumber(std::string_view name) const;  // nothing for Python's None

  // A scale that never changes: positive and finite as float32.
  float StaticScale(std::string_view name) const;

  // Throws Error for a value of the parameter that is not `expected`.
  [[noreturn]] void Refuse(std::string_view name, std::string_view problem,
                           std::string_view expected) const;
  void RequirePositive(std::string_view name, double value) const;
  void RequireCount(std::string_view name, int64_t value) const;  // |value| <= 2^53
};

// A number that the original checks as Python's float and computes with as float32, and an integer
// that it takes as it is given and holds as the int of a kernel.
struct AsFloat32 {
  double given = 0;
  operator float() const { return static_cast<float>(given); }
};
struct KernelInt {
  int64_t given = 0;
  operator int32_t() const { return static_cast<int32_t>(given); }
};

// A loss scale that is "dynamic", or a number: then it never changes.
struct FixedOrDynamic {
  std::optional<double> fixed;
  bool dynamic() const { return !fixed; }
};

// Read a parameter into what holds it, and return what it shows: the value as it was given. Those
// of other types are found where the type is. They throw as Settings::Number does, int32_t for what
// it cannot hold.
using ShownValue = decltype(NamedValue::value);
ShownValue ReadParameter(const Settings& settings, std::string_view name, double& into);
ShownValue ReadParameter(const Settings& settings, std::string_view name, float& into);
ShownValue ReadParameter(const Settings& settings, std::string_view name, AsFloat32& into);
ShownValue ReadParameter(const Settings& settings, std::string_view name, int64_t& into);
ShownValue ReadParameter(const Settings& settings, std::string_view name, int32_t& into);
ShownValue ReadParameter(const Settings& settings, std::string_view name, KernelInt& into);
ShownValue ReadParameter(const Settings& settings, std::string_view name, bool& into);
ShownValue ReadParameter(const Settings& settings, std::string_view name,
                         std::optional<double>& into);
ShownValue ReadParameter(const Settings& settings, std::string_view name,
                         std::optional<float>& into);
ShownValue ReadParameter(const Settings& settings, std::string_view name, FixedOrDynamic& into);

// A parameter of a policy, and what reads it into the member of its Config.
template <class Config>
struct Parameter {
  ParameterInfo info;
  std::function<ShownValue(const Settings& settings, Config& config)> read;

  // A Config has the parameters of its base, too.
  template <std::derived_from<Config> Derived>
  operator Parameter<Derived>() const {
    return {info, read};
  }
};

template <class Config, class T>
Parameter<Config> Row(T Config::*member, std::string_view name,
                      std::vector<std::string_view> aliases, std::string_view default_text,
                      std::string_view help, ParameterRole role = ParameterRole::kOther) {
  return {{name, std::move(aliases), default_text, help, role},
          [=](const Settings& settings, Config& config) {
            return ReadParameter(settings, name, config.*member);
          }};
}

// A policy whose parameters were read.
template <class Config>
struct Setup {
  const Settings& settings;
  std::string_view format;  // as of PolicyInfo::make
  Config config = {};
  std::vector<NamedValue> parameters = {};  // as they show
  std::vector<std::string> notes = {};
  std::optional<LossScaler> scaler = {};  // if it does not follow the policy's rule

  void Note(std::string text) { notes.push_back(std::move(text)); }
  void NoteIf(bool applies, std::string text) {
    if (applies) notes.push_back(std::move(text));
  }
};

// Returns the row of the registry of a policy with these parameters. `finish` checks them, and adds
// notes; where it throws PolicyRefusal, that gets the parameters.
template <LossScalePolicy P>
PolicyInfo PolicyOf(PolicyInfo info, std::vector<Parameter<typename P::Config>> rows,
                    std::function<void(Setup<typename P::Config>& setup)> finish) {
  for (const auto& row : rows) info.parameters.push_back(row.info);
  info.make = [name = info.name, table = info.parameters, rows = std::move(rows),
               finish = std::move(finish)](const ParameterMap& given, std::string_view format) {
    const Settings settings{name, table, given};
    Setup<typename P::Config> setup{settings, format};
    for (const auto& row : rows) {
      setup.parameters.push_back({std::string(row.info.name), row.read(settings, setup.config)});
    }
    try {
      finish(setup);
    } catch (PolicyRefusal& refusal) {
      refusal.parameters = std::move(setup.parameters);
      throw;
    }
    return ConfiguredScaler{
        .scaler = setup.scaler ? *std::move(setup.scaler) : LossScaler::Make<P>(setup.config),
        .parameters = std::move(setup.parameters),
        .notes = std::move(setup.notes)};
  };
  return info;
}

// The event of an exception that ends the training.
inline ScalerEvent FatalEvent(std::string type, std::string message) {
  return {.type = std::move(type), .message = std::move(message), .fatal = true, .details = {}};
}

// Where a policy ends up on clean steps only or on overflows only, for notes on its parameters.

// A long training run; what lies beyond is not worth a note.
constexpr int64_t kProjectedSteps = 100000;

// While one of these lives, projections on its thread give up at once: for those who make very many
// scalers and read none of their notes.
class NoProjections {
 public:
  NoProjections() { ++count_; }
  ~NoProjections() { --count_; }
  NoProjections(const NoProjections&) = delete;
  NoProjections& operator=(const NoProjections&) = delete;

  static bool Active() { return count_ > 0; }

 private:
  static inline thread_local int count_ = 0;
};

// Returns the number of equal steps from the start after which done(transition) holds, if any.
template <LossScalePolicy P, class Done>
std::optional<int64_t> StepsUntil(const typename P::Config& config, const ScalerInput& input,
                                  const Done& done) {
  if (NoProjections::Active()) return std::nullopt;
  typename P::State state = P::Start(config);
  for (int64_t steps = 1; steps <= kProjectedSteps; ++steps) {
    const Transition<typename P::State> transition = P::Next(config, state, input);
    if (done(transition)) return steps;
    state = transition.next;
  }
  return std::nullopt;
}

// Returns the number of clean steps after which the scale is at least `limit`, if it starts below.
template <LossScalePolicy P>
std::optional<int64_t> CleanStepsToReach(const typename P::Config& config, double limit) {
  if (!(ScaleOf<P>(P::Start(config)) < limit)) return std::nullopt;
  return StepsUntil<P>(config, {.overflow = false}, [&](const auto& transition) {
    return ScaleOf<P>(transition.next) >= limit;
  });
}

// Returns the number of overflows in a row after which the scale is 0, if it does not start there.
template <LossScalePolicy P>
std::optional<int64_t> OverflowsToZero(const typename P::Config& config) {
  if (ScaleOf<P>(P::Start(config)) == 0) return std::nullopt;
  return StepsUntil<P>(config, {.overflow = true},
                       [](const auto& transition) { return ScaleOf<P>(transition.next) == 0; });
}

// Notes a first scale `name` that as float32 is 0 or infinite, which no factor changes.
void NoteDeadStart(std::string_view name, double scale, std::vector<std::string>& notes);

// Notes after how many overflows in a row the scale becomes 0.
void NoteZero(std::optional<int64_t> overflows, std::vector<std::string>& notes);

// Notes a factor that divides the scale on an overflow without lowering it.
void NoteDivisor(std::string_view name, double factor, std::vector<std::string>& notes);

// Notes after how many clean steps the scale becomes infinite.
void NoteInfinity(std::optional<int64_t> clean_steps, std::vector<std::string>& notes);

// As NoteInfinity, for a scale without a ceiling: it can also take longer than kProjectedSteps.
void NoteNoCeiling(std::optional<int64_t> clean_steps, std::vector<std::string>& notes);

// Notes after how many clean steps the scale reaches its ceiling `name`, if that is not a power
// of two.
void NoteCeiling(std::string_view name, double ceiling, std::optional<int64_t> clean_steps,
                 std::vector<std::string>& notes);

// A loss scale that never changes, also used by the families that can switch their dynamics off.

// Never skips a step: whatever overflows is applied.
struct StaticScale {
  struct Config {
    float scale = 1;
  };
  struct State {
    float scale = 1;
  };
  static State Start(const Config& config) { return {config.scale}; }
  static Transition<State> Next(const Config&, const State& state, const ScalerInput&) {
    return {.next = state};
  }
  static constexpr std::tuple kFields = {StateField{"loss_scale", &State::scale}};
};

// The rows of the registry.
PolicyInfo StaticPolicy();
PolicyInfo CerebrasPolicy();
PolicyInfo Cerebras210Policy();
PolicyInfo CerebrasTfPolicy();
PolicyInfo TorchPolicy();
PolicyInfo Torch113Policy();
PolicyInfo FairseqPolicy();
PolicyInfo MetaseqPolicy();
PolicyInfo FairscalePolicy();
PolicyInfo FlaxPolicy();
PolicyInfo JmpPolicy();
PolicyInfo MxnetPolicy();
PolicyInfo MindsporeAmpPolicy();
PolicyInfo MindsporeCellPolicy();
PolicyInfo ApexPolicy();
PolicyInfo ApexFp16UtilsPolicy();
PolicyInfo ApexHysteresisPolicy();
PolicyInfo DeepSpeedPolicy();
PolicyInfo DeepSpeed016Policy();
PolicyInfo DeepSpeedFp16OptimizerPolicy();
PolicyInfo MegatronPolicy();
PolicyInfo ColossalAiPolicy();
PolicyInfo MindSporeManagerPolicy();
PolicyInfo TfPolicy();
PolicyInfo Keras2Policy();
PolicyInfo KerasPolicy();
PolicyInfo TfContribPolicy();
PolicyInfo PaddlePolicy();
PolicyInfo PaddleStaticPolicy();
PolicyInfo OpenSeq2SeqBackoffPolicy();
PolicyInfo OpenSeq2SeqLogMaxPolicy();
PolicyInfo PopartPolicy();
PolicyInfo AdaLossPolicy();
PolicyInfo Fairseq2Policy();
PolicyInfo IcefallPolicy();
PolicyInfo GuidedDiffusionPolicy();
PolicyInfo BmtrainPolicy();

// KEY=VALUE settings for several policies at once: each takes those whose key it knows, and
// POLICY.KEY=VALUE is for one and wins.

// What the settings set: the option that gives them, and the keys that a policy has.
struct SettingKind {
  std::string_view option;  // for messages
  std::string_view noun;
  std::function<std::vector<std::string>(const PolicyInfo& policy)> keys;
};

// Returns the parameter of this name or alias; null if the policy has none.
const ParameterInfo* FindParameter(const PolicyInfo& policy, std::string_view name);

// The parameters of policies, aliases included: --set.
const SettingKind& ParameterSettings();

// The fields of a policy's state, and `scale` for its loss scale: --state.
const SettingKind& StateSettings();

// Returns the settings of one policy as KEY=VALUE. With `only_policy` an unknown key is passed on,
// so that the policy refuses it with a suggestion of its own.
std::vector<std::string> SettingsFor(const PolicyInfo& policy,
                                     std::span<const std::string> settings, const SettingKind& kind,
                                     bool only_policy);

// Throws Error (exit code 2) for a setting that reaches no policy: a misspelt one must not be lost.
void RequireUsed(std::span<const PolicyInfo* const> policies, std::span<const std::string> settings,
                 const SettingKind& kind);

// Sets the fields of a policy's scaler from KEY=VALUE of its state; the loss scale first, as a
// checkpoint that holds it alone. Throws Error (exit code 2) for unknown names, names given twice
// and unfit values.
void RestoreState(std::span<const std::string> state, std::string_view policy,
                  ConfiguredScaler& configured);

// What becomes of a scaler when training is interrupted and goes on from a checkpoint.

// Continues from a checkpoint that kept so much; `initial` is the scaler as training began.
inline void ResumeFrom(Kept kept, const LossScaler& initial, LossScaler& scaler) {
  if (kept == Kept::kScale) scaler.RestartAt(scaler.scale());
  if (kept == Kept::kNothing) scaler = initial;
}

}  // namespace dlsim::sim
