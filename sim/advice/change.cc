// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/change.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "dlsim/error.h"
#include "sim/advice/advice.h"
#include "sim/advice/advice_text.h"
#include "sim/advice/forward_tally.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

// Passes over the gradients that a search may take in each direction.
constexpr int kMostPasses = 6;

// What is left of a model of which more is kept trains no faster than in float32.
constexpr double kMostKept = 0.98;

std::string ModuleOf(const std::string& tensor) { return WithoutCall(LayerOf(tensor)); }

// The forward tensors that 16 bits cannot hold, or hardly: what overflows or leaves less than a
// binade, for the next batch may go beyond; what vanishes.
std::vector<std::string> CulpritsIn(const FormatAdvice& format) {
  const Conversion conversion = {ParseFormat(format.format).format};
  std::vector<std::string> culprits;
  for (const ForwardVerdict* verdict : {&format.forward, &format.values}) {
    for (const ForwardTensor& tensor : verdict->tensors) {
      const bool overflows = tensor.overflow_step.has_value() ||
                             ForwardHeadroom(conversion, tensor.absmax) < kHeadroomAtRisk;
      if (overflows || tensor.Vanishes()) culprits.push_back(tensor.name);
    }
  }
  return culprits;
}

// Searches what to keep for one format.
class Search {
 public:
  Search(const StepSource& source, const ForwardGraph& graph, const AdviceRequest& request,
         const ReplayOptions& options, const FormatAdvice& format)
      : source_(source), graph_(graph), request_(request), options_(options), format_(format) {
    request_.formats = {format.format};
    options_.observer = nullptr;
  }

  std::optional<Change> Run() {
    because_ = CulpritsIn(format_);
    if (!KeepForward()) return std::nullopt;
    std::optional<FormatAdvice> then = Gradients(format_);
    if (!then) return std::nullopt;
    Change change;
    const std::vector<Unit> units = graph_.Simplified({kept_.begin(), kept_.end()});
    for (const Unit& unit : units) {
      change.keep_float32.push_back(unit.name);
      change.sources.push_back(unit.source);
    }
    change.share = graph_.ShareOf(Names(kept_));
    if (units.empty() || change.share > kMostKept) return std::nullopt;
    change.because = because_;
    change.then = then->verdict;
    change.scale = then->scale;
    change.window = then->window;
    return change;
  }

 private:
  using Units = std::set<Unit>;

  static KeptUnits Names(const Units& units) {
    KeptUnits names;
    for (const Unit& unit : units) names.Add(unit.name);
    return names;
  }

  // What has no place in the graph, such as a copy of an input, is of the module that makes it.
  std::vector<Unit> UnitsFor(const std::string& tensor, const KeptUnits& kept) const {
    const std::string stem = StemOf(tensor);
    if (!tensor.ends_with(".value") && graph_.Has(stem)) return graph_.UnitsFor(stem, kept);
    return graph_.UnitsOfModule(ModuleOf(tensor));
  }

  bool Holds(const Units& units) const {
    const Float32Parts parts(&graph_, Names(units));
    return std::ranges::all_of(
        because_, [&](const std::string& tensor) { return parts.Has(tensor, RoleOf(tensor)); });
  }

  static Role RoleOf(const std::string& tensor) {
    return tensor.ends_with(".value") ? Role::kValue : Role::kAct;
  }

  // Adds what keeps the culprits of the forward pass from 16 bits, one after the other: what a kept
  // part returns may be copied by the next. Then leaves out what is not needed.
  bool KeepForward() {
    const ForwardVerdict& forward = format_.forward;
    if (forward.loss_growth && forward.loss_growth->Fails()) {
      for (const Unit& unit : graph_.LastUnits()) kept_.insert(unit);
      if (kept_.empty()) return false;
    }
    KeepUnexplained();
    while (true) {
      const KeptUnits kept = Names(kept_);
      const Float32Parts parts(&graph_, kept);
      const auto open = std::ranges::find_if(
          because_, [&](const std::string& tensor) { return !parts.Has(tensor, RoleOf(tensor)); });
      if (open == because_.end()) break;
      const size_t before = kept_.size();
      for (const Unit& unit : UnitsFor(*open, kept)) {
        kept_.insert(unit);
        if (NeedsAllOfItsChain(*open)) needed_.insert(unit);
      }
      if (kept_.size() == before) return false;
    }
    for (auto unit = kept_.begin(); !because_.empty() && unit != kept_.end();) {
      Units fewer = kept_;
      fewer.erase(*unit);
      if (!needed_.contains(*unit) && Holds(fewer)) {
        unit = kept_.erase(unit);
      } else {
        ++unit;
      }
    }
    return true;
  }

  // Adds what makes a culprit that the graph takes for float32 from the start, though the recorder
  // counted it.
  void KeepUnexplained() {
    const Float32Parts parts(&graph_, {});
    for (const std::string& tensor : because_) {
      if (!parts.Has(tensor, RoleOf(tensor))) continue;
      for (const Unit& unit : graph_.MakerOf(StemOf(tensor))) {
        kept_.insert(unit);
        needed_.insert(unit);
      }
    }
  }

  // What the gradients say if `kept` stays in float32.
  FormatAdvice AdviceWith(const Units& units) const {
    const Float32Parts parts(&graph_, Names(units));
    const StepSource rest = Without(source_, [&parts](const TensorInfo& tensor) {
      return parts.Has(tensor.name, tensor.role);
    });
    return WindowsOf(rest, request_, options_).formats.front();
  }

  // Adds what gradients need to be kept as well, in the cheaper of two ways: what loses much at the
  // scales at which nothing overflows, or what overflows at those at which nothing is lost. Returns
  // what is said of the rest, or nothing if no part of the model serves.
  std::optional<FormatAdvice> Gradients(const FormatAdvice& before) {
    if (format_.tensors.empty() && format_.noise_tensors.empty()) return before;
    FormatAdvice first = before;
    if (!first.window || first.verdict == Verdict::kNoScaleIsSafe) {
      if (before.verdict != Verdict::kNoScaleIsSafe || !kept_.empty()) first = AdviceWith(kept_);
    } else {
      first.verdict = first.window->exponent == 0 ? Verdict::kAsIs : Verdict::kWithScale;
    }
    if (Trains(first)) return first;
    if (first.verdict != Verdict::kNoScaleIsSafe) return std::nullopt;
    std::optional<FormatAdvice> best;
    Units kept;
    for (const bool low : {true, false}) {
      Units units = kept_;
      const std::optional<FormatAdvice> found = Backward(low, first, units);
      if (!found) continue;
      const double share = graph_.ShareOf(Names(units));
      if (best && share >= graph_.ShareOf(Names(kept))) continue;
      best = found;
      kept = units;
    }
    if (!best) return std::nullopt;
    kept_ = kept;
    for (const TensorHarm& tensor : first.tensors) {
      if (Float32Parts(&graph_, Names(kept_)).Has(tensor.name, tensor.role) && tensor.first_step) {
        because_.push_back(tensor.name);
      }
    }
    return best;
  }

  // A scale without head-room is taken where more parts do not help.
  std::optional<FormatAdvice> Backward(bool low, FormatAdvice advice, Units& units) const {
    std::optional<FormatAdvice> found;
    Units found_units;
    for (int pass = 0; pass < kMostPasses; ++pass) {
      const size_t before = units.size();
      for (const std::string& tensor : low ? Losing(advice) : Overflowing(advice)) {
        for (const Unit& unit : UnitsFor(OutputOf(tensor), Names(units))) units.insert(unit);
      }
      if (units.size() == before || graph_.ShareOf(Names(units)) > kMostKept) break;
      advice = AdviceWith(units);
      if (!Trains(advice)) continue;
      found = advice;
      found_units = units;
      if (advice.window && advice.window->exponent + kHeadroom <= advice.window->high) break;
    }
    units = found_units;
    return found;
  }

  // The gradients that lose much where nothing overflows.
  static std::set<std::string> Losing(const FormatAdvice& advice) {
    std::set<std::string> names;
    for (const TensorHarm& tensor : advice.at_risk) names.insert(tensor.name);
    return names;
  }

  // Those that overflow at the scales that the others need.
  static std::set<std::string> Overflowing(const FormatAdvice& advice) {
    std::set<std::string> names;
    int needed = kLowestWindowExponent;
    for (const StepWindow& step : advice.windows) {
      if (step.hopeless || step.low <= step.high) continue;
      needed = std::max(needed, step.low);
      if (!step.high_tensor.empty()) names.insert(step.high_tensor);
    }
    const double largest = MaxFinite(ParseFormat(advice.format).format);
    for (const TensorHarm& tensor : advice.tensors) {
      if (std::ldexp(tensor.absmax, needed + kHeadroom) > largest) names.insert(tensor.name);
    }
    return names;
  }

  const StepSource& source_;
  const ForwardGraph& graph_;
  AdviceRequest request_;
  ReplayOptions options_;
  const FormatAdvice& format_;
  Units kept_, needed_;  // the latter stay whatever else is kept
  std::vector<std::string> because_;
};

bool AtRiskInForward(const FormatAdvice& format) {
  const auto near = [](const ForwardVerdict& verdict) {
    return verdict.headroom && *verdict.headroom < kHeadroomAtRisk;
  };
  return Trains(format) && (near(format.forward) || near(format.values));
}

// What else than keeping parts in float32 may help.
std::string InsteadFor(const FormatAdvice& format, const Advice& advice) {
  std::vector<std::string> ways;
  const auto any = [&](bool (*is_of_kind)(std::string_view)) {
    const std::vector<std::string> culprits = CulpritsIn(format);
    return std::ranges::any_of(culprits, is_of_kind);
  };
  const auto masks = [](const ForwardTensor& tensor) {
    return IsOfMaskedRows(tensor.name) && tensor.constant;
  };
  if (std::ranges::any_of(format.forward.tensors, masks)) {
    ways.push_back("mask scores with torch.finfo(scores.dtype).min, not with a constant");
  }
  if (any(IsOfDivisors)) ways.push_back("make the epsilon of that division larger");
  if (any(IsOfSamples)) ways.push_back("subtract the mean from that input before the model");
  if (any(IsOfAngles)) ways.push_back("compute those angles in float32, from the positions on");
  for (const FormatAdvice& other : advice.formats) {
    if (other.format != "bf16" || !Trains(other) || AtRiskInForward(other)) continue;
    ways.push_back("use bf16");
  }
  std::string text;
  for (size_t i = 0; i < ways.size(); ++i) text += (i == 0 ? "" : ", or ") + ways[i];
  return text;
}

}  // namespace

std::optional<ForwardGraph> GraphOf(const StepSource& source) {
  for (size_t i = 0; i < source.step_count; ++i) {
    const std::string text = source.describe(i)->Metadata(kForwardGraphKey);
    if (auto graph = ForwardGraph::Parse(text)) return graph;
  }
  return std::nullopt;
}

Float32Parts::Float32Parts(const ForwardGraph* graph, KeptUnits kept)
    : graph_(graph), kept_(std::move(kept)) {
  if (graph != nullptr) narrow_ = graph->NarrowNames(kept_);
}

bool Float32Parts::Has(const std::string& tensor, Role role) const {
  const std::string module = ModuleOf(tensor);
  if (role == Role::kGrad || role == Role::kValue) return kept_.Has(module, "");
  const std::string stem = StemOf(OutputOf(tensor));
  if (graph_ != nullptr && BitsOfRoundedLoss(tensor) != 0) return graph_->KeepsLast(kept_);
  if (graph_ != nullptr && graph_->Has(stem)) return !narrow_.contains(stem);
  if (graph_ != nullptr) {
    return kept_.Has(module, "") || graph_->KeepsInputsOf(module, kept_);
  }
  const size_t slash = stem.rfind('/');
  const std::string function = slash == stem.npos ? "" : WithoutCall(stem.substr(slash + 1));
  return kept_.Has(module, function);
}

StepSource KeptInFloat32(StepSource source, std::span<const std::string> names) {
  const auto graph = std::make_shared<const std::optional<ForwardGraph>>(GraphOf(source));
  const ForwardGraph* const known = *graph ? &**graph : nullptr;
  KeptUnits kept;
  for (const std::string& pattern : names) {
    kept.Add(pattern);
    if (known == nullptr || known->HasUnit(pattern)) continue;
    throw UsageError("--float32", "no module or operation of the recording matches",
                     "such as " + Quoted(known->AnyUnit()), Quoted(pattern));
  }
  const Float32Parts parts(known, kept);
  return Without(std::move(source), [graph, parts](const TensorInfo& tensor) {
    return parts.Has(tensor.name, tensor.role);
  });
}

void AddChanges(const StepSource& source, const AdviceRequest& request,
                const ReplayOptions& options, Advice& advice) {
  if (advice.recipe != Recipe::kAutocast) return;
  std::optional<ForwardGraph> graph;
  bool looked = false;
  for (FormatAdvice& format : advice.formats) {
    if (!Fails(format) && !AtRiskInForward(format)) continue;
    if (!looked) graph = GraphOf(source);
    looked = true;
    if (Fails(format)) format.instead = InsteadFor(format, advice);
    if (graph) format.change = Search(source, *graph, request, options, format).Run();
  }
  advice.has_graph = graph.has_value();
  if (looked || !advice.float32.empty()) advice.lines = AdviceLines(advice);
}

}  // namespace dlsim::sim
