// SPDX-License-Identifier: Apache-2.0
// Loss-scaling policies as pure state machines: config + state + Next(state, input). No tensors, no
// I/O. A policy is a small struct (see LossScalePolicy); LossScaler holds any of them by value.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace dlsim {

// How a training stack decides that a step's gradients are finite (docs/numerics.md, section 5).
enum class FiniteTest {
  kElementwise,  // no infinity and no NaN among the quantised, still scaled gradients
  kGlobalNorm,   // the float32 L2 norm over the unscaled gradients is finite
};

// Returns "elementwise" or "global-norm".
constexpr const char* FiniteTestName(FiniteTest test) {
  return test == FiniteTest::kElementwise ? "elementwise" : "global-norm";
}

// What a policy learns from one step.
struct ScalerInput {
  bool overflow = false;  // the step failed the policy's finite test
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

// What to do when the original software would have stopped: end the run, or skip on for ever.
enum class OnFatal : uint8_t { kStop, kContinue };

// The outcome of one step for a policy with this state type.
template <class State>
struct Transition {
  State next;
  bool skip = false;  // the optimizer does not step
  std::optional<ScalerEvent> event = std::nullopt;
};

// A policy: immutable Config, plain State, and four pure functions.
template <class P>
concept LossScalePolicy = requires(const typename P::Config& config, const typename P::State& state,
                                   const ScalerInput& input) {
  { P::Start(config) } -> std::same_as<typename P::State>;
  { P::Scale(state) } -> std::same_as<double>;  // the loss scale of the coming step
  { P::Next(config, state, input) } -> std::same_as<Transition<typename P::State>>;
  { P::Describe(state) } -> std::same_as<std::vector<NamedValue>>;  // original's counter names
};

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
  LossScaler& operator=(LossScaler other) noexcept {
    model_ = std::move(other.model_);
    step_ = other.step_;
    return *this;
  }

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
  std::vector<NamedValue> Describe() const { return model_->Describe(); }

 private:
  struct AnyModel {
    virtual ~AnyModel() = default;
    virtual std::unique_ptr<AnyModel> Clone() const = 0;
    virtual double Scale() const = 0;
    virtual ScalerDecision Next(const ScalerInput& input) = 0;
    virtual std::vector<NamedValue> Describe() const = 0;
  };

  template <LossScalePolicy P>
  struct Model final : AnyModel {
    explicit Model(const typename P::Config& config_in)
        : config(config_in), state(P::Start(config_in)) {}
    std::unique_ptr<AnyModel> Clone() const override { return std::make_unique<Model>(*this); }
    double Scale() const override { return P::Scale(state); }
    ScalerDecision Next(const ScalerInput& input) override {
      Transition<typename P::State> transition = P::Next(config, state, input);
      state = std::move(transition.next);
      return {transition.skip, std::move(transition.event)};
    }
    std::vector<NamedValue> Describe() const override { return P::Describe(state); }

    typename P::Config config;
    typename P::State state;
  };

  explicit LossScaler(std::unique_ptr<AnyModel> model) : model_(std::move(model)) {}

  std::unique_ptr<AnyModel> model_;
  int64_t step_ = 0;
};

}  // namespace dlsim
