// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/forward_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string_view>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

constexpr size_t kForwardNamed = 3;  // tensors in a sentence

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

// Up to three names, and how many more.
std::string ListedNames(const std::vector<std::string>& names) {
  const auto named = std::min(kForwardNamed, names.size());
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + named, ", "));
  if (names.size() > kForwardNamed)
    text += fmt::format(" and {} more", names.size() - kForwardNamed);
  return text;
}

// Of both verdicts of a format, the tensors that hold what `counts` does.
std::vector<std::string> OwnersOf(const FormatAdvice& format,
                                  const std::function<bool(const ForwardTensor&)>& counts) {
  std::vector<std::string> owners;
  for (const ForwardVerdict* verdict : {&format.forward, &format.values}) {
    for (const ForwardTensor& tensor : verdict->tensors) {
      if (counts(tensor)) owners.push_back(OwnerOf(tensor.name));
    }
  }
  return owners;
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

// What overflows and changes nothing.
std::vector<std::string> Harmless(const ForwardVerdict& verdict) {
  std::vector<std::string> texts;
  for (const ForwardTensor& tensor : verdict.tensors) {
    if (tensor.harmless_absmax == 0) continue;
    texts.push_back(fmt::format("{} reaches {}, whose overflow changes nothing",
                                OwnerOf(tensor.name), ScaleNumber(tensor.harmless_absmax)));
  }
  return texts;
}

std::vector<std::string> RisksOf(const FormatAdvice& format) {
  std::vector<std::string> risks;
  if (format.verdict == Verdict::kFailsInForward) return risks;
  for (const auto& found :
       {NearOverflow(format, format.forward), NearOverflow(format, format.values),
        LostToUnderflow(format.forward), Harmless(format.forward)}) {
    risks.insert(risks.end(), found.begin(), found.end());
  }
  return risks;
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

// Of a format in which outputs vanish, or the loss grows, and nothing overflows.
std::string Vanished(const FormatAdvice& format) {
  const std::vector<const ForwardTensor*> vanishing = format.forward.Vanishing();
  const double smallest = MinPositive(ParseFormat(format.format).format);
  // The first that vanishes and is `of_kind`; null if none is.
  const auto first = [&](const auto& of_kind) -> const ForwardTensor* {
    const auto found = std::ranges::find_if(
        vanishing, [&](const ForwardTensor* tensor) { return of_kind(*tensor); });
    return found == vanishing.end() ? nullptr : *found;
  };
  const auto named = [&](bool (*is_of_kind)(std::string_view)) {
    return first([&](const ForwardTensor& tensor) { return is_of_kind(tensor.name); });
  };
  if (const auto* divisor = first([](const ForwardTensor& one) { return one.zero_divisor; })) {
    return fmt::format(
        "fails in forward: {} divides by values, or takes the logarithm of some, that become zero "
        "at step {}, the smallest {} value is {:.2g}. No loss scale helps.",
        Printable(LayerOf(divisor->name)), divisor->energy_lost_step, format.format, smallest);
  }
  if (const auto* difference = named(IsOfDifferences)) {
    return fmt::format(
        "fails in forward: {} divides by a difference, or takes its root or logarithm, that is "
        "less than the rounding errors of {}. No loss scale helps.",
        Printable(LayerOf(difference->name)), format.format);
  }
  if (const auto* samples = named(IsOfSamples)) {
    return fmt::format(
        "fails in forward: the samples of an input of {} differ by less than the rounding errors "
        "of {}. No loss scale helps.",
        Printable(LayerOf(samples->name)), format.format);
  }
  if (const auto* angles = named(IsOfAngles)) {
    return fmt::format(
        "fails in forward: {} turns by angles up to {}, which {} rounds to others. No loss scale "
        "helps.",
        Printable(LayerOf(angles->name)), ScaleNumber(angles->absmax), format.format);
  }
  if (const auto& loss = format.forward.loss_growth; loss && loss->Fails()) {
    return fmt::format(
        "fails in forward: the loss is {:.2g} times as large at step {} if inputs and outputs are "
        "rounded to {}. No loss scale helps.",
        1 + loss->share, loss->step, format.format);
  }
  const ForwardTensor& worst = **std::ranges::max_element(
      vanishing, {}, [](const ForwardTensor* tensor) { return tensor->energy_lost; });
  return fmt::format(
      "fails in forward: {} loses {} to underflow at step {}, the smallest {} value is {:.2g}. No "
      "loss scale helps.",
      OwnerOf(worst.name), Percent(worst.energy_lost), worst.energy_lost_step, format.format,
      smallest);
}

// Of a constant that PyTorch does not convert.
std::string Refused(const FormatAdvice& format, const ForwardTensor& tensor) {
  return fmt::format(
      "fails in forward: {} in {} gets {:g} at step {}, which PyTorch refuses to make {} "
      "(RuntimeError): use torch.finfo(dtype).{}. No loss scale helps.",
      RefusingOperation(tensor.name), Printable(LayerOf(tensor.name)),
      tensor.constant ? -tensor.overflow_absmax : tensor.overflow_absmax, *tensor.overflow_step,
      format.format, tensor.constant ? "min" : "max");
}

}  // namespace

std::string ForwardFit(const FormatAdvice& format) {
  const double room =
      std::min(*format.forward.headroom, format.values.headroom.value_or(*format.forward.headroom));
  if (std::isinf(room)) return "fits in forward: all values are 0.";
  return fmt::format("fits in forward, with {} of head-room.", BinadesText(room));
}

std::string ForwardFailure(const FormatAdvice& format) {
  const std::vector<const ForwardTensor*> outputs = format.forward.Overflowing();
  const std::vector<const ForwardTensor*> values = format.values.Overflowing();
  if (outputs.empty() && values.empty()) return Vanished(format);
  const bool stored = outputs.empty() || (!values.empty() && *values.front()->overflow_step <
                                                                 *outputs.front()->overflow_step);
  const ForwardTensor& first = *(stored ? values : outputs).front();
  const auto refused = std::ranges::find_if(outputs, [&](const ForwardTensor* tensor) {
    return *tensor->overflow_step == *first.overflow_step &&
           !RefusingOperation(tensor->name).empty();
  });
  if (refused != outputs.end()) return Refused(format, **refused);
  if (IsOfMaskedRows(first.name)) {
    return fmt::format(
        "fails in forward: softmax in {} gets rows of nothing but {:g} at step {}, which is minus "
        "infinity in {} and gives NaN. No loss scale helps.",
        Printable(LayerOf(first.name)), -first.overflow_absmax, *first.overflow_step,
        format.format);
  }
  const double largest = MaxFinite(ParseFormat(format.format).format);
  const std::string what = first.constant
                               ? fmt::format("holds the constant {:g}", -first.overflow_absmax)
                               : "reaches " + ScaleNumber(first.overflow_absmax);
  return fmt::format(
      "fails in forward: {}{} {} at step {}, the largest {} value is {}. No loss scale helps.",
      stored ? "the stored value of " : "", OwnerOf(first.name), what, *first.overflow_step,
      format.format, ScaleNumber(largest));
}

std::string ForwardExceptions(const Advice& advice) {
  const FormatAdvice& any = advice.formats.front();
  std::string text;
  const size_t kept = any.forward.kept_in_float32.size() + any.values.kept_in_float32.size();
  if (kept > 0) {
    text += fmt::format(" {} that autocast keeps in float32 {} not count.",
                        Counted(kept, "forward tensor"), kept == 1 ? "does" : "do");
  }
  const std::vector<std::string> infinite =
      OwnersOf(any, [](const ForwardTensor& tensor) { return tensor.inf > 0; });
  if (!infinite.empty()) {
    text += " Values recorded as infinite, such as those of masks, do not count: " +
            ListedNames(infinite) + ".";
  }
  const std::vector<std::string> hidden =
      OwnersOf(any, [](const ForwardTensor& tensor) { return tensor.hides_scores; });
  if (!hidden.empty()) {
    text +=
        fmt::format(" The constant of a mask, which is minus infinity in {}, does not count: {}.",
                    any.format, ListedNames(hidden));
  }
  const std::vector<std::string> nan =
      OwnersOf(any, [](const ForwardTensor& tensor) { return tensor.nan > 0; });
  if (!nan.empty()) {
    text += " The forward pass was recorded with NaN, which does not count, in " +
            ListedNames(nan) + ".";
  }
  return text;
}

std::string ForwardRisk(const Advice& advice) {
  for (const FormatAdvice& format : advice.formats) {
    const std::vector<std::string> risks = RisksOf(format);
    if (!risks.empty()) {
      return fmt::format("At risk in {} in forward: {}.", format.format, ListedNames(risks));
    }
  }
  return "";
}

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

}  // namespace dlsim::sim
