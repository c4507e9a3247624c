// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/advice_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/base/wrap.h"

namespace dlsim::sim {
namespace {

constexpr size_t kNamed = 3;  // tensors in a line

std::string WindowText(const ServedSteps::Range& window) {
  const bool low_open = window.low == kLowestWindowExponent;
  const bool high_open = window.high == kHighestWindowExponent;
  if (low_open && high_open) return "of any size";
  if (low_open) return "up to " + Power(window.high);
  if (high_open) return "from " + Power(window.low);
  return Power(window.low) + " to " + Power(window.high);
}

std::string StepsText(const FormatAdvice& format) {
  const size_t judged = format.steps - format.hopeless_steps;
  const size_t outside = format.steps_outside - format.hopeless_steps;
  if (outside > 0) return fmt::format("all but {} of {}", outside, Counted(judged, "step"));
  return judged == 1 ? "the one step" : fmt::format("all {} steps", judged);
}

// What is said of a format in a few words.
std::string Sentence(const FormatAdvice& format) {
  const size_t judged = format.steps - format.hopeless_steps;
  switch (format.verdict) {
    case FormatVerdict::kAsIs:
      return fmt::format("{} as is, without a loss scale (scales {} serve {})", format.format,
                         WindowText(*format.window), StepsText(format));
    case FormatVerdict::kWithScale:
      if (format.scale) {
        return fmt::format("{} with a loss scale of {} (scales {} serve {})", format.format,
                           Power(std::ilogb(*format.scale)), WindowText(*format.window),
                           StepsText(format));
      }
      return fmt::format("{} with a loss scale that moves (a fixed one serves {})", format.format,
                         StepsText(format));
    case FormatVerdict::kNoScaleServes:
      return fmt::format("{} at any scale: {} of {} {} too much at each that does not overflow",
                         format.format, format.empty_steps, Counted(judged, "step"),
                         format.empty_steps == 1 ? "loses" : "lose");
    case FormatVerdict::kOverflows:
      break;
  }
  return fmt::format("{} at any scale: only {} of {} {} finite as recorded", format.format, judged,
                     Counted(format.steps, "step"), judged == 1 ? "is" : "are");
}

bool Serves(const FormatAdvice& format) { return format.verdict <= FormatVerdict::kWithScale; }

std::string BestText(const Advice& advice) {
  const FormatAdvice& best = advice.formats[advice.best];
  std::string text = (Serves(best) ? "Use " : "No format serves. Not ") + Sentence(best) + ".";
  if (Serves(best) && best.hopeless_steps > 0) {
    text +=
        fmt::format(" {} {} not finite when recorded.", Counted(best.hopeless_steps, "more step"),
                    best.hopeless_steps == 1 ? "was" : "were");
  }
  return text;
}

std::string Others(const Advice& advice) {
  std::string serve, fail;
  for (size_t f = 0; f < advice.formats.size(); ++f) {
    if (f == advice.best) continue;
    std::string& text = Serves(advice.formats[f]) ? serve : fail;
    text += (text.empty() ? "" : "; ") + Sentence(advice.formats[f]);
  }
  if (serve.empty() && fail.empty()) return "No other format was asked about.";
  if (!serve.empty()) serve = "Or " + serve + ".";
  return serve + (serve.empty() || fail.empty() ? "" : " ") +
         (fail.empty() ? "" : "Not " + fail + ".");
}

std::string StepRange(int64_t first, int64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

std::string RiskText(const Advice& advice) {
  const FormatAdvice& best = advice.formats[advice.best];
  const std::string where =
      best.format + (best.scale ? " at " + Power(std::ilogb(*best.scale)) : std::string());
  std::string text;
  for (size_t i = 0; i < std::min(kNamed, best.at_risk.size()); ++i) {
    const TensorHarm& tensor = best.at_risk[i];
    text +=
        fmt::format("{}{} (up to {}, {})", i == 0 ? "" : ", ", Printable(tensor.name),
                    Percent(tensor.harm.worst), StepRange(*tensor.first_step, *tensor.last_step));
  }
  if (best.at_risk.size() > kNamed) {
    text += fmt::format(" and {} more", best.at_risk.size() - kNamed);
  }
  text = text.empty() ? fmt::format("No tensor loses more than {} of its own energy in {}.",
                                    Percent(kHarmAtRisk), where)
                      : fmt::format("At risk in {}: {}.", where, text);
  if (advice.parameters_only) {
    text += " Gradients of activations, which decide, were not recorded.";
  }
  return text;
}

std::string BoundText(const WindowBound& bound) {
  return bound.tensor.empty() ? "nothing"
                              : fmt::format("{} (step {})", Printable(bound.tensor), bound.step);
}

std::string FormatBounds(const FormatAdvice& format) {
  if (!format.window) return "";
  std::string text = fmt::format("  {}: below {} harm is too large first in {}", format.format,
                                 Power(format.window->low), BoundText(format.low));
  if (format.low_range) {
    text += fmt::format(" (from a profile: between {} and {})", Power(format.low_range->low),
                        Power(format.low_range->high));
  }
  return Wrap(text + fmt::format("; above {} overflows first {}", Power(format.window->high),
                                 BoundText(format.high)));
}

// How each policy's scale went beside the windows.
std::string FormatPaths(const Advice& advice) {
  if (advice.paths.empty()) return "";
  std::vector<TableRow> rows = {{"path", "inside", "below: harm", "above: overflow", "no window"}};
  for (const PathInWindows& path : advice.paths) {
    const std::string owner = path.config.empty() ? "" : path.config + " ";
    rows.push_back({owner + path.format + " " + path.policy, std::to_string(path.inside),
                    std::to_string(path.below), std::to_string(path.above),
                    std::to_string(path.unserved)});
  }
  constexpr std::string_view kDispensable[] = {"no window"};
  return FormatTable(rows, kDispensable);
}

}  // namespace

std::string Power(int exponent) { return ScaleText(std::ldexp(1.0, exponent)); }

std::vector<std::string> AdviceLines(const Advice& advice) {
  return {BestText(advice), Others(advice), RiskText(advice)};
}

std::string FormatAdviceLines(const Advice& advice) {
  std::string text;
  for (const std::string& line : advice.lines) text += Wrap(line);
  return text;
}

std::string FormatAdviceDetails(const Advice& advice, size_t top) {
  std::vector<TableRow> rows = {
      {"format", "verdict", "window", "scale", "steps outside", "mean harm", "at risk"}};
  for (const FormatAdvice& format : advice.formats) {
    rows.push_back({format.format, std::string(NameOf(format.verdict)),
                    format.window ? WindowText(*format.window) : "empty",
                    format.scale ? Power(std::ilogb(*format.scale)) : "-",
                    fmt::format("{}/{}", format.steps_outside, format.steps),
                    Percent(format.mean_harm), std::to_string(format.at_risk.size())});
  }
  std::string text = "\n" + FormatTable(rows);
  for (const FormatAdvice& format : advice.formats) text += FormatBounds(format);
  text += FormatPaths(advice);
  for (const FormatAdvice& format : advice.formats) {
    if (format.at_risk.empty() || top == 0) continue;
    std::vector<TableRow> tensors = {{format.format + ": at risk", "mean harm", "worst", "steps"}};
    for (size_t i = 0; i < std::min(top, format.at_risk.size()); ++i) {
      const TensorHarm& tensor = format.at_risk[i];
      tensors.push_back({Printable(tensor.name), Percent(tensor.harm.mean()),
                         Percent(tensor.harm.worst),
                         fmt::format("{}..{}", *tensor.first_step, *tensor.last_step)});
    }
    text += FormatTable(tensors);
  }
  const std::vector<std::string>& noise = advice.formats.front().noise_tensors;
  for (size_t i = 0; i < noise.size(); ++i) {
    text += (i == 0 ? "  not counted, rounding noise of float32: " : ", ") + Printable(noise[i]);
  }
  return text + (noise.empty() ? "" : "\n");
}

}  // namespace dlsim::sim
