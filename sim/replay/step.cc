// SPDX-License-Identifier: Apache-2.0
#include "dlsim/sim/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>
#include <variant>

#include "dlsim/error.h"
#include "sim/base/caller.h"
#include "src/base/parallel.h"
#include "src/trace/tensor_rules.h"

namespace dlsim::sim {
namespace {

// Not even close to where float32 overflows: rounding at most doubles what is normal.
constexpr double kFarBelowOverflow = 0x1p120, kOverflow = 0x1p128;
constexpr double kTinyScale = 0x1p-40;

// Sums of float32 values below this are finite, whatever rounding does.
constexpr double kFiniteSum = 0x1p127;

// Elements that are looked at in the time in which a table is asked.
constexpr uint64_t kLooksPerAnswer = 400;

// A scale as mantissa * 2^exponent, 1 <= mantissa < 2. The mantissa is 1 for what tables refuse.
struct ScaleParts {
  float mantissa, power;

  explicit ScaleParts(float scale) : mantissa(MantissaOf(scale)), power(scale / mantissa) {}
};

// What becomes of a gradient's largest magnitude, which nothing that is smaller exceeds.
float Converted(const CodecSpec& spec, Rounding rounding, float magnitude, float scale) {
  const EncodeResult result = Encode(spec, rounding, std::bit_cast<uint32_t>(magnitude * scale));
  return std::bit_cast<float>(Decode(spec, result.code));
}

bool IsDefault(float limit) { return limit == std::numeric_limits<float>::infinity(); }

// Returns the answer of a table whose values were multiplied by `mantissa` first, which the reader
// has open, about those of `recorded`. Nothing where multiplying was not like scaling.
std::optional<TensorStats> AskAt(float mantissa, const TensorTable& table,
                                 const TensorTable& recorded, const TableQuestion& question,
                                 TableReader& reader) {
  const float smallest = recorded.values.empty() ? 0 : std::fabs(recorded.values.front());
  const bool has_subnormals =
      recorded.binades.empty()
          ? smallest > 0 && smallest < std::numeric_limits<float>::min()
          : recorded.binades.front().exponent < std::numeric_limits<float>::min_exponent - 1;
  if (has_subnormals || table.inf != recorded.inf) return std::nullopt;
  std::optional<TensorStats> stats = reader.Ask(question);
  if (!stats) return std::nullopt;
  // Products are rounded: their sums are brought to that of the values.
  const double square = table.sum_of_squares > 0 ? recorded.sum_of_squares / table.sum_of_squares
                                                 : 1 / (double{mantissa} * double{mantissa});
  const bool all_lost = stats->underflow == stats->nonzero_finite();
  stats->error_sum_of_squares =
      all_lost ? recorded.sum_of_squares : stats->error_sum_of_squares * square;
  stats->underflow_sum_of_squares =
      all_lost ? recorded.sum_of_squares : stats->underflow_sum_of_squares * square;
  stats->absmax = recorded.absmax;
  stats->sum_of_squares = recorded.sum_of_squares;
  return stats;
}

// Keys of metadata that list names, one a line.
constexpr std::string_view kLists[] = {kAutocastFloat32Key, kNoiseKey, kDescentKey, kComputedInKey};

// Gives the step the lists of all its recordings, not of the first alone, and their refusals.
void MergeMetadata(const TraceStep& recorded, StepTables& tables) {
  if (recorded.recordings.size() < 2) return;
  for (const std::string_view key : kLists) {
    std::set<std::string> names;
    for (const Recording& recording : recorded.recordings) {
      names.merge(ListedIn(recording.metadata, key));
    }
    if (!names.empty()) tables.metadata[std::string(key)] = ListOf(names);
  }
}

RefusedSteps RefusedIn(const std::map<std::string, std::string>& metadata) {
  const auto count = metadata.find(std::string(kRefusedKey));
  if (count == metadata.end()) return {};
  uint64_t steps = 0;
  const char* const end = count->second.data() + count->second.size();
  const auto [read, error] = std::from_chars(count->second.data(), end, steps);
  if (error != std::errc() || read != end || steps == 0) return {};
  const auto first = metadata.find(std::string(kRefusedFirstKey));
  return {steps, first == metadata.end() ? "" : first->second};
}

bool IsBrokenLoss(const std::map<std::string, std::string>& metadata) {
  const auto loss = metadata.find("loss");
  if (loss == metadata.end()) return false;
  double value = 0;
  const char* const end = loss->second.data() + loss->second.size();
  const auto [read, error] = std::from_chars(loss->second.data(), end, value);
  return error == std::errc() && read == end && !std::isfinite(value);
}

}  // namespace

// What was asked of a step so far.
struct Step::Answers {
  // An answer; `used`: somebody asked for it, and it was not only made ready.
  template <class Question, class Answer>
  struct Entry {
    Question question;
    std::shared_ptr<const Answer> answer;
    bool used;
  };
  template <class Question, class Answer>
  using List = std::vector<Entry<Question, Answer>>;

  std::mutex mutex;
  List<StepQuestion, StepAnswer> gradients;
  List<Conversion, StepAnswer> forward;
  List<ErrorQuestion, std::vector<double>> errors;
  List<std::monostate, std::vector<GradientSpread>> spreads;
  std::map<float, std::shared_ptr<const PartTables>> by_mantissa;
  bool only_made_ready = false;  // while one thread has the step alone

  // Returns the answer from the list, or null.
  template <class Question, class Answer>
  std::shared_ptr<const Answer> Known(List<Question, Answer>& list, const Question& question) {
    const std::lock_guard lock(mutex);
    for (Entry<Question, Answer>& entry : list) {
      if (!(entry.question == question)) continue;
      entry.used = entry.used || !only_made_ready;
      return entry.answer;
    }
    return nullptr;
  }

  template <class Question, class Answer>
  std::shared_ptr<const Answer> Keep(List<Question, Answer>& list, const Question& question,
                                     Answer answer) {
    auto kept = std::make_shared<const Answer>(std::move(answer));
    const std::lock_guard lock(mutex);
    list.push_back({question, kept, !only_made_ready});
    return kept;
  }

  // Returns the answer from the list, or else what `make` keeps there.
  template <class Question, class Answer, class Make>
  std::shared_ptr<const Answer> Find(List<Question, Answer>& list, const Question& question,
                                     const Make& make) {
    auto known = Known(list, question);
    return known != nullptr ? known : make();
  }

  // Returns what of the questions is not known yet, each once.
  template <class Question, class Answer>
  std::vector<Question> Open(List<Question, Answer>& list, std::vector<Question> questions) {
    std::vector<Question> open;
    for (Question& question : questions) {
      if (Known(list, question) || std::ranges::find(open, question) != open.end()) continue;
      open.push_back(std::move(question));
    }
    return open;
  }
};

Step::Step(std::shared_ptr<Opened> opened)
    : opened_(std::move(opened)), answers_(std::make_shared<Answers>()) {}

Step::Step(StepTables tables, std::shared_ptr<const TraceStep> recorded, StepOptions options,
           std::function<void()> check)
    : answers_(std::make_shared<Answers>()) {
  Opened opened = {std::move(tables), std::move(recorded), std::move(options), std::move(check)};
  opened.LookAtInputs();
  if (opened.recorded != nullptr) {
    MergeMetadata(*opened.recorded, opened.tables);
    for (const Recording& recording : opened.recorded->recordings) {
      opened.refused.Add(RefusedIn(recording.metadata));
      opened.broken_loss |= IsBrokenLoss(recording.metadata);
    }
  }
  opened_ = std::make_shared<Opened>(std::move(opened));
}

void Step::Opened::LookAtInputs() {
  bounds = {};
  inputs.assign(tables.parts.empty() ? 0 : tables.gradients, {});
  for (const std::vector<TensorTable>& part : tables.parts) {
    for (size_t t = 0; t < tables.gradients; ++t) {
      const TensorTable& table = part[t];
      inputs[t].Merge(table.Inputs());
      const double parts = static_cast<double>(tables.parts.size());
      bounds.infinite |= table.inf > 0;
      bounds.squares += parts * table.sum_of_squares;
      bounds.sum =
          std::fmax(bounds.sum, parts * static_cast<double>(table.elements) * double{table.absmax});
      if (table.absmax == 0) continue;
      const int lowest =
          table.binades.empty() ? std::ilogb(table.values.front()) : table.binades.front().exponent;
      bounds.range.lowest = std::min(bounds.range.lowest, lowest);
      bounds.range.highest = std::max(bounds.range.highest, std::ilogb(table.absmax));
    }
  }
}

namespace {

template <class Drops>
TraceStep Without(TraceStep step, const Drops& drops) {
  for (Recording& recording : step.recordings) {
    std::erase_if(recording.tensors, [&](const auto& tensor) { return drops(*tensor.info); });
  }
  return step;
}

}  // namespace

void Step::Drop(const std::function<bool(const TensorInfo& tensor)>& drops) {
  std::vector<bool> dropped;
  for (const TensorRef& tensor : tables().tensors) dropped.push_back(drops(*tensor));
  if (std::ranges::find(dropped, true) == dropped.end()) return;
  const auto drop = [&](auto& list) {
    size_t t = 0;
    std::erase_if(list, [&](const auto&) { return dropped[t++]; });
  };
  // Again shares it.
  if (opened_.use_count() > 1) opened_ = std::make_shared<Opened>(*opened_);
  StepTables& tables = opened_->tables;
  for (std::vector<TensorTable>& part : tables.parts) drop(part);
  for (auto& [mantissa, parts] : tables.by_mantissa) {
    for (std::vector<TensorTable>& part : parts) drop(part);
  }
  drop(tables.sums);
  for (std::vector<ScaledLoss>& losses : tables.scaled) drop(losses);
  const auto gradients = dropped.begin() + static_cast<std::ptrdiff_t>(tables.gradients);
  tables.gradients -= static_cast<size_t>(std::count(dropped.begin(), gradients, true));
  drop(tables.tensors);
  opened_->LookAtInputs();
  if (recorded() == nullptr) return;
  opened_->recorded = std::make_shared<const TraceStep>(Without(*recorded(), drops));
}

std::string Step::Metadata(std::string_view key) const {
  const auto found = tables().metadata.find(std::string(key));
  return found == tables().metadata.end() ? "" : found->second;
}

std::set<std::string> Step::Listed(std::string_view key) const {
  return ListedIn(tables().metadata, key);
}

bool Step::HasBrokenLoss() const { return opened_->broken_loss || IsBrokenLoss(tables().metadata); }

RefusedSteps Step::RefusedBefore() const {
  return opened_->recorded == nullptr ? RefusedIn(tables().metadata) : opened_->refused;
}

const TraceStep& Step::Values(const std::string& reason, const std::string& otherwise) const {
  if (opened_->recorded != nullptr) return *opened_->recorded;
  throw UsageError(
      "step " + std::to_string(number()),
      "only the values of the gradients tell this, which a profile does not hold: " + reason,
      "the trace itself" + otherwise);
}

std::shared_ptr<const PartTables> Step::TablesAt(float scale) const {
  const float mantissa = MantissaOf(scale);
  const auto stored = tables().by_mantissa.find(mantissa);
  if (stored != tables().by_mantissa.end()) {
    return {std::shared_ptr<void>(), &stored->second};  // lives as long as this
  }
  {
    const std::lock_guard lock(answers_->mutex);
    const auto found = answers_->by_mantissa.find(mantissa);
    if (found != answers_->by_mantissa.end()) return found->second;
  }
  const TraceStep& values = Values(WhyNot(NotInTable::kScale),
                                   fmt::format(", or a profile made with --scale {:g}", scale));
  constexpr size_t kMostMantissas = 4;  // at once, which takes memory
  auto made = std::make_shared<const PartTables>(
      TabulateAt(mantissa, tables().parts, values, opened_->options));
  Check();
  const std::lock_guard lock(answers_->mutex);
  if (answers_->by_mantissa.size() == kMostMantissas) answers_->by_mantissa.clear();
  return answers_->by_mantissa.try_emplace(mantissa, std::move(made)).first->second;
}

void Step::Check() const {
  if (opened_->check) opened_->check();
}

namespace {

// Whether the recorded norm does not tell that of the converted gradients is below float32's
// overflow. `squares`: a bound of its square.
bool NormIsOpen(const StepTables& tables, const StepQuestion& question, double squares,
                bool saturates, double smallest_scale) {
  if (squares < kFarBelowOverflow) return false;
  // What counts in so large a norm is clamped, lost, or may cancel in a sum.
  if (saturates || smallest_scale < kTinyScale || tables.parts.size() > 1) return true;
  // Else rounding to p bits changes it by less than 2^-p.
  const double slack = std::ldexp(4.0, -question.conversion.format.mantissa_bits);
  return squares > kOverflow * (1 - slack) && squares < kOverflow * (1 + slack);
}

}  // namespace

// Whether float32 sums of the gradients or of their squares may be infinite though no element is;
// of what is still scaled, too, if the question asks for such sums.
bool Step::SumsMayOverflow(const StepQuestion& question) const {
  const bool saturates = MakeCodecSpec(question.conversion).saturates;
  if (saturates && opened_->bounds.infinite) return true;  // becomes the largest value
  double smallest = std::fabs(question.ScaleOf(0)), largest = smallest;
  for (const float scale : question.tensor_scales) {
    smallest = std::fmin(smallest, std::fabs(scale));
    largest = std::fmax(largest, std::fabs(scale));
  }
  if (question.norm_decides &&
      NormIsOpen(tables(), question, opened_->bounds.squares, saturates, smallest)) {
    return true;
  }
  const bool of_scaled = question.detail && question.detail->sums;
  return of_scaled && !(opened_->bounds.squares * largest * largest < kFarBelowOverflow &&
                        opened_->bounds.sum * largest < kFarBelowOverflow);
}

// A question on its way to its answer.
struct Step::OpenQuestion {
  const StepQuestion& question;
  TableQuestion at_power;   // of two; its conversion at the scale of the model
  bool wants_sums = false;  // of the converted gradients
  std::shared_ptr<const PartTables> at = nullptr;
  StepAnswer answer = {};
  std::vector<const char*> why = {};  // tables do not tell; null: they do

  bool counts() const {
    const auto& detail = question.detail;
    return !wants_sums && detail && !(IsDefault(detail->edge) && IsDefault(detail->limit)) &&
           std::ranges::find(why, nullptr) != why.end();
  }
};

// Finds what tables tell of a gradient; returns why they do not tell all, if they do not.
const char* Step::AskTables(const OpenQuestion& one, size_t t, std::span<TableReader> readers,
                            TensorAnswer& answer) const {
  const StepQuestion& question = one.question;
  const size_t parts = tables().parts.size();
  const float scale = question.ScaleOf(t);
  const ScaleParts of_scale(scale);
  if (of_scale.mantissa != 1 && one.at == nullptr) return WhyNot(NotInTable::kScale);
  std::optional<TableQuestion> of_tensor;
  const TableQuestion& at_power = question.tensor_scales.empty()
                                      ? one.at_power
                                      : of_tensor.emplace(question.conversion, of_scale.power);
  const auto converted = [&](float magnitude) {
    return Converted(one.at_power.spec, question.conversion.rounding, magnitude, scale);
  };
  double largest = 0, largest_scaled = 0;
  for (size_t part = 0; part < parts; ++part) {
    const TensorTable& table = tables().parts[part][t];
    const std::optional<TensorStats> stats =
        one.at == nullptr
            ? readers[part].Ask(at_power)
            : AskAt(of_scale.mantissa, (*one.at)[part][t], table, at_power, readers[part]);
    if (!stats) return WhyNot(NotInTable::kEnds);
    if (parts == 1) {
      answer.total = *stats;
      break;
    }
    answer.total.Merge(*stats);
    answer.MakeRest().parts.push_back(*stats);
    const double of_part = std::fabs(converted(table.absmax));
    largest_scaled += of_part;
    largest += of_part / double{scale};
  }
  answer.sum_of_squares = tables().SumOfSquares(t);
  const bool finite = answer.total.nonfinite_outputs == 0;
  answer.scaled_sum_finite = finite;
  // An infinite reciprocal makes NaN of zeros.
  answer.unscaled_finite = finite && std::isfinite(1.0f / scale);
  if (parts > 1) {
    // A sum that may overflow float32 is made.
    if (finite && !(largest < kFiniteSum && largest_scaled < kFiniteSum)) {
      return "float32 sums over micro-steps may overflow";
    }
    return question.detail ? "the policy or clipping looks at sums over micro-steps" : nullptr;
  }
  // Unscaling by 1 or more does not overflow.
  if (!question.detail && scale >= 1) return nullptr;
  const float unscaled = converted(answer.total.absmax) * (1.0f / scale);
  answer.unscaled_finite = answer.unscaled_finite && std::isfinite(unscaled);
  if (!question.detail) return nullptr;
  const bool counts = !IsDefault(question.detail->edge) || !IsDefault(question.detail->limit);
  if (counts && !(finite && std::isfinite(1.0f / scale))) return WhyNot(NotInTable::kEnds);
  GradientDetail& detail = answer.MakeRest().detail;
  detail.elements = answer.total.elements;
  detail.below_edge = answer.total.elements;
  detail.absmax = answer.unscaled_finite ? unscaled : std::numeric_limits<float>::infinity();
  return nullptr;
}

// Counts the gradients that pass the limits of a detail, where tables told the rest: rounding to
// nearest keeps the order of magnitudes, so that the results from some magnitude on pass.
void Step::CountDetails(std::span<OpenQuestion> open) const {
  const char* const why = "it counts converted gradients by magnitude";
  struct Limit {
    OpenQuestion* open;
    uint64_t GradientDetail::*count;
  };
  std::vector<Limit> limits;  // that values tell, and from which bits on by gradient
  std::vector<std::vector<uint32_t>> magnitudes;
  for (OpenQuestion& one : open) {
    if (!one.counts()) continue;
    Values(why);
    const StepQuestion& question = one.question;
    const DetailQuestion& detail = *question.detail;
    const auto count = [&](uint64_t GradientDetail::*into, const auto& passes) {
      std::vector<uint32_t> first(one.answer.size());
      bool all = true;
      for (size_t t = 0; t < first.size(); ++t) {
        const float scale = question.ScaleOf(t);
        const bool as_before = t > 0 && scale == question.ScaleOf(t - 1);
        const auto fails = [&](uint32_t bits) {
          const float scaled = Converted(one.at_power.spec, question.conversion.rounding,
                                         std::bit_cast<float>(bits), scale);
          return !passes(scaled, scaled * (1.0f / scale));
        };
        constexpr auto kMagnitudes = std::views::iota(0u, codec::kInfinityBits);
        first[t] = as_before ? first[t - 1] : *std::ranges::partition_point(kMagnitudes, fails);
        if (one.why[t] != nullptr) continue;
        const auto told = CountFrom(tables().parts.front()[t], first[t]);
        all = all && told;
        one.answer[t].MakeRest().detail.*into = told.value_or(0);
      }
      if (all) return;
      limits.push_back({&one, into});
      magnitudes.push_back(std::move(first));
    };
    const bool unscaled = detail.limit_domain == ClipDomain::kUnscaled;
    if (!IsDefault(detail.edge)) {
      count(&GradientDetail::above_edge,
            [&](float scaled, float) { return !(scaled < detail.edge); });
    }
    if (!IsDefault(detail.limit)) {
      count(&GradientDetail::above_limit, [&](float scaled, float gradient) {
        return !((unscaled ? gradient : scaled) <= detail.limit);
      });
    }
  }
  if (!limits.empty()) {
    const auto counts = CountGradients(Values(why), opened_->options.accumulation, magnitudes);
    Check();
    for (size_t i = 0; i < limits.size(); ++i) {
      const auto& [one, into] = limits[i];
      for (size_t t = 0; t < counts.size(); ++t) {
        if (one->why[t] == nullptr) one->answer[t].MakeRest().detail.*into = counts[t][i];
      }
    }
  }
  for (OpenQuestion& one : open) {
    for (size_t t = 0; t < one.answer.size() && one.counts(); ++t) {
      if (one.why[t] != nullptr) continue;
      GradientDetail& detail = one.answer[t].MakeRest().detail;
      detail.below_edge = detail.elements - detail.above_edge;
    }
  }
}

// Returns a question with the same answer, which others ask, too.
StepQuestion Step::Simplified(StepQuestion question) const {
  const std::vector<float>& scales = question.tensor_scales;
  const bool all_same = std::ranges::adjacent_find(scales, std::not_equal_to()) == scales.end();
  if (!scales.empty() && all_same && MantissaOf(scales.front()) == 1) {
    question.scale = scales.front();
    question.tensor_scales.clear();
  }
  const float scale = question.scale;
  if (OutsideTables(question.conversion, ScaleParts(scale).power) || tables().parts.size() > 1) {
    return question;
  }
  if (SumsMayOverflow(question)) return question;
  question.norm_decides = false;
  if (question.detail) question.detail->sums = false;
  if (question.detail == DetailQuestion{.sums = false, .absmax = false}) question.detail.reset();
  const bool of_model = question.tensor_scales.empty() && MantissaOf(scale) == 1;
  if (of_model && !question.converted_norm && !question.detail) {
    const int log2_scale = std::ilogb(scale);
    question.scale =
        std::ldexp(1.0f, LikeExponent(question.conversion, log2_scale, opened_->bounds.range));
  }
  return question;
}

// Finds and keeps answers. The questions to a tensor are asked together.
Step::KeptAnswers Step::Answer(std::span<const StepQuestion> questions,
                               std::span<const ErrorQuestion> errors) const {
  KeptAnswers kept;
  if (questions.empty() && errors.empty()) return kept;
  const size_t gradients = tables().gradients, parts = tables().parts.size();
  std::vector<OpenQuestion> open;
  for (const StepQuestion& question : questions) {
    OpenQuestion& one = open.emplace_back(
        OpenQuestion{question, {question.conversion, ScaleParts(question.scale).power}});
    const auto outside = one.at_power.outside;
    one.wants_sums = question.converted_norm || SumsMayOverflow(question);
    one.answer.resize(gradients);
    one.why.assign(gradients, outside ? WhyNot(*outside) : nullptr);
    // Scales of single gradients would each need tables of their own.
    if (!outside && MantissaOf(question.scale) != 1 && question.tensor_scales.empty()) {
      one.at = TablesAt(question.scale);
    }
  }
  std::vector<TableQuestion> of_errors;
  for (const auto& [format, log2_scale] : errors) {
    of_errors.push_back({{.format = format}, std::ldexp(1.0f, log2_scale)});
  }
  // Questions to the recorded values come last, next to the sums of errors.
  std::vector<size_t> order(open.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, std::greater(), [&](size_t q) { return open[q].at.get(); });
  std::vector<std::vector<double>> sums(errors.size(), std::vector<double>(gradients));
  ParallelFor(
      gradients,
      [&](size_t t) {
        static thread_local std::vector<TableReader> readers;
        readers.resize(std::max(readers.size(), parts));
        const PartTables* opened = nullptr;
        const auto open_readers = [&](const PartTables& tables) {
          for (size_t part = 0; part < parts && opened != &tables; ++part) {
            readers[part].Open(tables[part][t]);
          }
          opened = &tables;
        };
        for (const size_t q : order) {
          if (open[q].why[t] != nullptr) continue;
          open_readers(open[q].at != nullptr ? *open[q].at : tables().parts);
          open[q].why[t] = AskTables(open[q], t, readers, open[q].answer[t]);
        }
        if (!errors.empty()) open_readers(tables().parts);
        for (size_t e = 0; e < errors.size(); ++e) {
          for (size_t part = 0; part < parts; ++part) {
            sums[e][t] += readers[part].ErrorSquares(of_errors[e]);
          }
        }
      },
      gradients * parts * (questions.size() + errors.size()) * kLooksPerAnswer);
  for (size_t e = 0; e < errors.size(); ++e) {
    kept.errors.push_back(answers_->Keep(answers_->errors, errors[e], std::move(sums[e])));
  }
  CountDetails(open);
  for (size_t q = 0; q < open.size(); ++q) {
    AskValues(open[q]);
    kept.gradients.push_back(
        answers_->Keep(answers_->gradients, questions[q], std::move(open[q].answer)));
  }
  return kept;
}

// Measures what tables do not tell.
void Step::AskValues(OpenQuestion& one) const {
  std::vector<uint8_t> told;
  std::vector<size_t> open;
  for (size_t t = 0; t < one.why.size(); ++t) {
    told.push_back(one.why[t] == nullptr);
    if (!told[t] || one.wants_sums) open.push_back(t);
  }
  if (open.empty()) return;
  const char* const reason = one.why[open.front()];
  Measure(one.question, open, told,
          Values(reason != nullptr ? reason : "sums of the converted gradients decide"),
          one.answer);
}

// Measures some gradients element by element; what tables have told stays.
void Step::Measure(StepQuestion question, std::span<const size_t> gradients,
                   std::span<const uint8_t> told, const TraceStep& values,
                   StepAnswer& answer) const {
  TraceStep some = values;
  if (gradients.size() < answer.size()) {
    std::map<std::string, size_t> wanted;
    for (const size_t t : gradients) wanted[tables().tensors[t]->name] = t;
    some = Without(std::move(some), [&](const TensorInfo& tensor) {
      return IsForward(tensor.role) || !wanted.contains(tensor.name);
    });
    if (!question.tensor_scales.empty()) {
      std::vector<float> scales;
      for (const size_t t : gradients) scales.push_back(question.tensor_scales[t]);
      question.tensor_scales = std::move(scales);
    }
  }
  StepAnswer measured = MeasureStep(some, question, opened_->options);
  Check();
  for (size_t i = 0; i < gradients.size(); ++i) {
    const size_t t = gradients[i];
    if (told[t]) {
      measured[i].total = answer[t].total;
      measured[i].MakeRest().parts = answer[t].rest().parts;
    }
    answer[t] = std::move(measured[i]);
    answer[t].sum_of_squares = tables().SumOfSquares(t);
    // The sum of the inputs is the exact one.
    double squares = 0;
    for (size_t part = 0; part < tables().parts.size(); ++part) {
      const double of_part = tables().parts[part][t].sum_of_squares;
      std::vector<TensorStats>& of_parts = answer[t].MakeRest().parts;
      if (!of_parts.empty()) of_parts[part].sum_of_squares = of_part;
      squares += of_part;
    }
    answer[t].total.sum_of_squares = squares;
  }
}

std::shared_ptr<const StepAnswer> Step::Ask(const StepQuestion& question) const {
  const StepQuestion simplified = Simplified(question);
  return answers_->Find(answers_->gradients, simplified,
                        [&] { return Answer(std::span(&simplified, 1), {}).gradients.front(); });
}

std::shared_ptr<const std::vector<double>> Step::Errors(const Format& format,
                                                        int log2_scale) const {
  const ErrorQuestion question = {
      format, LikeExponent({.format = format}, log2_scale, opened_->bounds.range)};
  return answers_->Find(answers_->errors, question,
                        [&] { return Answer({}, std::span(&question, 1)).errors.front(); });
}

std::shared_ptr<const StepAnswer> Step::AskForward(const Conversion& conversion) const {
  return answers_->Find(answers_->forward, conversion, [&] {
    const size_t count = tables().tensors.size() - tables().gradients;
    const size_t parts = tables().parts.size();
    const TableQuestion question(conversion, 1);
    StepAnswer answer(count);
    std::vector<uint8_t> told(count, 1);
    ParallelFor(
        count,
        [&](size_t t) {
          static thread_local TableReader reader;
          for (size_t part = 0; part < parts; ++part) {
            reader.Open(tables().parts[part][tables().gradients + t]);
            const std::optional<TensorStats> stats = reader.Ask(question);
            if (!stats) {
              told[t] = 0;
              return;
            }
            answer[t].total.Merge(*stats);
            if (parts > 1) answer[t].MakeRest().parts.push_back(*stats);
          }
        },
        count * parts * kLooksPerAnswer);
    if (std::ranges::find(told, 0) != told.end()) MeasureForward(conversion, told, answer);
    return answers_->Keep(answers_->forward, conversion, std::move(answer));
  });
}

// Measures the forward tensors of which tables did not tell, as gradients that carry no scale.
void Step::MeasureForward(const Conversion& conversion, std::span<const uint8_t> told,
                          StepAnswer& answer) const {
  const auto outside = OutsideTables(conversion, 1);
  std::map<std::string, size_t> wanted;
  for (size_t t = 0; t < told.size(); ++t) {
    if (!told[t]) wanted[forward()[t].name] = t;
  }
  TraceStep step =
      Without(Values(WhyNot(outside.value_or(NotInTable::kEnds))), [&](const TensorInfo& tensor) {
        return !IsForward(tensor.role) || !wanted.contains(tensor.name);
      });
  for (Recording& recording : step.recordings) {
    recording.grad_scale = 1;
    for (TraceTensor& tensor : recording.tensors) {
      TensorInfo info = *tensor.info;
      info.role = Role::kActGrad;
      tensor.info = std::move(info);
    }
  }
  StepOptions one_by_one = opened_->options;
  one_by_one.accumulation = Accumulation::kQuantizeThenSum;
  const StepQuestion question = {.conversion = conversion};
  StepAnswer measured = MeasureStep(step, question, one_by_one);
  Check();
  const std::vector<TensorRef> order = DescribeTensors(step);
  for (size_t i = 0; i < measured.size(); ++i) {
    TensorAnswer& found = answer[wanted.at(order[i]->name)];
    found = std::move(measured[i]);
    if (tables().parts.size() == 1) found.MakeRest().parts.clear();
  }
}

std::shared_ptr<const std::vector<GradientSpread>> Step::Spreads() const {
  return answers_->Find(answers_->spreads, std::monostate(), [&] {
    const std::vector<double> sums =
        SumGradients(Values("the policy looks at the spread of each gradient"));
    Check();
    const std::vector<TensorStats>& inputs = Inputs();
    std::vector<GradientSpread> spreads(sums.size());
    for (size_t t = 0; t < sums.size(); ++t) {
      const auto count = static_cast<double>(inputs[t].elements - inputs[t].nonfinite());
      if (count == 0) continue;
      const double mean = sums[t] / count;
      const double variance = inputs[t].sum_of_squares / count - mean * mean;
      spreads[t] = {inputs[t].absmax, std::sqrt(std::max(0.0, variance))};
    }
    return answers_->Keep(answers_->spreads, std::monostate(), std::move(spreads));
  });
}

std::vector<std::vector<ScaledLoss>> Step::MeasureScaled(std::span<const NamedScaledFormat> formats,
                                                         const ScaleOfTensor& scale) const {
  if (opened_->recorded != nullptr) {
    auto losses = MeasureScaledStep(*opened_->recorded, formats, scale);
    Check();
    return losses;
  }
  std::vector<std::vector<ScaledLoss>> losses;
  for (const NamedScaledFormat& format : formats) {
    const auto held =
        std::ranges::find(opened_->options.scaled, format.name, &NamedScaledFormat::name);
    if (held == opened_->options.scaled.end()) {
      throw InputError(format.name, "the profile does not hold what is lost in this format",
                       "a profile with --scaled-format " + format.name);
    }
    losses.push_back(tables().scaled[static_cast<size_t>(held - opened_->options.scaled.begin())]);
  }
  return losses;
}

uint64_t Step::Bytes() const {
  uint64_t bytes = 0;
  const auto add = [&](const std::vector<TensorTable>& tables) {
    for (const TensorTable& table : tables) {
      bytes += sizeof(TensorTable) + table.values.size() * sizeof(float) +
               table.binades.size() * sizeof(Binade) +
               table.channels.size() * sizeof(table.channels.front());
    }
  };
  for (const std::vector<TensorTable>& part : tables().parts) add(part);
  add(tables().sums);
  for (const auto& [mantissa, parts] : tables().by_mantissa) {
    for (const std::vector<TensorTable>& part : parts) add(part);
  }
  const uint64_t answers = answers_->gradients.size() + answers_->forward.size();
  return bytes + opened_->inputs.size() * sizeof(TensorStats) +
         tables().tensors.size() * (sizeof(TensorRef) + answers * sizeof(TensorAnswer) +
                                    answers_->errors.size() * sizeof(double));
}

StepQuestions Step::Asked() const {
  StepQuestions asked;
  const auto copy_used = [](const auto& list, auto& questions) {
    for (const auto& entry : list) {
      if (entry.used) questions.push_back(entry.question);
    }
  };
  const std::lock_guard lock(answers_->mutex);
  copy_used(answers_->gradients, asked.gradients);
  copy_used(answers_->forward, asked.forward);
  copy_used(answers_->errors, asked.errors);
  std::erase_if(asked.gradients,
                [](const StepQuestion& question) { return !question.tensor_scales.empty(); });
  return asked;
}

void Step::MakeReady(const StepQuestions& questions) const {
  // What tables do not tell is refused when it is asked.
  const auto make_ready = [&](const auto& ask) {
    try {
      ask();
      return true;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage) throw;
      return false;
    }
  };
  std::vector<StepQuestion> gradients;
  for (const StepQuestion& question : questions.gradients) {
    gradients.push_back(Simplified(question));
  }
  std::vector<ErrorQuestion> errors;
  for (const auto& [format, log2_scale] : questions.errors) {
    errors.push_back({format, LikeExponent({.format = format}, log2_scale, opened_->bounds.range)});
  }
  answers_->only_made_ready = true;
  gradients = answers_->Open(answers_->gradients, std::move(gradients));
  errors = answers_->Open(answers_->errors, std::move(errors));
  if (!make_ready([&] { Answer(gradients, errors); })) {
    for (const StepQuestion& question : gradients) {
      make_ready([&] { Answer(std::span(&question, 1), {}); });
    }
  }
  for (const Conversion& conversion : questions.forward)
    make_ready([&] { AskForward(conversion); });
  answers_->only_made_ready = false;
}

StepSource Without(StepSource source, std::function<bool(const TensorInfo& tensor)> drops) {
  StepSource without = source;
  without.load = [load = source.load, drops](size_t i, const StepOptions& options) {
    std::unique_ptr<Step> step = load(i, options);
    step->Drop(drops);
    return step;
  };
  without.describe = [describe = source.describe, drops](size_t i) {
    std::unique_ptr<Step> step = describe(i);
    step->Drop(drops);
    return step;
  };
  return without;
}

StepSource KeepSteps(StepSource source, uint64_t bytes) {
  constexpr size_t kMostKept = 64;  // of which each may hold files open
  struct Memory {
    std::mutex mutex;
    std::map<size_t, std::unique_ptr<const Step>> steps;
    uint64_t left;
  };
  const auto memory = std::make_shared<Memory>();
  memory->left = bytes;
  source.load = [memory, load = std::move(source.load)](size_t i, const StepOptions& options) {
    {
      const std::lock_guard lock(memory->mutex);
      const auto found = memory->steps.find(i);
      if (found != memory->steps.end()) return found->second->Again();
    }
    std::unique_ptr<Step> step = load(i, options);
    const std::lock_guard lock(memory->mutex);
    if (memory->steps.size() < kMostKept && step->Bytes() <= memory->left) {
      memory->left -= step->Bytes();
      memory->steps[i] = step->Again();
    }
    return step;
  };
  return source;
}

namespace {

// Steps in flight next to the one that is taken, where one thread opens one.
constexpr uint64_t kMostAhead = 64;

}  // namespace

void ForEachStep(const StepSource& source, const StepOptions& options,
                 const std::function<bool(size_t i, Step& step)>& take) {
  Progress progress(source.step_count);
  size_t i = 0;
  uint64_t bytes = 0;
  // What the latest step was asked, which is what the next ones will mostly be asked.
  std::mutex mutex;
  std::shared_ptr<const StepQuestions> asked = std::make_shared<StepQuestions>();
  const bool ahead = source.small_steps && options.device == nullptr;
  const auto take_one = [&](size_t k, std::unique_ptr<Step> step) {
    progress.Update(k);
    const bool goes_on = take(k, *step);
    bytes = std::max(bytes, step->Bytes());
    auto questions = std::make_shared<const StepQuestions>(step->Asked());
    const std::lock_guard lock(mutex);
    asked = std::move(questions);
    return goes_on;
  };
  const auto open = [&](size_t k) {
    std::unique_ptr<Step> step = source.load(k, options);
    std::shared_ptr<const StepQuestions> before;
    {
      const std::lock_guard lock(mutex);
      before = asked;
    }
    step->MakeReady(*before);
    return step;
  };
  // The first step tells how much memory one takes.
  const size_t alone = ahead ? std::min<size_t>(1, source.step_count) : source.step_count;
  for (; i < alone; ++i) {
    if (source.read_ahead && i + 1 < source.step_count) source.read_ahead(i + 1);
    if (!take_one(i, open(i))) return;
  }
  if (i == source.step_count) return;
  const uint64_t at_once = std::clamp<uint64_t>(options.memory_bytes / (bytes + 1), 1, kMostAhead);
  const size_t first = i;
  ParallelInOrder(
      source.step_count - first,
      [&](size_t k) {
        if (source.read_ahead && first + k + at_once < source.step_count) {
          source.read_ahead(first + k + at_once);
        }
        return open(first + k);
      },
      [&](size_t k, std::unique_ptr<Step> step) { return take_one(first + k, std::move(step)); },
      source.facts.file_bytes, at_once);
}

}  // namespace dlsim::sim
