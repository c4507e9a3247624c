// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <ranges>
#include <string_view>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/replay/layer_name.h"
#include "sim/scaled/scaled.h"

namespace dlsim::sim {
namespace {

// Returns what a tensor is of: a module, an operation, a parameter or a buffer.
std::string OwnerOf(const std::string& tensor) {
  std::string_view name = tensor;
  for (const std::string_view ending : {".act", ".fwd", ".value"}) {
    if (name.size() > ending.size() && name.ends_with(ending)) {
      name.remove_suffix(ending.size());
      break;
    }
  }
  constexpr std::string_view kCopy = "/to";  // what an operation of a module has in 16 bits
  if (name.ends_with(kCopy)) {
    name.remove_suffix(kCopy.size());
    return "an input of " + Printable(std::string(name));
  }
  return Printable(std::string(name));
}

std::string BinadesText(double binades) {
  const int digits = binades < 10 ? 2 : binades < 100 ? 3 : 4;
  return fmt::format("{:.{}g} {}", binades, digits, binades == 1 ? "binade" : "binades");
}

// The tensors that leave less than a binade, the largest first.
std::vector<std::string> NearOverflow(const FormatAdvice& format, const ForwardVerdict& verdict) {
  std::vector<std::string> texts;
  if (!verdict.headroom || *verdict.headroom >= kHeadroomAtRisk) return texts;
  std::vector<ForwardTensor> tensors = verdict.tensors;
  std::ranges::stable_sort(tensors, std::greater(), &ForwardTensor::absmax);
  const Conversion conversion = {ParseFormat(format.format).format};
  for (const ForwardTensor& tensor : tensors) {
    const double headroom = ForwardHeadroom(conversion, tensor.absmax);
    if (headroom >= kHeadroomAtRisk) break;
    texts.push_back(fmt::format("{} reaches {} at step {}, {} below overflow", OwnerOf(tensor.name),
                                ScaleNumber(tensor.absmax), tensor.absmax_step,
                                BinadesText(headroom)));
  }
  return texts;
}

// The outputs that lose much of themselves, the worst first.
std::vector<std::string> LostToUnderflow(const ForwardVerdict& verdict) {
  std::vector<ForwardTensor> tensors = verdict.tensors;
  std::erase_if(tensors, [](const ForwardTensor& tensor) {
    return tensor.energy_lost <= kForwardLossAtRisk;
  });
  std::ranges::stable_sort(tensors, std::greater(), &ForwardTensor::energy_lost);
  std::vector<std::string> texts;
  for (const ForwardTensor& tensor : tensors) {
    texts.push_back(fmt::format("{} loses {} to underflow at step {}", OwnerOf(tensor.name),
                                Percent(tensor.energy_lost), tensor.energy_lost_step));
  }
  return texts;
}

std::string OverflowTable(const FormatAdvice& format, size_t top) {
  std::vector<TableRow> rows = {
      {format.format + ": overflows in forward", "first step", "there", "largest", "a constant"}};
  size_t all = 0;
  for (const ForwardVerdict* verdict : {&format.forward, &format.values}) {
    for (const ForwardTensor* tensor : verdict->Overflowing()) {
      ++all;
      if (rows.size() > top) continue;
      rows.push_back({Printable(tensor->name), std::to_string(*tensor->overflow_step),
                      fmt::format("{:g}", tensor->overflow_absmax),
                      fmt::format("{:g}", tensor->absmax), tensor->constant ? "yes" : "no"});
    }
  }
  return rows.size() == 1 ? "" : FormatTable(rows) + MoreRows(rows.size() - 1, all);
}

void AddRow(const std::string& format, std::string_view what, const ForwardVerdict& verdict,
            std::vector<TableRow>& rows) {
  if (!verdict.headroom) return;
  const auto largest = std::ranges::max_element(verdict.tensors, {}, &ForwardTensor::absmax);
  const bool none = largest == verdict.tensors.end();
  rows.push_back({fmt::format("{} {}", format, what), std::string(NameOf(verdict.state)),
                  fmt::format("{:.2f}", *verdict.headroom), fmt::format("{:g}", verdict.absmax),
                  std::to_string(verdict.Overflowing().size()),
                  none ? "-" : Printable(largest->name)});
}

// Of a format in which outputs vanish, and nothing overflows.
std::string Vanished(const FormatAdvice& format) {
  const std::vector<const ForwardTensor*> vanishing = format.forward.Vanishing();
  const double smallest = MinPositive(ParseFormat(format.format).format);
  const ForwardTensor& worst = **std::ranges::max_element(
      vanishing, {}, [](const ForwardTensor* tensor) { return tensor->energy_lost; });
  return fmt::format(
      "fails in forward: {} loses {} to underflow at step {}, the smallest {} value is {:.2g}. No "
      "loss scale helps.",
      OwnerOf(worst.name), Percent(worst.energy_lost), worst.energy_lost_step, format.format,
      smallest);
}

// Where the first step breaks that was run in a format.
std::string Where(const Shadow& shadow, const std::string& format) {
  const double largest = MaxFinite(ParseFormat(format).format);
  if (shadow.culprits.empty()) return "the loss is not finite";
  const Shadow::Culprit& first = shadow.culprits.front();
  const bool of_loss = first.module == "(loss)";
  const std::string place =
      Printable(first.operation) + (of_loss ? " in the loss" : " in " + Printable(first.module));
  if (!shadow.error.empty()) return fmt::format("{} raises {}", place, Printable(shadow.error));
  const std::string limit =
      fmt::format(", the largest {} value is {}", format, ScaleNumber(largest));
  if (first.operands && *first.operands > largest) {
    return fmt::format("{} takes {:.6g}{}", place, *first.operands, limit);
  }
  if (first.result && *first.result > largest) {
    return fmt::format("{} reaches {:.6g}{}", place, *first.result, limit);
  }
  return place + " is not finite, as in float32 it is";
}

// Of a format that fails at steps that were run in it.
std::string ShadowText(const FormatAdvice& format) {
  const Shadow& shadow = *format.shadow;
  const std::string steps = fmt::format("{} that {} run in {}", Counted(shadow.steps, "step"),
                                        shadow.steps == 1 ? "was" : "were", format.format);
  if (shadow.FailsInBackward()) {
    return fmt::format(
        "fails in backward: at {} of {}, no loss scale keeps the gradients of {} "
        "finite.",
        shadow.bad, steps, shadow.modules.empty() ? "parameters" : FirstNames(shadow.modules));
  }
  if (shadow.fails == ShadowFailure::kNotFinite) {
    return fmt::format("fails in forward: {} ({} of {}). No loss scale helps.",
                       Where(shadow, format.format), shadow.bad, steps);
  }
  if (shadow.fails == ShadowFailure::kLoss) {
    return fmt::format("fails in forward: the mean loss of {} is off by {}. No loss scale helps.",
                       steps, Percent(shadow.loss.value_or(1)));
  }
  return fmt::format("fails in forward: in {}, mean gradients of rows are off by {}, most in {}.",
                     steps, Percent(shadow.gradients.value_or(1)), FirstNames(shadow.modules));
}

// What else is to be said of what was looked at: recorded values that do not count.
std::string ForwardExceptions(const Advice& advice) {
  const FormatAdvice& any = advice.formats.front();
  std::string text;
  const size_t kept = any.forward.kept_in_float32.size() + any.values.kept_in_float32.size();
  if (kept > 0) {
    text += fmt::format(" {} that autocast keeps in float32 {} not count.",
                        Counted(kept, "forward tensor"), kept == 1 ? "does" : "do");
  }
  // Of both verdicts, the tensors of which this is to be said.
  const auto say = [&](const std::string& what, const auto& counts) {
    std::vector<std::string> owners;
    for (const ForwardVerdict* verdict : {&any.forward, &any.values}) {
      for (const ForwardTensor& tensor : verdict->tensors) {
        if (counts(tensor)) owners.push_back(OwnerOf(tensor.name));
      }
    }
    if (!owners.empty()) text += what + FirstNames(owners) + ".";
  };
  say(" Values recorded as infinite, such as those of masks, do not count: ",
      [](const ForwardTensor& tensor) { return tensor.inf > 0; });
  say(" The constant of a mask, which is minus infinity in " + any.format + ", does not count: ",
      [](const ForwardTensor& tensor) { return tensor.hides_scores; });
  say(" The forward pass was recorded with NaN, which does not count, in ",
      [](const ForwardTensor& tensor) { return tensor.nan > 0; });
  return text;
}

// The forward tensors at risk in the first format that has any and does not fail; empty if none
// has.
std::string ForwardRisk(const Advice& advice) {
  for (const FormatAdvice& format : advice.formats) {
    if (format.verdict == Verdict::kFailsInForward) continue;
    std::vector<std::string> risks;
    for (const auto& found :
         {NearOverflow(format, format.forward), NearOverflow(format, format.values),
          LostToUnderflow(format.forward)}) {
      risks.insert(risks.end(), found.begin(), found.end());
    }
    if (!risks.empty()) {
      return fmt::format("At risk in {} in forward: {}.", format.format, FirstNames(risks));
    }
  }
  return "";
}

// The evidence: a table of the formats, and the `top` tensors that overflow in each; empty if no
// forward tensor was recorded.
std::string FormatForwardDetails(const Advice& advice, size_t top) {
  std::vector<TableRow> rows = {
      {"format", "forward", "head-room", "largest", "overflow", "tensor"}};
  for (const FormatAdvice& format : advice.formats) {
    AddRow(format.format, "outputs", format.forward, rows);
    AddRow(format.format, "stored values", format.values, rows);
  }
  if (rows.size() == 1) return "";
  std::string text = FormatTable(rows);
  for (const FormatAdvice& format : advice.formats) text += OverflowTable(format, top);
  return text;
}

std::string WindowText(const SafeScales& window) {
  const bool low_open = window.low == kLowestWindowExponent;
  const bool high_open = window.high == kHighestWindowExponent;
  if (low_open && high_open) return "any";
  if (window.low == window.high) return Power(window.low);
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

bool SawForward(const FormatAdvice& format) {
  return format.forward.state != ForwardState::kNotRecorded;
}

bool JudgedForward(const FormatAdvice& format) { return SawForward(format) || format.shadow; }

std::string SentenceOnScales(const FormatAdvice& format) {
  if (!format.scale) {
    return "with dynamic loss scaling: each fixed scale fails at " +
           std::to_string(format.steps_outside - format.hopeless_steps) + " or more of " +
           Counted(format.steps - format.hopeless_steps, "step") + ".";
  }
  if (format.verdict == Verdict::kAsIs && HasRangeOfFloat32(ParseFormat(format.format).format)) {
    const bool all = format.steps_outside == format.hopeless_steps;
    return all && JudgedForward(format) ? "without loss scaling."
                                        : "without loss scaling (" + StepsText(format) + ").";
  }
  return "";
}

// Of a recording without gradients.
std::string ForwardFit(const FormatAdvice& format) {
  const double room =
      std::min(*format.forward.headroom, format.values.headroom.value_or(*format.forward.headroom));
  if (std::isinf(room)) return "fits in forward: all values are 0.";
  return fmt::format("fits in forward, with {} of head-room.", BinadesText(room));
}

// What is said of a format.
std::string Sentence(const FormatAdvice& format) {
  const size_t judged = format.steps - format.hopeless_steps;
  if (format.verdict == Verdict::kFailsInForward) return ForwardFailure(format);
  if (format.verdict == Verdict::kFitsInForward) return ForwardFit(format);
  if (format.verdict == Verdict::kOverflows) {
    const size_t usable = judged - format.zero_steps;
    const std::string who =
        usable == 0 ? "no step has"
                    : fmt::format("only {} of {} {}", usable, Counted(format.steps, "step"),
                                  usable == 1 ? "has" : "have");
    return fmt::format("cannot be judged: {} gradients {}that are finite{}.", who,
                       format.idle_steps > 0 ? "of parameters " : "",
                       format.zero_steps > 0 ? " and not all zero" : "");
  }
  if (format.verdict == Verdict::kNoScaleIsSafe && format.empty_steps == 0) {
    return ShadowText(format);
  }
  if (format.verdict == Verdict::kNoScaleIsSafe) {
    return fmt::format(
        "fails in backward: at {} of {} every loss scale overflows or loses too much.",
        format.empty_steps, Counted(judged, "step"));
  }
  const std::string scaling = SentenceOnScales(format);
  const std::string trains = JudgedForward(format) ? "trains" : "trains as far as gradients show";
  if (!scaling.empty()) return trains + (JudgedForward(format) ? " " : ", ") + scaling;
  return fmt::format("{}. Safe loss scales: {} ({}).", trains, WindowText(*format.window),
                     StepsText(format));
}

std::string ListOf(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + Printable(names[i]);
  }
  return text;
}

// What to keep in float32, by name if it is little.
std::string PartsText(const Change& change) {
  constexpr size_t kMostParts = 6;
  std::string text;
  if (change.keep_float32.size() > kMostParts) {
    text = Counted(change.keep_float32.size(), "part") + " of the model";
  } else {
    std::vector<std::string> parts;
    for (size_t i = 0; i < change.keep_float32.size(); ++i) {
      const bool operation = change.keep_float32[i].find('/') != std::string::npos;
      const bool known = operation && !change.sources[i].empty();
      parts.push_back(change.keep_float32[i] + (known ? " (" + change.sources[i] + ")" : ""));
    }
    text = ListOf(parts);
  }
  if (change.loss_in_float32) text += (text.empty() ? "" : " and ") + std::string("the loss");
  return text;
}

std::string ThenText(const Change& change) {
  if (change.then == Verdict::kFitsInForward) return "fits in forward";
  if (!change.window) return "trains with dynamic loss scaling";
  if (change.then == Verdict::kAsIs && change.window->low == kLowestWindowExponent) {
    return "trains without loss scaling";
  }
  return "trains. Safe loss scales: " + WindowText(*change.window);
}

// What to change where a format fails; empty lines are left out.
std::vector<std::string> ChangeLines(const FormatAdvice& format) {
  if (!Fails(format)) return {};
  if (format.change) {
    const Change& change = *format.change;
    std::string code;
    for (const std::string& name : change.keep_float32) {
      code += (code.empty() ? "" : ", ") + Quoted(name);
    }
    const std::string share =
        !change.share ? ""
                      : fmt::format(", {} of the multiplications",
                                    *change.share == 0 ? "none" : Percent(*change.share));
    std::vector<std::string> lines = {
        fmt::format("  Keep {} in float32{}: then {} {} (checked at {}).{}", PartsText(change),
                    share, format.format, ThenText(change), Counted(change.steps, "step"),
                    format.instead.empty() ? "" : " Or " + format.instead + ".")};
    if (!code.empty()) lines.push_back("    dlsim.keep_float32(model, [" + code + "])");
    if (change.loss_in_float32) {
      lines.push_back(
          "    with torch.autocast(device, enabled=False): loss = loss_of(output.float(), ...)");
    }
    return lines;
  }
  std::string text = format.shadow ? "No part of the model was found that helps if it stays in "
                                     "float32, short of all of it."
                                   : "";
  if (!format.instead.empty())
    text += (text.empty() ? "Instead, " : " Instead, ") + format.instead + ".";
  if (text.empty()) return {};
  return {"  " + text};
}

// The roles of which gradients were recorded.
std::string GradientsText(const Advice& advice) {
  const auto has = [&](Role role) { return std::ranges::count(advice.looked_at, role) > 0; };
  if (has(Role::kGrad) && has(Role::kActGrad)) return "gradients of parameters and activations";
  if (has(Role::kActGrad)) return "gradients of activations";
  return has(Role::kGrad) ? "gradients of parameters" : "";
}

// Which steps were run in formats.
std::string RunInFormatsText(const Advice& advice) {
  std::vector<std::string> names;
  size_t steps = 0;
  bool whole = true;
  for (const FormatAdvice& format : advice.formats) {
    if (!format.shadow) continue;
    names.push_back(format.format);
    steps = std::max(steps, format.shadow->steps);
    whole = whole && (format.shadow->loss || format.shadow->bad > 0);
  }
  if (names.empty()) {
    return advice.not_run.empty() ? ""
                                  : fmt::format(" No step could be run in the formats: {}.",
                                                Printable(advice.not_run));
  }
  std::string text = fmt::format(
      " {} {} run again in {}{}.", Counted(steps, "step"), steps == 1 ? "was" : "were",
      ListOf(names),
      whole || !advice.gradients ? "" : ", without the loss, which could not be followed");
  for (const FormatAdvice& format : advice.formats) {
    if (!format.window || !format.shadow || format.shadow->ceilings.empty()) continue;
    const Shadow::Ceiling& ceiling = format.shadow->ceilings.front();
    text += fmt::format(
        " In {}, gradients within {} overflow above {} at step {}, which no recorded gradient "
        "shows: "
        "the safe scales leave room for them, but replays do not skip.",
        format.format, Printable(ceiling.module), Power(std::ilogb(ceiling.scale)), ceiling.step);
  }
  return text;
}

std::string BasisText(const Advice& advice) {
  const FormatAdvice& first = advice.formats.front();
  const bool run = std::ranges::any_of(
      advice.formats, [](const FormatAdvice& format) { return format.shadow.has_value(); });
  if (run && !SawForward(first)) {
    return fmt::format("Based on {}.{}", GradientsText(advice), RunInFormatsText(advice));
  }
  if (!SawForward(first)) {
    return fmt::format(
               "Based on gradients{} only: the forward pass was not recorded, and most fp16 "
               "failures "
               "happen there.",
               first.values.steps > 0 ? " and parameters" : "") +
           RunInFormatsText(advice);
  }
  const std::string gradients = GradientsText(advice);
  return fmt::format("Based on {}{}the forward pass of {} of {}{}.", gradients,
                     gradients.empty() ? "" : " and on ", first.forward.steps,
                     Counted(first.steps, "step"),
                     advice.gradients ? "" : " only: no gradients were recorded") +
         RunInFormatsText(advice) + ForwardExceptions(advice);
}

// What the recorded run was that the figures do not show.
std::string RunText(const Advice& advice) {
  std::string text;
  const size_t steps = advice.formats.front().steps;
  const auto add_type = [&](size_t computed, std::string_view type, std::string_view lost) {
    if (computed == 0) return;
    text += fmt::format(
        " The recorded run computed in {}{}: {} there is not seen; record in "
        "float32.",
        type, computed < steps ? " at " + Counted(computed, "step") : "", lost);
  };
  add_type(advice.computed_in.float16, "float16", "what became zero or infinite");
  add_type(advice.computed_in.bfloat16, "bfloat16", "what was rounded away");
  if (const RefusedSteps& refused = advice.refused; refused.steps > 0) {
    // A message says what is wrong, then what was expected.
    const std::string why = refused.first.substr(0, refused.first.find(", expected "));
    text += fmt::format(" {} of {} {} refused{}{}.", refused.steps,
                        Counted(steps + refused.steps, "step"), refused.steps == 1 ? "was" : "were",
                        why.empty() ? "" : ": ", Printable(why));
  }
  return text;
}

std::string LookedAtText(const Advice& advice) {
  std::string text = BasisText(advice);
  if (advice.parameters_only) {
    text += advice.tensors == "*"
                ? fmt::format(
                      " Gradients of activations were not recorded{}: they usually "
                      "underflow first.",
                      SawForward(advice.formats.front()) ? "" : " either")
                : " Gradients of activations, which usually underflow first, were left out by "
                  "--tensors or not recorded.";
  } else if (advice.tensors != "*") {
    text += " Tensors that do not match --tensors were left out.";
  }
  if (!advice.float32.empty()) {
    text += " Judged as if " + ListOf(advice.float32) + " stayed in float32.";
  }
  text += RunText(advice);
  if (const BrokenLosses& broken = advice.broken_losses; broken.steps > 0) {
    text += fmt::format(
        " The recorded loss is NaN or infinite at {} ({}step {}): the recorded run failed there.",
        Counted(broken.steps, "step"), broken.steps == 1 ? "" : "first at ", broken.first_step);
  }
  const auto add_silent = [&](size_t steps, std::string_view one, std::string_view many) {
    if (steps == 0) return;
    text += fmt::format(" {} {} nothing about a format.", Counted(steps, "step"),
                        steps == 1 ? one : many);
  };
  const FormatAdvice& first = advice.formats.front();
  add_silent(first.hopeless_steps, "is not finite as recorded and says",
             "are not finite as recorded and say");
  add_silent(first.zero_steps - first.idle_steps, "holds nothing but zeros and says",
             "hold nothing but zeros and say");
  add_silent(first.idle_steps, "leaves all gradients of parameters zero and says",
             "leave all gradients of parameters zero and say");
  return text;
}

std::string StepRange(int64_t first, int64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

// Of the first format that has gradients at risk; empty if none has.
std::string GradientRisk(const Advice& advice) {
  const auto found = std::ranges::find_if(advice.formats, [](const FormatAdvice& format) {
    return format.scale && !format.at_risk.empty() && format.verdict != Verdict::kFailsInForward;
  });
  if (found == advice.formats.end()) return "";
  std::vector<std::string> risks;
  for (const TensorHarm& tensor :
       std::span(found->at_risk).first(std::min<size_t>(3, found->at_risk.size()))) {
    risks.push_back(fmt::format("{} loses up to {}{} ({})", Printable(tensor.tensor->name),
                                Percent(tensor.larger().worst),
                                tensor.ChannelsLoseMore() ? " averaged over its channels" : "",
                                StepRange(tensor.first_step, tensor.last_step)));
  }
  return fmt::format("At risk in {} at scale {}: {}.", found->format,
                     Power(std::ilogb(*found->scale)), FirstNames(risks, found->at_risk.size()));
}

std::string LowText(const FormatAdvice& format) {
  if (format.low.tensor.empty()) return "no scale tried is too low";
  return fmt::format(
      "below {}, {}{} (step {})", Power(format.window->low), Printable(format.low.tensor),
      format.low.channels_decide ? ": channels lose too much" : " loses too much", format.low.step);
}

std::string HighText(const FormatAdvice& format) {
  if (format.high.tensor.empty()) return "nothing overflows at any scale tried";
  return fmt::format("above {}, {} overflows (step {})", Power(format.window->high),
                     Printable(format.high.tensor), format.high.step);
}

}  // namespace

std::string ForwardFailure(const FormatAdvice& format) {
  if (format.shadow) return ShadowText(format);
  const std::vector<const ForwardTensor*> outputs = format.forward.Overflowing();
  const std::vector<const ForwardTensor*> values = format.values.Overflowing();
  if (outputs.empty() && values.empty()) return Vanished(format);
  const bool stored = outputs.empty() || (!values.empty() && *values.front()->overflow_step <
                                                                 *outputs.front()->overflow_step);
  const ForwardTensor& first = *(stored ? values : outputs).front();
  const double largest = MaxFinite(ParseFormat(format.format).format);
  const std::string what = first.constant
                               ? fmt::format("holds the constant {:g}", -first.overflow_absmax)
                               : "reaches " + ScaleNumber(first.overflow_absmax);
  return fmt::format(
      "fails in forward: {}{} {} at step {}, the largest {} value is {}. No loss scale helps.",
      stored ? "the stored value of " : "", OwnerOf(first.name), what, *first.overflow_step,
      format.format, ScaleNumber(largest));
}

std::string Power(int exponent) { return ScaleText(std::ldexp(1.0, exponent)); }

std::string LineOn(const FormatAdvice& format, size_t width) {
  std::string text = fmt::format("{:<{}}  {}", format.format, width, Sentence(format));
  for (const std::string& line : ChangeLines(format)) text += "\n" + line;
  return text;
}

std::vector<std::string> AdviceLines(const Advice& advice) {
  size_t width = 0;
  for (const FormatAdvice& format : advice.formats) width = std::max(width, format.format.size());
  for (const ScaledAdvice& format : advice.scaled) width = std::max(width, format.format.size());
  std::vector<std::string> lines;
  for (const FormatAdvice& format : advice.formats) {
    lines.push_back(LineOn(format, width));
  }
  for (const ScaledAdvice& format : advice.scaled) {
    lines.push_back(fmt::format("{:<{}}  {}", format.format, width, ScaledSentence(format)));
  }
  if (advice.formats.empty()) {
    if (!advice.scaled.empty()) lines.push_back(ScaledBasis(advice.scaled.front()));
    return lines;
  }
  lines.push_back(LookedAtText(advice));
  std::string risk = ForwardRisk(advice);
  const std::string of_gradients = GradientRisk(advice);
  risk += (risk.empty() || of_gradients.empty() ? "" : " ") + of_gradients;
  if (!risk.empty()) lines.push_back(risk);
  return lines;
}

std::string FormatAdviceLines(const Advice& advice) {
  std::string text;
  for (const std::string& of_format : AdviceLines(advice)) {
    for (const auto line : std::views::split(of_format, '\n')) {
      text += Wrap(std::string(line.begin(), line.end()));
    }
  }
  return text;
}

std::string FormatPaths(const Advice& advice) {
  if (advice.paths.empty()) return "";
  std::vector<TableRow> rows = {{"steps by scale", "safe", "too low", "too high", "none is safe"}};
  for (const PathInWindows& path : advice.paths) {
    const std::string owner = path.config.empty() ? "" : path.config + " ";
    rows.push_back({owner + path.format + " " + path.policy, std::to_string(path.inside),
                    std::to_string(path.below), std::to_string(path.above),
                    std::to_string(path.none_safe)});
  }
  constexpr std::string_view kDispensable[] = {"none is safe"};
  return FormatTable(rows, kDispensable);
}

std::string FormatAdviceDetails(const Advice& advice, size_t top) {
  const std::string scaled = FormatScaledDetails(advice.scaled, top);
  if (advice.formats.empty()) return "\n" + scaled;
  if (!advice.gradients) return "\n" + scaled + FormatForwardDetails(advice, top);
  std::vector<TableRow> rows = {
      {"format", "safe scales", "judged at", "steps not covered", "mean harm", "at risk"}};
  for (const FormatAdvice& format : advice.formats) {
    rows.push_back({format.format, format.window ? WindowText(*format.window) : "none",
                    format.scale ? Power(std::ilogb(*format.scale)) : "-",
                    fmt::format("{}/{}", format.steps_outside, format.steps),
                    Percent(format.mean_harm), std::to_string(format.at_risk.size())});
  }
  std::string text = "\n" + FormatTable(rows);
  for (const FormatAdvice& format : advice.formats) {
    if (!format.window) continue;
    text += Wrap("  " + format.format + ": " + LowText(format) + "; " + HighText(format));
  }
  text += scaled + FormatForwardDetails(advice, top);
  text += FormatPaths(advice);
  for (const FormatAdvice& format : advice.formats) {
    if (format.at_risk.empty() || top == 0) continue;
    std::vector<TableRow> tensors = {{format.format + ": at risk", "mean harm", "worst", "steps"}};
    for (size_t i = 0; i < std::min(top, format.at_risk.size()); ++i) {
      const TensorHarm& tensor = format.at_risk[i];
      tensors.push_back({Printable(tensor.tensor->name), Percent(tensor.larger().mean()),
                         Percent(tensor.larger().worst),
                         fmt::format("{}..{}", tensor.first_step, tensor.last_step)});
    }
    text += FormatTable(tensors) + MoreRows(tensors.size() - 1, format.at_risk.size());
  }
  std::string noise;
  for (const std::string& name : advice.formats.front().noise_tensors) {
    noise +=
        (noise.empty() ? "  ignored, as rounding noise of float32 or too small for SGD: " : ", ") +
        Printable(name);
  }
  return text + (noise.empty() ? "" : Wrap(noise));
}

namespace {

// Of a window that is open below, as that of bfloat16, no more is drawn.
constexpr int kMostBinades = 48;

// Signs of the plot; paths have letters.
constexpr char kSafe = '.', kPartlySafe = ':', kSeveralSafe = '*', kSeveralUnsafe = '#';

struct Range {
  int low = kHighestWindowExponent, high = kLowestWindowExponent;
  void Include(int exponent) {
    low = std::min(low, exponent);
    high = std::max(high, exponent);
  }
};

int ExponentOf(double scale) {
  if (!(scale > 0)) return kLowestWindowExponent;
  const double exponent = std::floor(std::log2(scale));
  return static_cast<int>(
      std::clamp<double>(exponent, kLowestWindowExponent, kHighestWindowExponent));
}

// The exponents that the plot shows: all paths, and windows as far as they are not open.
Range ShownRange(std::span<const StepWindow> windows, std::span<const PlottedPath> paths) {
  Range shown;
  for (const StepWindow& window : windows) {
    if (window.empty()) continue;
    shown.Include(window.high);
    shown.Include(std::max(window.low, window.high - kMostBinades));
  }
  for (const PlottedPath& path : paths) {
    for (const ReplayStep& step : path.steps) shown.Include(ExponentOf(step.scale));
  }
  return shown;
}

// The exponents of a row of the plot.
struct PlotRow {
  int low, high;
  std::string cells;
};

// Of two steps in a cell, what holds for both.
char Both(char a, char b) { return a == b ? a : a == ' ' || b == ' ' ? ' ' : kPartlySafe; }

// A cell is in upper case while all steps of the paths in it are at safe scales.
char Add(char cell, char letter, bool safe) {
  const char upper = static_cast<char>(std::toupper(letter));
  const bool free = cell == ' ' || cell == kSafe || cell == kPartlySafe;
  if (free) return safe ? upper : letter;
  if (cell == letter || cell == upper) return safe ? cell : letter;
  return safe && cell != kSeveralUnsafe && std::islower(cell) == 0 ? kSeveralSafe : kSeveralUnsafe;
}

void DrawPath(std::span<const ReplayStep> steps, char letter, std::span<const StepWindow> windows,
              std::vector<PlotRow>& rows) {
  const int row_size = rows.front().high - rows.front().low + 1;
  for (size_t i = 0; i < std::min(steps.size(), windows.size()); ++i) {
    PlotRow& row =
        rows[static_cast<size_t>((rows.front().high - ExponentOf(steps[i].scale)) / row_size)];
    char& cell = row.cells[i * row.cells.size() / windows.size()];
    cell = Add(cell, letter, PlaceOf(steps[i], windows[i]) == PathPlace::kInside);
  }
}

bool IsBlank(const PlotRow& row) { return row.cells.find_first_not_of(' ') == std::string::npos; }

std::string LabelOf(const PlotRow& row) {
  return row.low == row.high ? Power(row.low) : Power(row.low) + ".." + Power(row.high);
}

// Rows with nothing in them are left out; a gap between others is one line of dots.
std::string TextOf(std::span<const PlotRow> rows, size_t label_width) {
  std::string plot;
  bool gap = false;
  for (const PlotRow& row : rows) {
    if (IsBlank(row)) {
      gap = !plot.empty();
      continue;
    }
    if (gap) plot += fmt::format("  {:<{}} |\n", "...", label_width);
    gap = false;
    const std::string cells = row.cells.substr(0, row.cells.find_last_not_of(' ') + 1);
    plot += fmt::format("  {:<{}} |{}\n", LabelOf(row), label_width, cells);
  }
  return plot;
}

// Explains every sign that the plot has.
std::string Legend(const std::string& plot, std::span<const PlottedPath> paths, size_t all_paths) {
  const auto has = [&](char sign) { return plot.find(sign) != std::string::npos; };
  std::string text = "  . safe";
  if (has(kPartlySafe)) text += "  : safe for some of the scales or steps";
  if (!paths.empty()) text += "  lower case: the policy's scale is not safe";
  for (size_t p = 0; p < paths.size(); ++p) {
    const char letter = static_cast<char>('a' + p);
    text +=
        fmt::format("  {}/{} {}", static_cast<char>(std::toupper(letter)), letter, paths[p].name);
  }
  if (has(kSeveralSafe)) text += "  * several, all safe";
  if (has(kSeveralUnsafe)) text += "  # several, not all safe";
  if (paths.size() < all_paths) {
    text += fmt::format("  ({} of {} policies shown)", paths.size(), all_paths);
  }
  return text;
}

}  // namespace

std::string PlotWindows(std::span<const StepWindow> windows, std::span<const PlottedPath> paths,
                        size_t all_paths, size_t width, size_t height) {
  if (windows.empty()) return {};
  const Range shown = ShownRange(windows, paths);
  if (shown.low > shown.high) return {};
  const size_t columns = std::min(width, windows.size());
  // Rows from the top, each of the same number of exponents.
  const int binades = shown.high - shown.low + 1, most_rows = static_cast<int>(height);
  const int row_size = (binades + most_rows - 1) / most_rows;
  std::vector<PlotRow> rows;
  for (int high = shown.high; high >= shown.low; high -= row_size) {
    PlotRow& row =
        rows.emplace_back(PlotRow{high - row_size + 1, high, std::string(columns, kSafe)});
    for (size_t i = 0; i < windows.size(); ++i) {
      const StepWindow& window = windows[i];
      const bool all = window.Has(row.low) && window.Has(row.high);
      const bool some = !window.empty() && window.low <= row.high && window.high >= row.low;
      char& cell = row.cells[i * columns / windows.size()];
      cell = Both(cell, all ? kSafe : some ? kPartlySafe : ' ');
    }
  }
  for (size_t p = 0; p < paths.size(); ++p) {
    DrawPath(paths[p].steps, static_cast<char>('a' + p), windows, rows);
  }
  size_t label_width = 3;
  for (const PlotRow& row : rows) {
    if (!IsBlank(row)) label_width = std::max(label_width, LabelOf(row).size());
  }
  const std::string plot = TextOf(rows, label_width);
  std::string cells;
  for (const PlotRow& row : rows) cells += row.cells;
  const std::string first = fmt::format("step {}", windows.front().step);
  const std::string last = std::to_string(windows.back().step);
  const size_t gap = std::max<size_t>(columns, first.size() + last.size() + 1);
  return plot +
         fmt::format("{:{}}{}{:>{}}\n", "", label_width + 4, first, last, gap - first.size()) +
         Wrap(Legend(cells, paths, all_paths));
}

}  // namespace dlsim::sim
