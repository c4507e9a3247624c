// SPDX-License-Identifier: Apache-2.0
#include "sim/updates/update_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/updates/tensor_update.h"

namespace dlsim::sim {
namespace {

constexpr double kHarmfulBias = 2;          // of a second moment, up or down
constexpr double kFixed = 0.5;              // of a drift, at most, for what fixes it
constexpr double kFollowedDistance = 0.01;  // of a float32 replay from the training that it replays

bool SameStates(const UpdateRun& a, const UpdateRun& b) {
  return StoredName(a.first) == StoredName(b.first) && StoredName(a.second) == StoredName(b.second);
}

// How a run differs from another that it fixes; empty if it is not a variant of it.
std::string FixText(const UpdateRun& run, const UpdateRun& fix) {
  if (StoredName(run.weights) != StoredName(fix.weights)) return "";
  const bool other_beta2 = run.overrides.beta2 != fix.overrides.beta2;
  if (fix.master && !run.master) return "float32 master weights";
  if (run.master != fix.master) return "";
  if (other_beta2) return SameStates(run, fix) ? fmt::format("beta2 {}", *fix.overrides.beta2) : "";
  if (fix.rounding != run.rounding) return "stochastic rounding";
  if (fix.compensation != run.compensation) return "Kahan summation";
  if (!SameStates(run, fix)) return StoredName(fix.first) == "fp32" ? "float32 states" : "";
  return "";
}

std::string Listed(const std::vector<std::string>& items) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == items.size() ? " or " : ", ") + items[i];
  }
  return text;
}

std::string Capital(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 32);
  return text;
}

std::string LostText(const UpdateStudy& study, const RunOutcome& run) {
  if (run.counts.lost == 0) return "no update is lost";
  const double share =
      static_cast<double>(run.counts.lost) / static_cast<double>(run.counts.updates);
  return fmt::format("{} of the updates are lost (first at step {}, {})", Percent(share),
                     *run.first_lost, Printable(study.head.tensors[run.first_lost_tensor].name));
}

// The tensor that is harmed first.
std::string FirstHarmed(const UpdateStudy& study, const RunOutcome& run) {
  size_t first = 0;
  for (size_t t = 1; t < run.tensors.size(); ++t) {
    const std::optional<int64_t>& since = run.tensors[t].harmed_since;
    const std::optional<int64_t>& before = run.tensors[first].harmed_since;
    if (since && (!before || *since < *before)) first = t;
  }
  return Printable(study.head.tensors[first].name);
}

uint64_t ElementCount(const RunOutcome& run, const ProbeHead& head) {
  return std::max<uint64_t>(1, run.tensors.empty() ? 1 : head.FollowedCount());
}

// Adam divides by the root of the second moment and eps, which 16 bits may not hold.
std::string EpsText(const UpdateStudy& study, const RunOutcome& run) {
  const double eps = run.run.overrides.eps.value_or(study.trained.eps);
  const bool rounds = run.run.kernel == UpdateKernel::kForeach && study.trained.has_beta2();
  if (!rounds || eps == 0 || StoredIn(run.run.weights, static_cast<float>(eps)) != 0) return "";
  return fmt::format("; eps {} is zero in {}", eps, StoredName(run.run.weights));
}

std::string Sentence(const UpdateStudy& study, const RunOutcome& run) {
  switch (VerdictOf(run)) {
    case UpdateVerdict::kNotFinite: {
      const double share =
          static_cast<double>(run.nonfinite) / static_cast<double>(ElementCount(run, study.head));
      return fmt::format(
          "{} cannot train: {} of the followed weights are not finite at the end "
          "(from step {} on, first in {}){}.",
          run.run.name, Percent(share), run.harmed_since.value_or(study.last_step),
          FirstHarmed(study, run), EpsText(study, run));
    }
    case UpdateVerdict::kDrifts:
      return fmt::format(
          "{} drifts: the weights end away from float32's by {:.2g} of the distance that float32 "
          "moves them; {}.",
          run.run.name, *run.drift, LostText(study, run));
    case UpdateVerdict::kSound:
      break;
  }
  if (!run.drift)
    return fmt::format("{}: float32 moves no weight, so nothing can be lost.", run.run.name);
  return fmt::format(
      "{} follows float32: the weights end within {:.2g} of the distance that float32 moves them; "
      "{}.",
      run.run.name, *run.drift, LostText(study, run));
}

std::string BiasSentence(const RunOutcome& run) {
  if (!run.second_bias) return "";
  if (*run.second_bias<kHarmfulBias&& * run.second_bias> 1 / kHarmfulBias) return "";
  return fmt::format("{}: the second moment is {:.2g} times that of float32.", run.run.name,
                     *run.second_bias);
}

}  // namespace

std::string LimitOf(const OptimizerSettings& settings, const ProbeHead& head) {
  const bool cuda = settings.device == UpdateDevice::kCuda;
  if (settings.kind == OptimizerKind::kAdafactor) {
    const auto is_matrix = [](const ProbeTensor& tensor) { return tensor.shape.size() > 1; };
    if (std::ranges::any_of(head.tensors, is_matrix)) {
      return "note: Adafactor keeps second moments of rows and columns of a matrix; here each "
             "element has its own, so that figures of matrices are rough";
    }
    return cuda ? "note: Adafactor was not compared with PyTorch on CUDA" : "";
  }
  if (cuda && settings.capturable && settings.has_beta2()) {
    return "note: kernels with capturable=True round in other places than the replay, which was "
           "not compared with them";
  }
  return "";
}

UpdateVerdict VerdictOf(const RunOutcome& run) {
  if (run.nonfinite > 0) return UpdateVerdict::kNotFinite;
  return run.harmed() ? UpdateVerdict::kDrifts : UpdateVerdict::kSound;
}

std::vector<std::string> FixesOf(const UpdateStudy& study, const RunOutcome& run) {
  std::vector<std::string> fixes;
  if (VerdictOf(run) == UpdateVerdict::kSound) return fixes;
  for (const RunOutcome& other : study.runs) {
    if (VerdictOf(other) != UpdateVerdict::kSound) continue;
    // One that stays just below the limit fixes nothing.
    if (run.nonfinite == 0 && other.drift.value_or(0) > kFixed * run.drift.value_or(0)) continue;
    const std::string text = FixText(run.run, other.run);
    if (!text.empty() && std::ranges::find(fixes, text) == fixes.end()) fixes.push_back(text);
  }
  if (fixes.empty()) fixes.push_back("float32 weights and states");
  return fixes;
}

std::vector<std::string> UpdateSentences(const UpdateStudy& study) {
  std::vector<std::string> sentences;
  for (const RunOutcome& run : std::span(study.runs).first(study.asked)) {
    sentences.push_back(Sentence(study, run));
    const std::string bias = BiasSentence(run);
    if (!bias.empty()) sentences.push_back(bias);
    const std::vector<std::string> fixes = FixesOf(study, run);
    if (!fixes.empty()) {
      sentences.push_back(Capital(Listed(fixes)) + " would prevent this.");
    }
  }
  sentences.insert(sentences.end(), study.limits.begin(), study.limits.end());
  if (study.distance.value_or(0) > kFollowedDistance) {
    sentences.push_back(fmt::format(
        "note: the float32 replay misses the recorded weights by {:.2g} of the distance that they "
        "moved: something else changed them as well, or the optimizer has other rules",
        *study.distance));
  }
  return sentences;
}

std::vector<std::string> CoverageSentences(const UpdateStudy& study) {
  uint64_t all = 0;
  for (const ProbeTensor& tensor : study.head.tensors) {
    uint64_t elements = 1;
    for (const uint64_t length : tensor.shape) elements *= length;
    all += elements;
  }
  std::string optimizers;
  for (const std::string& name : study.optimizers) {
    optimizers += (optimizers.empty() ? "" : ", ") + Printable(name);
  }
  std::vector<std::string> sentences = {
      fmt::format("Followed: {} of {} elements in {}, {} of {} (steps {} to {}).",
                  study.head.FollowedCount(), all, Counted(study.head.tensors.size(), "tensor"),
                  Counted(study.steps, "update"), optimizers, study.first_step, study.last_step),
      "Gradients are as recorded; in training, weights that drift would get different ones."};
  if (study.distance && *study.distance <= kFollowedDistance) {
    sentences.push_back(
        fmt::format("Check: after {} of {} updates, the float32 replay reproduces the recorded "
                    "weights to within {:.2g} of the distance that they moved.",
                    study.compared, study.steps, *study.distance));
  }
  if (study.cut_bytes > 0) {
    sentences.push_back(
        fmt::format("note: the file ends in the middle of an update; its last {} are ignored",
                    Counted(study.cut_bytes, "byte")));
  }
  return sentences;
}

}  // namespace dlsim::sim
