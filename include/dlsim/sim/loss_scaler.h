// SPDX-License-Identifier: Apache-2.0
// Loss-scaling policies as pure state machines: config + state + Next(state, input). No tensors, no
// I/O. A policy is a small struct (see LossScalePolicy); LossScaler holds any of them by value.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "dlsim/enum_names.h"

namespace dlsim::sim {

// How a training stack decides that a step's gradients are finite (docs/numerics.md, section 5).
// "Scaled" is before, "unscaled" after multiplying by the reciprocal of the loss scale.
enum class FiniteTest : uint8_t {
  kElementwise,          // no infinity and no NaN among the quantised, still scaled gradients
  kUnscaledElementwise,  // the same after unscaling, which may overflow by itself
  kGlobalNorm,           // the float32 L2 norm over the unscaled gradients is finite
  kScaledNorm,           // the same over the still scaled gradients
  kSum,                  // the float32 sum of each still scaled tensor is finite
};

constexpr auto EnumNames(FiniteTest) {
  return std::to_array<EnumName<FiniteTest>>(
      {{FiniteTest::kElementwise, "elementwise"},
       {FiniteTest::kUnscaledElementwise, "unscaled-elementwise"},
       {FiniteTest::kGlobalNorm, "global-norm"},
       {FiniteTest::kScaledNorm, "scaled-norm"},
       {FiniteTest::kSum, "sum"}});
}

// What has a loss scale of its own: the model, or each layer (its parameters share a module name),
// or each gradient.
enum class ScaleGranularity : uint8_t { kModel, kLayer, kTensor };

// Which optimizers skip a step when there are several: all on any overflow, or each on its own.
enum class OptimizerSkip : uint8_t { kTogether, kOwn };

// How the coefficient of clipping by norm is computed, in float32.
enum class ClipRule : uint8_t {
  kTorch,       // min(1, max_norm * (1 / (norm + 1e-6))); also DeepSpeed's
  kFairseq,     // max_norm / norm if the norm is above the limit, else 1
  kTensorFlow,  // max_norm * min(1 / norm, 1 / max_norm); NaN for a norm that is not finite
};

constexpr auto EnumNames(ClipRule) {
  return std::to_array<EnumName<ClipRule>>({{ClipRule::kTorch, "torch"},
                                            {ClipRule::kFairseq, "fairseq"},
                                            {ClipRule::kTensorFlow, "tf"}});
}

// What the stack around a policy does with a step.
struct StackRules {
  FiniteTest finite_test = FiniteTest::kElementwise;
  ScaleGranularity granularity = ScaleGranularity::kModel;
  OptimizerSkip optimizer_skip = OptimizerSkip::kTogether;
  ClipRule clip_rule = ClipRule::kTorch;
};

// What a policy learns from one step.
struct ScalerInput {
  bool overflow = false;  // the step failed the policy's finite test

  // Only for policies that look at magnitudes.
  float absmax = 0;         // the largest of the unscaled gradients; infinity if one is not finite
  uint64_t below_edge = 0;  // elements of the scaled gradients below P::HistogramEdge ...
  uint64_t above_edge = 0;  // ... and from it on
};

// What a policy that sets its factor from the gradient at hand learns before the step.
struct GradientSpread {
  float absmax = 0;               // over finite elements
  double standard_deviation = 0;  // population, over finite elements
};

// A field of a state or of a set of parameters, under its original name.
struct NamedValue {
  std::string name;
  std::variant<bool, int64_t, double, std::string> value;
};

// Something the original software would have logged or raised at a step.
struct ScalerEvent {
  int64_t step = 0;     // index of the step; -1 = the constructor refused its parameters
  std::string type;     // the original's exception, such as "ApplianceNanError"
  std::string message;  // the original's text
  bool fatal = false;   // the original stops here
  std::vector<NamedValue> details;
};

// The fields of a policy's state: named once, for results, checkpoints and their restoring.

// A field of a policy's State, under the name that the original's checkpoint or counter has.
template <class State, class T>
struct StateField {
  const char* name;
  T State::*member;
  bool described = true;  // false: only for checkpoints
};
// Clang 16 does not deduce the arguments of an aggregate by itself.
template <class State, class T>
StateField(const char*, T State::*, bool = true) -> StateField<State, T>;

// How a field's value shows, and how it is set from a number; overload both for other types.
inline bool SetFromNumber(double value, double& field) {
  field = value;
  return true;
}
inline bool SetFromNumber(double value, float& field) {
  field = static_cast<float>(value);
  return true;
}
template <std::integral T>
bool SetFromNumber(double value, T& field) {
  // Counters of steps: far from where sums of them could overflow.
  constexpr double kLimit = 0x1p31 - 1;
  if (value != std::trunc(value) || std::fabs(value) > kLimit) return false;
  field = static_cast<T>(value);
  return true;
}
template <class T>
auto FieldValue(const T& field) {
  if constexpr (std::is_integral_v<T>) {
    return int64_t{field};
  } else {
    return static_cast<double>(field);
  }
}

// What of a policy's state a checkpoint holds: everything, the loss scale only, or nothing.
enum class Kept : uint8_t { kAll, kScale, kNothing };

constexpr auto EnumNames(Kept) {
  return std::to_array<EnumName<Kept>>(
      {{Kept::kAll, "all"}, {Kept::kScale, "scale"}, {Kept::kNothing, "nothing"}});
}

// What to do when the original software would have stopped: end the run, or skip on for ever.
enum class OnFatal : uint8_t { kStop, kContinue };

constexpr auto EnumNames(OnFatal) {
  return std::to_array<EnumName<OnFatal>>(
      {{OnFatal::kStop, "stop"}, {OnFatal::kContinue, "continue"}});
}

// The outcome of one step for a policy with this state type.
template <class State>
struct Transition {
  State next;
  bool skip = false;  // the optimizer does not step
  std::optional<ScalerEvent> event = std::nullopt;
};

// A policy: immutable Config, plain State, and pure functions. kFields lists the State, the scale
// first. A policy may also have
//   Scale(state) -> double             if the scale of the coming step is not the first field;
//   SetScale(config, state, double)    if a checkpointed scale sets more than that;
//   kUsesAbsmax                        to get ScalerInput::absmax;
//   HistogramEdge(config) -> double    to get ScalerInput::below_edge and above_edge;
//   Prepare(config, state, spread)     to set its factor from the gradient of the coming step.
template <class P>
concept LossScalePolicy = requires(const typename P::Config& config, const typename P::State& state,
                                   const ScalerInput& input) {
  { P::Start(config) } -> std::same_as<typename P::State>;
  { P::Next(config, state, input) } -> std::same_as<Transition<typename P::State>>;
  P::kFields;  // a tuple of StateField
};

// Returns the loss scale of the coming step.
template <LossScalePolicy P>
double ScaleOf(const typename P::State& state) {
  if constexpr (requires { P::Scale(state); }) {
    return P::Scale(state);
  } else {
    return static_cast<double>(state.*std::get<0>(P::kFields).member);
  }
}

// What a policy did with one step.
struct ScalerDecision {
  bool skip = false;
  std::optional<ScalerEvent> event;  // its `step` is filled in
};

// Any policy with its config and state; a value: a copy continues on its own.
class LossScaler {
 public:
  template <LossScalePolicy P>
  static LossScaler Make(const typename P::Config& config) {
    return LossScaler(std::make_unique<Model<P>>(config));
  }

  LossScaler(const LossScaler& other) : model_(other.model_->Clone()), step_(other.step_) {}
  LossScaler(LossScaler&&) noexcept = default;
  LossScaler& operator=(LossScaler&&) noexcept = default;
  LossScaler& operator=(const LossScaler& other) { return *this = LossScaler(other); }

  // The loss scale of the coming step. Policies that compute in float32 return a float32 value.
  double scale() const { return model_->Scale(); }

  // Advances by one step.
  ScalerDecision Next(const ScalerInput& input) {
    ScalerDecision decision = model_->Next(input);
    if (decision.event) decision.event->step = step_;
    ++step_;
    return decision;
  }

  // The counters of the state, under the original's names.
  std::vector<NamedValue> Describe() const { return model_->Fields(FieldsOf::kResults); }

  // All that a checkpoint can hold: the scale first, then the counters.
  std::vector<NamedValue> Checkpoint() const { return model_->Fields(FieldsOf::kCheckpoint); }

  enum class Restored : uint8_t { kOk, kUnknownField, kBadValue };

  // Sets a field of Checkpoint() by its name.
  Restored Restore(std::string_view name, double value) { return model_->Restore(name, value); }

  // Continues from a checkpoint that holds the loss scale only; all else is reset.
  void RestartAt(double scale) { model_->RestartAt(scale); }

  // True if ScalerInput::absmax matters.
  bool uses_absmax() const { return model_->UsesAbsmax(); }

  // The magnitude at which the policy's histogram of the scaled gradients is cut, if it has one.
  std::optional<double> histogram_edge() const { return model_->HistogramEdge(); }

  // True if Prepare must be called before each step.
  bool looks_ahead() const { return model_->LooksAhead(); }
  void Prepare(const GradientSpread& spread) { model_->Prepare(spread); }

 private:
  enum class FieldsOf : uint8_t { kResults, kCheckpoint };

  struct AnyModel {
    virtual ~AnyModel() = default;
    virtual std::unique_ptr<AnyModel> Clone() const = 0;
    virtual double Scale() const = 0;
    virtual ScalerDecision Next(const ScalerInput& input) = 0;
    virtual std::vector<NamedValue> Fields(FieldsOf what) const = 0;
    virtual Restored Restore(std::string_view name, double value) = 0;
    virtual void RestartAt(double scale) = 0;
    virtual bool UsesAbsmax() const = 0;
    virtual std::optional<double> HistogramEdge() const = 0;
    virtual bool LooksAhead() const = 0;
    virtual void Prepare(const GradientSpread& spread) = 0;
  };

  template <LossScalePolicy P>
  struct Model final : AnyModel {
    explicit Model(const typename P::Config& config_in)
        : config(std::make_shared<const typename P::Config>(config_in)),
          state(P::Start(config_in)) {}
    std::unique_ptr<AnyModel> Clone() const override { return std::make_unique<Model>(*this); }
    double Scale() const override { return ScaleOf<P>(state); }
    ScalerDecision Next(const ScalerInput& input) override {
      Transition<typename P::State> transition = P::Next(*config, state, input);
      state = std::move(transition.next);
      return {transition.skip, std::move(transition.event)};
    }
    // Calls visit(field, is_scale) for each field, the scale first.
    template <class Visit>
    static void ForEachField(const Visit& visit) {
      bool is_scale = true;
      std::apply([&](const auto&... field) { ((visit(field, is_scale), is_scale = false), ...); },
                 P::kFields);
    }
    std::vector<NamedValue> Fields(FieldsOf what) const override {
      std::vector<NamedValue> values;
      ForEachField([&](const auto& field, bool is_scale) {
        if (what == FieldsOf::kResults && (is_scale || !field.described)) return;
        values.push_back({field.name, FieldValue(state.*field.member)});
      });
      return values;
    }
    Restored Restore(std::string_view name, double value) override {
      Restored result = Restored::kUnknownField;
      ForEachField([&](const auto& field, bool) {
        if (name != field.name) return;
        const bool ok = SetFromNumber(value, state.*field.member);
        result = ok ? Restored::kOk : Restored::kBadValue;
      });
      return result;
    }
    void RestartAt(double scale) override {
      state = P::Start(*config);
      if constexpr (requires { P::SetScale(*config, state, scale); }) {
        P::SetScale(*config, state, scale);
      } else {
        SetFromNumber(scale, state.*std::get<0>(P::kFields).member);
      }
    }
    bool UsesAbsmax() const override {
      return requires { P::kUsesAbsmax; };
    }
    std::optional<double> HistogramEdge() const override {
      if constexpr (requires { P::HistogramEdge(*config); }) return P::HistogramEdge(*config);
      return std::nullopt;
    }
    bool LooksAhead() const override {
      return requires(typename P::State & own, GradientSpread spread) {
        P::Prepare(*config, own, spread);
      };
    }
    void Prepare(const GradientSpread& spread) override {
      if constexpr (requires { P::Prepare(*config, state, spread); }) {
        P::Prepare(*config, state, spread);
      }
    }

    std::shared_ptr<const typename P::Config> config;
    typename P::State state;
  };

  explicit LossScaler(std::unique_ptr<AnyModel> model) : model_(std::move(model)) {}

  std::unique_ptr<AnyModel> model_;
  int64_t step_ = 0;
};

}  // namespace dlsim::sim
