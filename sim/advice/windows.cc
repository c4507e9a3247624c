// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/windows.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/format.h"
#include "dlsim/table.h"
#include "sim/advice/advice.h"
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
  const std::string name = object.at("fails");
  const std::optional<ShadowFailure> fails = ValueNamed<ShadowFailure>(name);
  if (!fails) throw std::invalid_argument(name);
  shadow.fails = *fails;
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

// How far below a window harm is told.
constexpr int kBinadesBelow = 24;

size_t PlaceOf(int exponent) { return static_cast<size_t>(exponent - kLowestWindowExponent); }

// What neither the format nor the loss scale changes of a step.
struct StepInputs {
  StepInputs(const Step& opened, NoiseFinder& finder, Checked checked)
      : step(opened),
        tensors(opened.gradients()),
        totals(opened.Inputs()),
        noise(finder.Find(opened, totals)),
        found(finder),
        counted(opened, noise) {
    window.step = step.number();
    bool has_parameters = false, moves = false;
    for (size_t t = 0; t < tensors.size(); ++t) {
      const TensorStats& stats = totals[t];
      const auto& [name, role, dtype, shape] = tensors[t];
      const bool of_parameter = role == Role::kGrad;
      parameters_only &= of_parameter || stats.sum_of_squares == 0;
      has_parameters |= of_parameter;
      moves |= of_parameter && (stats.absmax > 0 || stats.nonfinite() > 0);
      if (stats.nonfinite() > 0 && !window.hopeless) {
        window.hopeless = true;
        window.high_tensor = name;
      }
      if (checked == Checked::kAllGradients || of_parameter) {
        decides = std::fmax(decides, stats.absmax);
      }
      if (stats.absmax <= window.largest || window.hopeless) continue;
      window.largest = stats.absmax;
      window.high_tensor = name;
    }
    window.idle = has_parameters && !moves;
    const auto harm_of_unit = [&](std::span<const size_t> of, std::vector<double>& harm) {
      for (const size_t t : of) {
        harm.push_back(static_cast<double>(totals[t].nonzero_finite()) / 12 /
                       totals[t].sum_of_squares);
      }
    };
    harm_of_unit(counted.grads.all, grad_harm);
    harm_of_unit(counted.act_grads.all, act_grad_harm);
  }

  const Step& step;
  TensorSpan tensors;
  std::span<const TensorStats> totals;
  std::vector<bool> noise;
  const NoiseFinder& found;  // which knows the places of the tensors
  CountedGradients counted;
  std::vector<double> grad_harm, act_grad_harm;  // see ExpectedHarm: of a quantum of 1
  bool parameters_only = true;  // no activation gradient was recorded that is not zero
  StepWindow window;            // as far as it is the same for all
  float decides = 0;            // the largest magnitude of gradients that are checked
};

// Whether Step::Errors tells what a conversion does.
bool ErrorsTell(const Conversion& conversion) {
  return conversion.subnormals == Subnormals::kKeep && !OutsideTables(conversion, 1);
}

// The sum of squared errors of each gradient at 2^exponent.
std::shared_ptr<const std::vector<double>> ErrorsAt(const Step& step, const Conversion& conversion,
                                                    int exponent) {
  if (ErrorsTell(conversion)) return step.Errors(conversion.format, exponent);
  const float scale = std::ldexp(1.0f, exponent);
  const auto errors = std::make_shared<std::vector<double>>();
  for (const TensorAnswer& answer : *step.Ask({.conversion = conversion, .scale = scale})) {
    errors->push_back(answer.total.error_sum_of_squares);
  }
  return errors;
}

// The lowest exponent from `lowest` to `highest` that passes, as all above it do; highest + 1 if
// none does. Begins at `guess`, which is mostly right or next to what is.
template <class Passes>
int LowestThatPasses(int lowest, int highest, int guess, const Passes& passes) {
  int fails = lowest - 1, passed = highest + 1, distance = 1;
  int at = std::clamp(guess, lowest, std::max(lowest, highest));
  while (passed - fails > 1) {
    (passes(at) ? passed : fails) = at;
    if (fails < lowest) {
      at = std::max(passed - distance, lowest);
    } else if (passed > highest) {
      at = std::min(fails + distance, highest);
    } else {
      at = fails + (passed - fails) / 2;
    }
    distance *= 2;
  }
  return passed;
}

// The mean over the tensors of a role of the harm that is to be expected where the format's
// smallest values are `quantum` apart: rounding to them errs by quantum^2 / 12 on average
// (Widrow, 1956), and what becomes zero errs by itself.
double ExpectedHarm(std::span<const double> harm_of_unit, double quantum) {
  double sum = 0;
  for (const double harm : harm_of_unit) sum += std::fmin(1, harm * quantum * quantum);
  return harm_of_unit.empty() ? 0 : sum / static_cast<double>(harm_of_unit.size());
}

// Searches the window of one step in one conversion.
class WindowSearch {
 public:
  WindowSearch(const StepInputs& inputs, const Conversion& conversion)
      : inputs_(inputs),
        conversion_(conversion),
        limit_(HarmLimit(conversion, inputs.parameters_only)),
        window_(inputs.window) {}

  // Where tensors as a whole are expected to lose little.
  int ExpectedLow() const {
    return LowestThatPasses(kLowestWindowExponent, kHighestWindowExponent, 0, [&](int exponent) {
      return RoundingFloor(conversion_) + Expected(exponent) <= limit_;
    });
  }

  // `low` and `channel_low` are those of the step before, and become those of this one: where
  // tensors as a whole lose little, and where their channels do.
  StepWindow Run(int& low, int& channel_low) {
    FindHigh();
    if (window_.hopeless) return std::move(window_);
    // Where channels leave no head-room, the largest scale that does: what is lost in channels is
    // no reason to call a format unfit.
    const int most = window_.high - kHeadroom;
    channel_low = std::max(kLowestWindowExponent,
                           LowestThatPasses(kLowestWindowExponent, most - 1, channel_low,
                                            [&](int exponent) { return KeepsChannels(exponent); }));
    // Whether tensors as a whole would do one binade below is asked, too.
    const int lowest = std::max(channel_low - 1, kLowestWindowExponent);
    low = LowestThatPasses(lowest, window_.high, low,
                           [&](int exponent) { return HarmAt(exponent).passes; });
    window_.low = std::max(low, channel_low);
    window_.channels_decide = low < channel_low;
    if (window_.channels_decide) {
      EndByChannels();
    } else if (window_.low > kLowestWindowExponent) {
      const Harm& below = HarmAt(window_.low - 1);
      window_.low_tensor = below.worst_tensor;
      window_.harm_below = HarmBelow(below.mean);
    }
    return std::move(window_);
  }

 private:
  struct Harm {
    bool passes = false;
    double mean = 0;  // the larger of both roles
    std::string worst_tensor;
  };

  // Scaling and rounding are monotone: the largest magnitude of all overflows first.
  void FindHigh() {
    const float limit = LargestScale(conversion_, window_.largest);
    window_.highest_scale = limit;
    window_.finite_scale = LargestFiniteScale(conversion_, inputs_.decides);
    window_.high = limit == 0 ? kLowestWindowExponent - 1
                              : std::clamp(std::ilogb(limit), kLowestWindowExponent - 1,
                                           kHighestWindowExponent);
    if (window_.high == kHighestWindowExponent && !window_.hopeless) window_.high_tensor.clear();
    window_.hopeless |= window_.high < kLowestWindowExponent;
  }

  // Of a module that is called again and again, as in a recurrent network, all calls make the
  // gradients of the same parameters. Where no scale with head-room keeps each call, the largest
  // with head-room is to keep them together.
  const Harm& HarmAt(int exponent) {
    const auto [found, added] = harm_.try_emplace(exponent);
    Harm& harm = found->second;
    if (!added) return harm;
    const auto errors = ErrorsAt(inputs_.step, conversion_, exponent);
    const auto over = [&](Role role, Calls calls) {
      return HarmOver(inputs_.counted.Of(role).all, inputs_.step, *errors, calls);
    };
    const HarmOverTensors grads = over(Role::kGrad, Calls::kApart);
    const HarmOverTensors activations = over(Role::kActGrad, Calls::kApart);
    harm.passes = grads.mean <= limit_ && (activations.mean <= limit_ ||
                                           (exponent >= window_.high - kHeadroom &&
                                            over(Role::kActGrad, Calls::kTogether).mean <= limit_));
    if (grads.tensors + activations.tensors == 0) return harm;
    const HarmOverTensors& worse = activations.mean > grads.mean ? activations : grads;
    harm.mean = worse.mean;
    harm.worst_tensor = inputs_.tensors[worse.worst_tensor].name;
    return harm;
  }

  HarmOverTensors ChannelHarmAt(Role role, int exponent) const {
    const std::optional<double> quantum = SmallestQuantum(conversion_, std::ldexp(1.0, exponent));
    if (!quantum) return {};
    return ChannelHarmOver(inputs_.counted.Of(role), inputs_.step, *quantum);
  }

  bool KeepsChannels(int exponent) const {
    return ChannelHarmAt(Role::kGrad, exponent).mean <= kRowHarmThreshold &&
           ChannelHarmAt(Role::kActGrad, exponent).mean <= kFeatureHarmThreshold;
  }

  // Tells what bounds the window, if that is what channels lose.
  void EndByChannels() {
    float harm = 0;
    for (int below = 1; below <= kBinadesBelow && harm < 1; ++below) {
      const int exponent = window_.low - below;
      const HarmOverTensors rows = ChannelHarmAt(Role::kGrad, exponent);
      const HarmOverTensors features = ChannelHarmAt(Role::kActGrad, exponent);
      const bool by_rows = rows.mean / kRowHarmThreshold > features.mean / kFeatureHarmThreshold;
      const HarmOverTensors& worse = by_rows ? rows : features;
      if (below == 1) window_.low_tensor = inputs_.tensors[worse.worst_tensor].name;
      harm = static_cast<float>(worse.mean);
      window_.harm_below.push_back(harm);
    }
  }

  // The larger of both roles' harm that is to be expected at a scale.
  double Expected(int exponent) const {
    const int spacing = 1 - conversion_.format.bias - conversion_.format.mantissa_bits;
    const double quantum = std::ldexp(1.0, spacing - exponent);
    return std::fmax(ExpectedHarm(inputs_.grad_harm, quantum),
                     ExpectedHarm(inputs_.act_grad_harm, quantum));
  }

  // Goes on from what was measured one binade below as the expectation does.
  std::vector<float> HarmBelow(double measured) const {
    std::vector<float> harm = {static_cast<float>(std::fmin(1, measured))};
    const double expected = Expected(window_.low - 1);
    for (int below = 2; below <= kBinadesBelow && harm.back() < 1; ++below) {
      const double growth =
          expected > 0 ? Expected(window_.low - below) / expected : std::exp2(2 * below - 2);
      harm.push_back(static_cast<float>(std::fmin(1, measured * growth)));
    }
    return harm;
  }

  const StepInputs& inputs_;
  const Conversion& conversion_;
  double limit_;
  StepWindow window_;
  std::map<int, Harm> harm_;  // by exponent, as far as it was asked
};

// Adds what a step's tensors lose at a scale.
void AddTensorHarm(const StepInputs& inputs, const Conversion& conversion, int exponent,
                   std::vector<TensorHarm>& tensors) {
  const auto errors = ErrorsAt(inputs.step, conversion, exponent);
  const std::optional<double> quantum = SmallestQuantum(conversion, std::ldexp(1.0, exponent));
  const int64_t step = inputs.step.number();
  if (tensors.empty()) tensors.reserve(inputs.found.tensor_count());
  while (tensors.size() < inputs.found.tensor_count()) {
    tensors.push_back({inputs.found.Tensor(tensors.size())});
  }
  for (size_t t = 0; t < errors->size(); ++t) {
    const TensorStats& total = inputs.totals[t];
    TensorHarm& tensor = tensors[inputs.found.places()[t]];
    if (total.sum_of_squares == 0) continue;
    tensor.absmax = std::fmax(tensor.absmax, total.absmax);
    tensor.noise_steps += inputs.noise[t];
    const double harm = (*errors)[t] / total.sum_of_squares;
    tensor.harm.Add(harm);
    const double of_channels = AddChannels(inputs.step.tables(), t, quantum,
                                           AboveFloor(harm, conversion), tensor.channels);
    if (std::max(harm, of_channels) <= kHarmAtRisk) continue;
    // Steps that are gone through again come last.
    const bool first = tensor.steps_at_risk++ == 0;
    tensor.first_step = first ? step : std::min(tensor.first_step, step);
    tensor.last_step = first ? step : std::max(tensor.last_step, step);
  }
}

// Lowers the upper ends by as many binades as a step that was run again had to leave: within
// modules there are larger gradients than those that are recorded. Where a window would end below
// its lower end, the step has shown that a lower scale does. Of the ceilings only that one stays,
// if any.
void EndWhereStepsOverflow(Shadow& shadow, std::vector<StepWindow>& windows) {
  int binades = 0;
  Shadow::Ceiling lowest;
  for (const Shadow::Ceiling& ceiling : shadow.ceilings) {
    const auto window = std::ranges::find(windows, ceiling.step, &StepWindow::step);
    if (window == windows.end() || window->hopeless) continue;
    const int above = window->high - std::ilogb(ceiling.scale);
    if (above > binades) binades = above, lowest = ceiling;
  }
  shadow.ceilings.clear();
  if (binades == 0) return;
  shadow.ceilings.push_back(lowest);
  for (StepWindow& window : windows) {
    if (window.hopeless || window.largest == 0) continue;
    window.high = std::max(window.high - binades, kLowestWindowExponent);
    window.high_tensor = lowest.module;
    window.highest_scale = std::fmin(window.highest_scale, std::ldexp(1.0f, window.high));
    window.finite_scale = std::fmin(window.finite_scale, window.highest_scale);
    for (; window.low > window.high; --window.low) {
      if (!window.harm_below.empty()) window.harm_below.erase(window.harm_below.begin());
    }
  }
}

}  // namespace

double StepWindow::LossAt(double scale) const {
  if (hopeless || scale > highest_scale) return 1;
  if (scale >= lowest_scale() || harm_below.empty()) return 0;
  const int below = low - 1 - std::ilogb(scale);
  const auto last = static_cast<int>(harm_below.size()) - 1;
  return harm_below[static_cast<size_t>(std::clamp(below, 0, last))];
}

void SafeStepCounts::Add(const StepWindow& window) {
  if (window.empty()) return;
  for (int exponent = window.low; exponent <= window.high; ++exponent) {
    ++safe_[PlaceOf(exponent)];
    with_room_[PlaceOf(exponent)] += exponent + kHeadroom <= window.high;
  }
}

// A step that leaves no head-room at any scale that is safe for the others is a spike: it does not
// set the scale.
std::optional<SafeScales> SafeStepCounts::Best() const {
  const bool room = *std::ranges::max_element(with_room_) > 0;
  const Counts& counts = room ? with_room_ : safe_;
  const size_t most = *std::ranges::max_element(counts);
  if (most == 0) return std::nullopt;
  std::optional<std::pair<int, int>> best;
  for (int low = kLowestWindowExponent; low <= kHighestWindowExponent; ++low) {
    if (counts[PlaceOf(low)] != most) continue;
    std::pair row = {low, low};
    while (row.second < kHighestWindowExponent && counts[PlaceOf(row.second + 1)] == most) {
      ++row.second;
    }
    const auto rank = [](const std::pair<int, int>& r) {
      return std::pair(r.first <= 0 && r.second >= 0, r.second - r.first);
    };
    if (!best || rank(row) > rank(*best)) best = row;
    low = row.second;
  }
  const int exponent = room ? best->second : std::max(best->first, best->second - kHeadroom);
  const auto safe_at = [&](int at) { return safe_[PlaceOf(at)]; };
  SafeScales range = {exponent, exponent, safe_at(exponent), exponent, exponent};
  while (range.low > kLowestWindowExponent && safe_at(range.low - 1) >= range.steps) --range.low;
  while (range.high < kHighestWindowExponent && safe_at(range.high + 1) >= range.steps) {
    ++range.high;
  }
  if (range.low <= 0 && range.high >= 0) range.exponent = 0;
  return range;
}

WindowFinder::WindowFinder(const StepSource& source, AdviceRequest request,
                           const ReplayOptions& options)
    : source_(source), request_(std::move(request)), options_(options) {
  options_.observer = nullptr;
  found_.recipe = request_.recipe;
  found_.tensors = request_.tensors;
  found_.float32 = source.float32;
  for (const std::string& name : request_.formats) {
    const NamedFormat format = ParseFormat(name);
    const auto same = [&](const OfFormat& of) { return of.found.format == format.name; };
    if (std::ranges::any_of(formats_, same)) continue;
    Conversion conversion = request_.conversion;
    conversion.format = format.format;
    FormatAdvice found;
    found.format = format.name;
    formats_.push_back({std::move(found), conversion, ForwardTally(conversion, found_.recipe)});
  }
  noise_.Sample(source, options_.step);
}

void WindowFinder::Aim(size_t step, OfFormat& of) {
  of.found.safest = of.safe_steps.Best();
  if (!of.found.safest || of.found.safest->exponent == of.exponent) return;
  of.exponent = of.found.safest->exponent;
  of.first = step;
  of.tensors = {};
}

void WindowFinder::Take(size_t i, const Step& step) {
  const StepInputs inputs(step, noise_, options_.checked);
  if (step.HasBrokenLoss() && found_.broken_losses.steps++ == 0) {
    found_.broken_losses.first_step = step.number();
  }
  found_.refused.Add(step.RefusedBefore());
  const std::set<std::string> types = step.Listed(kComputedInKey);
  found_.computed_in.float16 += types.contains("float16");
  found_.computed_in.bfloat16 += types.contains("bfloat16");
  if (std::string shadow = step.Metadata(kShadowKey); !shadow.empty()) shadow_ = std::move(shadow);
  const ListedTensors listed = ListedIn(step, inputs.totals);
  // What is asked first is asked together.
  StepQuestions first, last;
  for (OfFormat& of : formats_) {
    if (of.found.windows.empty()) of.low = WindowSearch(inputs, of.conversion).ExpectedLow();
    if (!ErrorsTell(of.conversion)) continue;
    first.errors.push_back({of.conversion.format, of.low});
    first.errors.push_back({of.conversion.format, of.low - 1});
  }
  step.MakeReady(first);
  for (OfFormat& of : formats_) {
    of.forward.Add(step, listed);
    std::vector<StepWindow>& windows = of.found.windows;
    windows.push_back(WindowSearch(inputs, of.conversion).Run(of.low, of.channel_low));
    of.safe_steps.Add(windows.back());
    Aim(i, of);
    if (ErrorsTell(of.conversion)) last.errors.push_back({of.conversion.format, of.exponent});
  }
  step.MakeReady(last);
  for (OfFormat& of : formats_) {
    AddTensorHarm(inputs, of.conversion, of.exponent, of.tensors);
  }
}

// Only autocast is run in formats, and only as it rounds: to nearest, with subnormals and infinity.
void WindowFinder::ReadShadows() {
  if (shadow_.empty() || found_.recipe != Recipe::kAutocast) return;
  try {
    const Json shadows = Json::parse(shadow_);
    found_.not_run = shadows.value("why", std::string());
    for (OfFormat& of : formats_) {
      const bool as_autocast = of.conversion == Conversion{.format = of.conversion.format};
      if (!as_autocast || !shadows.contains(of.found.format)) continue;
      of.found.shadow = ShadowOf(shadows.at(of.found.format));
    }
  } catch (const std::exception& error) {
    throw InputError("shadow", "damaged", "what docs/traces.md describes", error.what());
  }
}

// The windows, with what was looked at and no verdict.
Advice WindowFinder::TakeWindows() {
  ReadShadows();
  size_t behind = 0;
  for (OfFormat& of : formats_) {
    FormatAdvice& found = of.found;
    if (found.shadow) {
      found.shadow = WithKept(*found.shadow, source_.float32);
      EndWhereStepsOverflow(*found.shadow, found.windows);
      of.safe_steps = {};
      for (const StepWindow& window : found.windows) of.safe_steps.Add(window);
      Aim(found.windows.size(), of);
    }
    behind = std::max(behind, of.first);
  }
  if (behind > 0) {
    ForEachStep(source_, options_.step, [&](size_t i, const Step& step) {
      const StepInputs inputs(step, noise_, options_.checked);
      for (OfFormat& of : formats_) {
        if (i < of.first) AddTensorHarm(inputs, of.conversion, of.exponent, of.tensors);
      }
      return i + 1 < behind;
    });
  }
  for (OfFormat& of : formats_) {
    FormatAdvice& found = found_.formats.emplace_back(std::move(of.found));
    found.tensors = std::move(of.tensors);
    found.forward = of.forward.VerdictOn(Role::kAct);
    found.values = of.forward.VerdictOn(Role::kValue);
  }
  return std::move(found_);
}

}  // namespace dlsim::sim
