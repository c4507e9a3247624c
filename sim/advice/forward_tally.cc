// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/forward_tally.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/format.h"
#include "sim/replay/finite_test.h"
#include "sim/replay/harm.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

// From here on a value is a share of torch.finfo(dtype).max or min, in 16 bits another one.
constexpr float kOfType = std::numeric_limits<float>::max() / 2;

// What masks fill in or add is at most this; -1e4 itself was chosen to fit fp16.
constexpr float kLeastMask = 1e4f;

// Values that differ by less are one: sums of squares are rounded, and so is mask + score.
constexpr double kSame = 0x1p-20;

// Whether the values that overflow have one magnitude, which holds the sum of squares: several, or
// all that are not zero. A single one among others is an outlier, as real activations have them.
bool OverflowsByOneMagnitude(const TensorStats& stats) {
  const double count = static_cast<double>(stats.overflow);
  const double of_one = count * stats.absmax * stats.absmax;
  const bool repeated = stats.overflow > 1 || stats.overflow == stats.nonzero_finite();
  return repeated && stats.overflow > 0 && stats.absmax > kLeastMask &&
         std::fabs(stats.sum_of_squares - of_one) <= kSame * of_one;
}

// Whether what overflows, if it is negative, is as good as minus infinity: of operations only
// `masked_fill` refuses one that its type cannot hold.
bool HidesScores(const std::string& name, const TensorStats& stats) {
  if (stats.absmax >= kOfType) return true;
  const bool fills_in = name.find("/masked_fill") != name.npos;
  return stats.overflow > 1 && IsOfOperation(name) && !fills_in;
}

// An output matters to the loss about as much as its norm times that of its gradient. Along a chain
// of layers the product hardly changes, whatever their units are.
constexpr double kSlight = 0.01;  // of the largest of the step

// The outputs whose loss is slight: small terms of sums. What has no gradient in the recording is
// taken for slight if it is the result of an operation, or if the step has no gradients at all.
std::set<std::string> SlightOutputs(const Step& step, std::span<const TensorStats> inputs) {
  const TensorSpan gradients = step.gradients(), forward = step.forward();
  std::unordered_map<std::string, double> squares;  // of gradients, by the name of the output
  for (size_t t = 0; t < gradients.size(); ++t) {
    if (gradients[t].role != Role::kActGrad || !gradients[t].name.ends_with("_grad")) continue;
    squares[std::string(OutputOf(gradients[t].name))] = inputs[t].sum_of_squares;
  }
  std::vector<double> weights;
  for (size_t t = 0; t < forward.size(); ++t) {
    double of_output = 0;
    for (const std::vector<TensorTable>& part : step.tables().parts) {
      of_output += part[gradients.size() + t].sum_of_squares;
    }
    const auto found = squares.find(forward[t].name);
    const bool known = found != squares.end();
    weights.push_back(known ? std::sqrt(found->second) * std::sqrt(of_output) : -1);
  }
  const double largest = weights.empty() ? 0 : std::ranges::max(weights);
  std::set<std::string> slight;
  for (size_t t = 0; t < forward.size(); ++t) {
    const bool slight_unless_known = gradients.empty() || IsOfOperation(forward[t].name);
    if (weights[t] >= 0 ? weights[t] < kSlight * largest : slight_unless_known) {
      slight.insert(forward[t].name);
    }
  }
  return slight;
}

}  // namespace

ListedTensors ListedIn(const Step& step, std::span<const TensorStats> inputs) {
  if (step.forward().empty()) return {};
  return {step.Listed(kAutocastFloat32Key), SlightOutputs(step, inputs)};
}

double ForwardHeadroom(const Conversion& conversion, float absmax) {
  if (absmax == 0) return std::numeric_limits<double>::infinity();
  const double room = std::log2(MaxFinite(conversion.format) / absmax);
  return absmax > LargestMagnitude(conversion, 1) ? room : std::fmax(0, room);
}

std::vector<const ForwardTensor*> ForwardVerdict::Overflowing() const {
  std::vector<const ForwardTensor*> overflowing;
  for (const ForwardTensor& tensor : tensors) {
    if (tensor.overflow_step) overflowing.push_back(&tensor);
  }
  std::ranges::stable_sort(overflowing, {},
                           [](const ForwardTensor* tensor) { return *tensor->overflow_step; });
  return overflowing;
}

std::vector<const ForwardTensor*> ForwardVerdict::Vanishing() const {
  std::vector<const ForwardTensor*> vanishing;
  for (const ForwardTensor& tensor : tensors) {
    if (tensor.Vanishes()) vanishing.push_back(&tensor);
  }
  return vanishing;
}

ForwardTally::ForwardTally(const Conversion& conversion, Recipe recipe)
    : conversion_(conversion),
      recipe_(recipe),
      largest_that_fits_(LargestMagnitude(conversion, 1)) {}

void ForwardTally::Add(const Step& step, const ListedTensors& listed) {
  const TensorSpan tensors = step.forward();
  if (tensors.empty()) return;
  const std::shared_ptr<const StepAnswer> answer = step.AskForward(conversion_);
  std::set<Role> present;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const std::string& name = tensors[t].name;
    const Role role = tensors[t].role;
    const TensorStats& total = (*answer)[t].total;
    OfRole& of_role = role == Role::kValue ? values_ : outputs_;
    of_role.steps += present.insert(role).second;
    if (recipe_ == Recipe::kAutocast && listed.float32.contains(name)) {
      of_role.kept_in_float32.insert(name);
      continue;
    }
    // Steps mostly have the same tensors.
    ForwardTensor& tensor = of_role.tensors.Of(name, t);
    tensor.steps += total.sum_of_squares > 0;
    // Models train whose parameters vanish.
    tensor.steps_lost += role == Role::kAct && !listed.slight.contains(name) &&
                         total.energy_lost() > kForwardLossFails;
    tensor.inf += total.inf;
    tensor.nan += total.nan;
    if (total.nonfinite() > 0 && !tensor.nonfinite_step) tensor.nonfinite_step = step.number();
    if (total.energy_lost() > tensor.energy_lost) {
      tensor.energy_lost = total.energy_lost();
      tensor.energy_lost_step = step.number();
    }
    CountLargest(step, t, total, tensor);
  }
}

// A repeated magnitude of which all that overflows is made is that of a mask if no positive value
// overflows. One that only hides scores does not count.
void ForwardTally::CountLargest(const Step& step, size_t place, const TensorStats& total,
                                ForwardTensor& tensor) const {
  const bool first = total.absmax > largest_that_fits_ && !tensor.overflow_step;
  const auto overflows_above_0 = [&](const std::vector<TensorTable>& part) {
    return part[step.gradients().size() + place].largest > largest_that_fits_;
  };
  const bool constant = first && OverflowsByOneMagnitude(total) &&
                        std::ranges::none_of(step.tables().parts, overflows_above_0);
  if (constant && HidesScores(tensor.name, total)) {
    tensor.hides_scores = total.absmax < kOfType;
    return;
  }
  if (total.absmax > tensor.absmax) {
    tensor.absmax = total.absmax;
    tensor.absmax_step = step.number();
  }
  if (!first) return;
  tensor.overflow_step = step.number();
  tensor.overflow_absmax = total.absmax;
  tensor.constant = constant;
}

ForwardVerdict ForwardTally::VerdictOn(Role role) const {
  const OfRole& of_role = role == Role::kValue ? values_ : outputs_;
  ForwardVerdict verdict;
  verdict.steps = of_role.steps;
  verdict.tensors = of_role.tensors.items();
  verdict.kept_in_float32 = {of_role.kept_in_float32.begin(), of_role.kept_in_float32.end()};
  if (verdict.steps == 0) return verdict;
  for (const ForwardTensor& tensor : verdict.tensors) {
    verdict.absmax = std::fmax(verdict.absmax, tensor.absmax);
  }
  verdict.headroom = ForwardHeadroom(conversion_, verdict.absmax);
  verdict.state = verdict.Overflowing().empty() ? ForwardState::kFits : ForwardState::kOverflows;
  return verdict;
}

namespace {

using Json = nlohmann::ordered_json;

std::optional<double> NumberIn(const Json& object, const char* key) {
  const Json& value = object.at(key);
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

ShadowFailure FailureIn(const std::string& name) {
  for (const auto& [failure, known] : EnumNames(ShadowFailure())) {
    if (known == name) return failure;
  }
  throw std::invalid_argument(name);
}

// Recordings of before they were written have none.
std::vector<Shadow::Ceiling> CeilingsIn(const Json& object) {
  std::vector<Shadow::Ceiling> ceilings;
  for (const Json& ceiling : object.value("ceilings", Json::array())) {
    ceilings.push_back({ceiling.at("step"), ceiling.at("scale"), ceiling.at("module")});
  }
  return ceilings;
}

Shadow::Plan PlanIn(const Json& object) {
  Shadow::Plan plan;
  object.at("keep_float32").get_to(plan.keep_float32);
  object.at("sources").get_to(plan.sources);
  plan.sources.resize(plan.keep_float32.size());
  object.at("loss_in_float32").get_to(plan.loss_in_float32);
  object.at("steps").get_to(plan.steps);
  object.at("scale").get_to(plan.scale);
  plan.ceilings = CeilingsIn(object);
  plan.share = NumberIn(object, "share");
  return plan;
}

Shadow ShadowOf(const Json& object) {
  Shadow shadow;
  shadow.fails = FailureIn(object.at("fails").get<std::string>());
  object.at("steps").get_to(shadow.steps);
  object.at("bad").get_to(shadow.bad);
  object.at("overflows").get_to(shadow.overflows);
  object.at("error").get_to(shadow.error);
  shadow.loss = NumberIn(object, "loss");
  shadow.gradients = NumberIn(object, "gradients");
  object.at("scale").get_to(shadow.scale);
  shadow.ceilings = CeilingsIn(object);
  for (const Json& culprit : object.at("culprits")) {
    shadow.culprits.push_back({culprit.at("part"), culprit.at("module"), culprit.at("operation"),
                               NumberIn(culprit, "operands"), NumberIn(culprit, "result")});
  }
  object.at("modules").get_to(shadow.modules);
  if (object.contains("plan")) shadow.plan = PlanIn(object.at("plan"));
  return shadow;
}

// Returns what `read` makes of the text, nothing of an empty one.
template <class T>
T Reading(std::string_view text, const std::function<T(const nlohmann::json&)>& read) {
  if (text.empty()) return {};
  try {
    return read(nlohmann::json::parse(text));
  } catch (const std::exception& error) {
    throw InputError("shadow", "damaged", "what docs/traces.md describes", error.what());
  }
}

}  // namespace

std::optional<Shadow> ShadowIn(std::string_view text, const std::string& format,
                               const Conversion& conversion) {
  if (conversion != Conversion{.format = conversion.format}) return std::nullopt;
  return Reading<std::optional<Shadow>>(text, [&](const nlohmann::json& object) {
    const auto found = object.find(format);
    return found == object.end() ? std::nullopt : std::optional(ShadowOf(*found));
  });
}

std::string WhyNotRun(std::string_view text) {
  return Reading<std::string>(
      text, [](const nlohmann::json& object) { return object.value("why", std::string()); });
}

}  // namespace dlsim::sim
