// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/scale_window.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/replay/largest_scale.h"

namespace dlsim::sim {
namespace {

constexpr Reading kReadings[] = {Reading::kLikely, Reading::kSmallest, Reading::kLargest};

// Steps from a guess that was wrong, and how far apart two ends are worth that.
constexpr int kSteps[] = {1, 2, 4, 12};
constexpr int kWideGap = 12;

// How far below a window harm is predicted.
constexpr int kBinadesBelow = 24;

size_t IndexOf(Reading reading) { return static_cast<size_t>(reading); }

// The mean over the tensors of a role of the harm that is to be expected where the format's
// smallest values are `quantum` apart: rounding to them errs by quantum^2 / 12 on average
// (Widrow, 1956), and what becomes zero errs by itself.
double ExpectedHarm(Role role, const StepInputs& inputs, double quantum) {
  double sum = 0, tensors = 0;
  for (size_t t = 0; t < inputs.tensors.size(); ++t) {
    const TensorStats& stats = inputs.totals[t];
    if (inputs.tensors[t].role != role || inputs.noise[t] || stats.sum_of_squares == 0) continue;
    const double errors = static_cast<double>(stats.nonzero_finite()) * quantum * quantum / 12;
    sum += std::fmin(1, errors / stats.sum_of_squares);
    ++tensors;
  }
  return tensors == 0 ? 0 : sum / tensors;
}

}  // namespace

double StepWindow::LossAt(double scale) const {
  if (hopeless || scale > highest_scale) return 1;
  if (scale >= lowest_scale() || harm_below.empty()) return 0;
  const int below = low - 1 - std::ilogb(scale);
  const auto last = static_cast<int>(harm_below.size()) - 1;
  return harm_below[static_cast<size_t>(std::clamp(below, 0, last))];
}

StepInputs::StepInputs(const GradientStep& opened, const StepMeasurement& step,
                       const std::vector<TensorAnswer>& any_answers, NoiseFinder& noise_finder)
    : tensors(step.tensors),
      channels(step.channels),
      totals(TotalsOf(any_answers)),
      noise(noise_finder.Find(opened, tensors, totals)) {
  parameters_only = true;
  for (size_t t = 0; t < tensors.size(); ++t) {
    parameters_only &= tensors[t].role == Role::kGrad || totals[t].sum_of_squares == 0;
  }
}

WindowSearch::WindowSearch(NamedFormat format, const Conversion& conversion, Checked checked)
    : format_(std::move(format)), conversion_(conversion), checked_(checked) {
  conversion_.format = format_.format;
}

void WindowSearch::Begin(int64_t step) {
  current_ = {};
  current_.step = step;
  known_.clear();
  found_high_ = false;
  channel_low_ = kLowestWindowExponent;
}

StepQuestion WindowSearch::QuestionAt(int exponent) const {
  return {.conversion = conversion_, .scale = std::ldexp(1.0f, exponent), .asked = Asked::kErrors};
}

// Scaling and rounding are monotone: the largest magnitude of all overflows first.
void WindowSearch::FindHigh(const StepInputs& inputs) {
  found_high_ = true;
  float decides = 0;
  bool has_parameters = false, moves = false;
  for (size_t t = 0; t < inputs.tensors.size(); ++t) {
    const TensorStats& stats = inputs.totals[t];
    if (inputs.tensors[t].role == Role::kGrad) {
      has_parameters = true;
      moves |= stats.absmax > 0 || stats.nonfinite() > 0;
    }
    if (stats.nonfinite() > 0 && !current_.hopeless) {
      current_.hopeless = true;
      current_.high_tensor = inputs.tensors[t].name;
    }
    if (checked_ == Checked::kAllGradients || inputs.tensors[t].role == Role::kGrad) {
      decides = std::fmax(decides, stats.absmax);
    }
    if (stats.absmax <= current_.largest || current_.hopeless) continue;
    current_.largest = stats.absmax;
    current_.high_tensor = inputs.tensors[t].name;
  }
  current_.idle = has_parameters && !moves;
  const float limit = LargestScale(conversion_, current_.largest);
  current_.highest_scale = limit;
  current_.finite_scale = LargestFiniteScale(conversion_, decides);
  current_.high =
      limit == 0 ? kLowestWindowExponent - 1
                 : std::clamp(std::ilogb(limit), kLowestWindowExponent - 1, kHighestWindowExponent);
  if (current_.high == kHighestWindowExponent && !current_.hopeless) current_.high_tensor.clear();
  current_.hopeless |= current_.high < kLowestWindowExponent;
}

HarmOverTensors WindowSearch::ChannelHarmAt(const StepInputs& inputs, Role role,
                                            int exponent) const {
  const std::optional<double> quantum = LogQuantum(conversion_, std::ldexp(1.0, exponent));
  if (!quantum) return {};
  return ChannelHarmOver(role, inputs.tensors, inputs.channels, inputs.noise, *quantum);
}

bool WindowSearch::KeepsChannels(const StepInputs& inputs, int exponent) const {
  return ChannelHarmAt(inputs, Role::kGrad, exponent).mean <= kRowHarmThreshold &&
         ChannelHarmAt(inputs, Role::kActGrad, exponent).mean <= kFeatureHarmThreshold;
}

// Finds the smallest scale at which channels lose little; where that leaves no head-room, the
// largest that does: what is lost in channels is no reason to call a format unfit.
void WindowSearch::FindChannelLow(const StepInputs& inputs) {
  if (inputs.channels.empty() || current_.hopeless) return;
  int fails = kLowestWindowExponent - 1, passes = current_.high - kHeadroom;
  while (passes - fails > 1) {
    const int middle = fails + (passes - fails) / 2;
    (KeepsChannels(inputs, middle) ? passes : fails) = middle;
  }
  channel_low_ = std::max(passes, kLowestWindowExponent);
}

// The larger of both roles' harm that is to be expected at a scale.
double WindowSearch::Expected(const StepInputs& inputs, int exponent) const {
  const int spacing = 1 - conversion_.format.bias - conversion_.format.mantissa_bits;
  const double quantum = std::ldexp(1.0, spacing - exponent);
  return std::fmax(ExpectedHarm(Role::kGrad, inputs, quantum),
                   ExpectedHarm(Role::kActGrad, inputs, quantum));
}

// Where the search begins if no step went before; what it finds is measured.
int WindowSearch::PredictLow(const StepInputs& inputs) const {
  const double limit = HarmLimit(conversion_, inputs.parameters_only);
  int fails = kLowestWindowExponent - 1, passes = kHighestWindowExponent;
  while (passes - fails > 1) {
    const int middle = fails + (passes - fails) / 2;
    (Expected(inputs, middle) <= limit ? passes : fails) = middle;
  }
  return passes;
}

void WindowSearch::Learn(int exponent, const StepInputs& inputs,
                         const std::vector<TensorAnswer>& answers) {
  if (!found_high_) {
    FindHigh(inputs);
    FindChannelLow(inputs);
  }
  if (!guess_) guess_ = PredictLow(inputs);
  // What overflows is in no error.
  if (exponent > current_.high) return;
  // Of a module that is called again and again, as in a recurrent network, all calls make the
  // gradients of the same parameters. Where no scale with head-room keeps each call, the largest
  // with head-room is to keep them together.
  HarmAtScale& at = known_[exponent];
  const double limit = HarmLimit(conversion_, inputs.parameters_only);
  const auto over = [&](Role role, Reading reading, Calls calls = Calls::kApart) {
    return HarmOver(role, inputs.tensors, answers, inputs.totals, inputs.noise, reading, calls);
  };
  const bool exact = answers.empty() || !answers.front().bounds;
  for (const Reading reading : kReadings) {
    if (exact && reading != Reading::kLikely) {
      at.passes[IndexOf(reading)] = at.passes[IndexOf(Reading::kLikely)];
      continue;
    }
    const HarmOverTensors grads = over(Role::kGrad, reading);
    const HarmOverTensors activations = over(Role::kActGrad, reading);
    at.passes[IndexOf(reading)] =
        grads.mean <= limit && (activations.mean <= limit ||
                                (exponent >= current_.high - kHeadroom &&
                                 over(Role::kActGrad, reading, Calls::kTogether).mean <= limit));
    if (reading != Reading::kLikely || grads.tensors + activations.tensors == 0) continue;
    const HarmOverTensors& worse = activations.mean > grads.mean ? activations : grads;
    at.mean = worse.mean;
    at.worst_tensor = inputs.tensors[worse.worst_tensor].name;
  }
}

// A larger scale rounds to a finer grid, which holds the coarser one: harm only falls with the
// scale.
WindowSearch::Ends WindowSearch::EndsOf(Reading reading) const {
  // Whether tensors as a whole would do one binade below what channels need is asked, too.
  Ends ends = {std::max(channel_low_ - 2, kLowestWindowExponent - 1), current_.high + 1};
  for (const auto& [exponent, at] : known_) {
    if (exponent <= ends.fails) continue;
    if (at.passes[IndexOf(reading)] && exponent >= channel_low_) {
      ends.passes = std::min(ends.passes, exponent);
    } else {
      ends.fails = std::max(ends.fails, exponent);
    }
  }
  return ends;
}

// A pass over the step costs more than a question, so each pass answers several.
std::vector<int> WindowSearch::Wanted() const {
  if (current_.hopeless || !guess_) return {};
  std::vector<int> wanted;
  const auto ask_at = [&](const Ends& ends, int exponent) {
    const int within = std::clamp(exponent, ends.fails + 1, ends.passes - 1);
    if (std::ranges::find(wanted, within) == wanted.end()) wanted.push_back(within);
  };
  for (const Reading reading : kReadings) {
    const Ends ends =
        found_high_ ? EndsOf(reading) : Ends{kLowestWindowExponent - 1, kHighestWindowExponent + 1};
    const int gap = ends.passes - ends.fails;
    if (gap <= 1) continue;
    // Around the guess; then up or down from it, until the end lies between; then quarters.
    const bool below = ends.passes <= *guess_ - 1, above = ends.fails >= *guess_;
    if (!below && !above) {
      // The prediction is rather too high: it has values that become zero err as others do.
      if (windows_.empty()) ask_at(ends, *guess_ - 2);
      ask_at(ends, *guess_ - 1);
      ask_at(ends, *guess_);
    } else if (gap > kWideGap) {
      for (const int step : kSteps) ask_at(ends, below ? ends.passes - step : ends.fails + step);
    } else {
      for (const int quarter : {1, 2, 3}) ask_at(ends, ends.fails + gap * quarter / 4);
    }
  }
  return wanted;
}

// Goes on from what was measured as the expectation does.
std::vector<float> WindowSearch::HarmBelow(const StepInputs& inputs, double measured) const {
  std::vector<float> harm = {static_cast<float>(std::fmin(1, measured))};
  const double expected = Expected(inputs, current_.low - 1);
  for (int below = 2; below <= kBinadesBelow && harm.back() < 1; ++below) {
    const double growth =
        expected > 0 ? Expected(inputs, current_.low - below) / expected : std::exp2(2 * below - 2);
    harm.push_back(static_cast<float>(std::fmin(1, measured * growth)));
  }
  return harm;
}

// Tells what bounds the window, if that is what channels lose.
void WindowSearch::EndByChannels(const StepInputs& inputs) {
  current_.harm_below.clear();
  for (int below = 1; below <= kBinadesBelow; ++below) {
    const int exponent = current_.low - below;
    const HarmOverTensors rows = ChannelHarmAt(inputs, Role::kGrad, exponent);
    const HarmOverTensors features = ChannelHarmAt(inputs, Role::kActGrad, exponent);
    const bool by_rows = rows.mean / kRowHarmThreshold > features.mean / kFeatureHarmThreshold;
    const HarmOverTensors& worse = by_rows ? rows : features;
    if (below == 1) current_.low_tensor = inputs.tensors[worse.worst_tensor].name;
    current_.harm_below.push_back(static_cast<float>(worse.mean));
  }
}

void WindowSearch::End(const StepInputs& inputs) {
  if (!current_.hopeless) {
    current_.low = EndsOf(Reading::kLikely).passes;
    current_.low_range = {EndsOf(Reading::kSmallest).passes, EndsOf(Reading::kLargest).passes};
    const auto below = known_.find(current_.low - 1);
    const bool whole_fails =
        below != known_.end() && !below->second.passes[IndexOf(Reading::kLikely)];
    current_.channels_decide =
        current_.low == channel_low_ && channel_low_ > kLowestWindowExponent && !whole_fails;
    if (current_.channels_decide) {
      EndByChannels(inputs);
    } else if (below != known_.end()) {
      current_.low_tensor = below->second.worst_tensor;
      current_.harm_below = HarmBelow(inputs, below->second.mean);
    }
    guess_ = current_.low;
  }
  windows_.push_back(std::move(current_));
}

}  // namespace dlsim::sim
