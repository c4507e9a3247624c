// SPDX-License-Identifier: Apache-2.0
#include "dlsim/sim/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>
#include <variant>

#include "dlsim/error.h"
#include "sim/base/caller.h"
#include "src/base/first_magnitude.h"
#include "src/base/parallel.h"
#include "src/base/parallel_in_order.h"
#include "src/trace/listed_names.h"

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

// Returns the answer of a table whose values were multiplied by `mantissa` first, about those of
// `recorded`. Nothing where multiplying was not like scaling.
std::optional<TensorStats> AskAt(float mantissa, const TensorTable& table,
                                 const TensorTable& recorded, const Conversion& conversion,
                                 float power) {
  const float smallest = recorded.values.empty() ? 0 : std::fabs(recorded.values.front());
  const bool has_subnormals =
      recorded.binades.empty()
          ? smallest > 0 && smallest < std::numeric_limits<float>::min()
          : recorded.binades.front().exponent < std::numeric_limits<float>::min_exponent - 1;
  if (has_subnormals || table.inf != recorded.inf) return std::nullopt;
  std::optional<TensorStats> stats = Ask(table, conversion, power);
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

  struct ErrorQuestion {
    Format format;
    int log2_scale;

    friend bool operator==(const ErrorQuestion&, const ErrorQuestion&) = default;
  };

  std::mutex mutex;
  List<StepQuestion, StepAnswer> gradients;
  List<Conversion, StepAnswer> forward;
  List<ErrorQuestion, std::vector<double>> errors;
  List<std::monostate, std::vector<GradientSpread>> spreads;
  std::map<float, std::shared_ptr<const PartTables>> by_mantissa;
  bool only_made_ready = false;  // while one thread has the step alone

  // Returns the answer from the list, or makes it, and keeps it there.
  template <class Question, class Answer, class Make>
  std::shared_ptr<const Answer> Find(List<Question, Answer>& list, const Question& question,
                                     const Make& make) {
    {
      const std::lock_guard lock(mutex);
      for (Entry<Question, Answer>& entry : list) {
        if (!(entry.question == question)) continue;
        entry.used = entry.used || !only_made_ready;
        return entry.answer;
      }
    }
    auto answer = std::make_shared<const Answer>(make());
    const std::lock_guard lock(mutex);
    list.push_back({question, answer, !only_made_ready});
    return answer;
  }
};

Step::Step(StepTables tables, std::shared_ptr<const TraceStep> recorded, StepOptions options,
           std::function<void()> check)
    : tables_(std::move(tables)),
      recorded_(std::move(recorded)),
      options_(std::move(options)),
      check_(std::move(check)),
      answers_(std::make_shared<Answers>()) {
  if (recorded_ == nullptr) return;
  MergeMetadata(*recorded_, tables_);
  for (const Recording& recording : recorded_->recordings) {
    refused_.Add(RefusedIn(recording.metadata));
    broken_loss_ = broken_loss_ || IsBrokenLoss(recording.metadata);
  }
}

void Step::Drop(const std::function<bool(const TensorInfo& tensor)>& drops) {
  std::vector<bool> dropped;
  for (const TensorInfo& tensor : tables_.tensors) dropped.push_back(drops(tensor));
  if (std::ranges::find(dropped, true) == dropped.end()) return;
  const auto drop = [&](auto& list) {
    size_t t = 0;
    std::erase_if(list, [&](const auto&) { return dropped[t++]; });
  };
  for (std::vector<TensorTable>& part : tables_.parts) drop(part);
  for (auto& [mantissa, parts] : tables_.by_mantissa) {
    for (std::vector<TensorTable>& part : parts) drop(part);
  }
  drop(tables_.sums);
  for (std::vector<ScaledLoss>& losses : tables_.scaled) drop(losses);
  const auto gradients = dropped.begin() + static_cast<std::ptrdiff_t>(tables_.gradients);
  tables_.gradients -= static_cast<size_t>(std::count(dropped.begin(), gradients, true));
  drop(tables_.tensors);
  if (recorded_ == nullptr) return;
  auto left = std::make_shared<TraceStep>(*recorded_);
  for (Recording& recording : left->recordings) {
    std::erase_if(recording.tensors, [&](const TraceTensor& tensor) {
      return drops({tensor.name, tensor.role, tensor.dtype, tensor.shape});
    });
  }
  recorded_ = std::move(left);
}

std::string Step::Metadata(std::string_view key) const {
  const auto found = tables_.metadata.find(std::string(key));
  return found == tables_.metadata.end() ? "" : found->second;
}

std::set<std::string> Step::Listed(std::string_view key) const {
  return ListedIn(tables_.metadata, key);
}

bool Step::HasBrokenLoss() const { return broken_loss_ || IsBrokenLoss(tables_.metadata); }

RefusedSteps Step::RefusedBefore() const {
  return recorded_ == nullptr ? RefusedIn(tables_.metadata) : refused_;
}

std::vector<TensorStats> Step::Inputs() const {
  std::vector<TensorStats> inputs(tables_.gradients);
  for (const std::vector<TensorTable>& part : tables_.parts) {
    for (size_t t = 0; t < inputs.size(); ++t) inputs[t].Merge(part[t].Inputs());
  }
  return inputs;
}

const TraceStep& Step::Values(const std::string& reason, const std::string& otherwise) const {
  if (recorded_ != nullptr) return *recorded_;
  throw UsageError(
      "step " + std::to_string(number()),
      "only the values of the gradients tell this, which a profile does not hold: " + reason,
      "the trace itself" + otherwise);
}

std::shared_ptr<const PartTables> Step::TablesAt(float scale) const {
  const float mantissa = MantissaOf(scale);
  const auto stored = tables_.by_mantissa.find(mantissa);
  if (stored != tables_.by_mantissa.end()) {
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
  auto made =
      std::make_shared<const PartTables>(TabulateAt(mantissa, tables_.parts, values, options_));
  Check();
  const std::lock_guard lock(answers_->mutex);
  if (answers_->by_mantissa.size() == kMostMantissas) answers_->by_mantissa.clear();
  return answers_->by_mantissa.try_emplace(mantissa, std::move(made)).first->second;
}

void Step::Check() const {
  if (check_) check_();
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

// Whether float32 sums of the gradients or of their squares may be infinite though no element is;
// of what is still scaled, too, if the question asks for such sums.
bool SumsMayOverflow(const StepTables& tables, const StepQuestion& question) {
  const bool saturates = MakeCodecSpec(question.conversion).saturates;
  const bool of_scaled = question.detail && question.detail->sums;
  const double parts = static_cast<double>(tables.parts.size());
  double squares = 0, scaled_squares = 0, sum = 0;
  double smallest = std::numeric_limits<double>::infinity();
  for (size_t t = 0; t < tables.gradients; ++t) {
    const double scale = std::fabs(double{question.ScaleOf(t)});
    smallest = std::fmin(smallest, scale);
    for (const std::vector<TensorTable>& part : tables.parts) {
      if (saturates && part[t].inf > 0) return true;  // becomes the largest value
      squares += parts * part[t].sum_of_squares;
      scaled_squares += parts * part[t].sum_of_squares * scale * scale;
      sum = std::fmax(sum, static_cast<double>(part[t].elements) * double{part[t].absmax} * scale);
    }
  }
  if (question.norm_decides && NormIsOpen(tables, question, squares, saturates, smallest)) {
    return true;
  }
  return of_scaled && !(scaled_squares < kFarBelowOverflow && parts * sum < kFarBelowOverflow);
}

}  // namespace

// Finds what tables tell of a gradient; returns why they do not tell all, if they do not.
const char* Step::AskTables(const StepQuestion& question, const PartTables* at, size_t t,
                            TensorAnswer& answer) const {
  const size_t parts = tables_.parts.size();
  const float scale = question.ScaleOf(t);
  const ScaleParts of_scale(scale);
  if (of_scale.mantissa != 1 && at == nullptr) return WhyNot(NotInTable::kScale);
  const CodecSpec spec = MakeCodecSpec(question.conversion);
  const Rounding rounding = question.conversion.rounding;
  double largest = 0, largest_scaled = 0;
  for (size_t part = 0; part < parts; ++part) {
    const TensorTable& table = tables_.parts[part][t];
    const std::optional<TensorStats> stats =
        at == nullptr
            ? dlsim::Ask(table, question.conversion, scale)
            : AskAt(of_scale.mantissa, (*at)[part][t], table, question.conversion, of_scale.power);
    if (!stats) return WhyNot(NotInTable::kEnds);
    answer.total.Merge(*stats);
    if (parts > 1) answer.parts.push_back(*stats);
    const double of_part = std::fabs(Converted(spec, rounding, table.absmax, scale));
    largest_scaled += of_part;
    largest += of_part / double{scale};
  }
  answer.sum_of_squares = tables_.SumOfSquares(t);
  const bool finite = answer.total.nonfinite_outputs == 0;
  if (parts > 1) {
    // A sum that may overflow float32 is made.
    if (finite && !(largest < kFiniteSum && largest_scaled < kFiniteSum)) {
      return "float32 sums over micro-steps may overflow";
    }
    answer.scaled_sum_finite = finite;
    // An infinite reciprocal makes NaN of zeros.
    answer.unscaled_finite = finite && std::isfinite(1.0f / scale);
    return question.detail ? "the policy or clipping looks at sums over micro-steps" : nullptr;
  }
  const float converted = Converted(spec, rounding, answer.total.absmax, scale);
  const float unscaled = converted * (1.0f / scale);
  answer.unscaled_finite = finite && std::isfinite(unscaled) && std::isfinite(1.0f / scale);
  answer.scaled_sum_finite = finite;
  if (!question.detail) return nullptr;
  const bool counts = !IsDefault(question.detail->edge) || !IsDefault(question.detail->limit);
  if (counts && !(finite && std::isfinite(1.0f / scale))) return WhyNot(NotInTable::kEnds);
  answer.detail.elements = answer.total.elements;
  answer.detail.below_edge = answer.total.elements;
  answer.detail.absmax = answer.unscaled_finite ? unscaled : std::numeric_limits<float>::infinity();
  return nullptr;
}

// Counts the gradients that pass the limits of a detail, where tables told the rest: rounding to
// nearest keeps the order of magnitudes, so that the results from some magnitude on pass.
void Step::CountDetails(const StepQuestion& question, std::span<const uint8_t> told,
                        StepAnswer& answer) const {
  const DetailQuestion& detail = *question.detail;
  const CodecSpec spec = MakeCodecSpec(question.conversion);
  const Rounding rounding = question.conversion.rounding;
  const auto count = [&](const auto& passes) {
    std::vector<uint32_t> first(answer.size());
    for (size_t t = 0; t < first.size(); ++t) {
      const float scale = question.ScaleOf(t);
      first[t] = FirstMagnitudeWithin(0, codec::kInfinityBits, [&](uint32_t magnitude) {
        const float scaled = Converted(spec, rounding, std::bit_cast<float>(magnitude), scale);
        return passes(scaled, scaled * (1.0f / scale));
      });
    }
    return CountGradients(Values("it counts converted gradients by magnitude"),
                          options_.accumulation, first);
  };
  const bool unscaled_limit = detail.limit_domain == ClipDomain::kUnscaled;
  std::vector<uint64_t> above_edge(answer.size()), above_limit = above_edge;
  if (!IsDefault(detail.edge)) {
    above_edge = count([&](float scaled, float) { return !(scaled < detail.edge); });
  }
  if (!IsDefault(detail.limit)) {
    above_limit = count([&](float scaled, float unscaled) {
      return !((unscaled_limit ? unscaled : scaled) <= detail.limit);
    });
  }
  for (size_t t = 0; t < answer.size(); ++t) {
    if (!told[t]) continue;
    answer[t].detail.above_edge = above_edge[t];
    answer[t].detail.below_edge = answer[t].total.elements - above_edge[t];
    answer[t].detail.above_limit = above_limit[t];
  }
  Check();
}

StepAnswer Step::Answer(const StepQuestion& question) const {
  StepAnswer answer(tables_.gradients);
  const auto outside = OutsideTables(question.conversion, ScaleParts(question.scale).power);
  const bool wants_sums = question.converted_norm || SumsMayOverflow(tables_, question);
  std::vector<uint8_t> told(answer.size());
  std::vector<const char*> why(answer.size(), outside ? WhyNot(*outside) : nullptr);
  if (!outside) {
    // Scales of single gradients would each need tables of their own.
    std::shared_ptr<const PartTables> at;
    if (MantissaOf(question.scale) != 1 && question.tensor_scales.empty()) {
      at = TablesAt(question.scale);
    }
    ParallelFor(
        answer.size(),
        [&](size_t t) {
          why[t] = AskTables(question, at.get(), t, answer[t]);
          told[t] = why[t] == nullptr;
        },
        answer.size() * tables_.parts.size() * kLooksPerAnswer);
  }
  std::vector<size_t> open;
  for (size_t t = 0; t < told.size(); ++t) {
    if (!told[t] || wants_sums) open.push_back(t);
  }
  const bool counts =
      question.detail && !(IsDefault(question.detail->edge) && IsDefault(question.detail->limit));
  if (counts && !wants_sums && std::ranges::find(told, 1) != told.end()) {
    CountDetails(question, told, answer);
  }
  if (open.empty()) return answer;
  const char* const reason = why[open.front()];
  Measure(question, open, told,
          Values(reason != nullptr ? reason : "sums of the converted gradients decide"), answer);
  return answer;
}

// Measures some gradients element by element; what tables have told stays.
void Step::Measure(StepQuestion question, std::span<const size_t> gradients,
                   std::span<const uint8_t> told, const TraceStep& values,
                   StepAnswer& answer) const {
  TraceStep some = values;
  if (gradients.size() < answer.size()) {
    std::map<std::string, size_t> wanted;
    for (const size_t t : gradients) wanted[tables_.tensors[t].name] = t;
    for (Recording& recording : some.recordings) {
      std::erase_if(recording.tensors, [&](const TraceTensor& tensor) {
        return IsForward(tensor.role) || !wanted.contains(tensor.name);
      });
    }
    if (!question.tensor_scales.empty()) {
      std::vector<float> scales;
      for (const size_t t : gradients) scales.push_back(question.tensor_scales[t]);
      question.tensor_scales = std::move(scales);
    }
  }
  StepAnswer measured = MeasureStep(some, std::span(&question, 1), options_).front();
  Check();
  for (size_t i = 0; i < gradients.size(); ++i) {
    const size_t t = gradients[i];
    if (told[t]) {
      measured[i].total = answer[t].total;
      measured[i].parts = answer[t].parts;
    }
    answer[t] = std::move(measured[i]);
    answer[t].sum_of_squares = tables_.SumOfSquares(t);
    // The sum of the inputs is the exact one.
    double squares = 0;
    for (size_t part = 0; part < tables_.parts.size(); ++part) {
      const double of_part = tables_.parts[part][t].sum_of_squares;
      if (!answer[t].parts.empty()) answer[t].parts[part].sum_of_squares = of_part;
      squares += of_part;
    }
    answer[t].total.sum_of_squares = squares;
  }
}

std::shared_ptr<const StepAnswer> Step::Ask(const StepQuestion& question) const {
  return answers_->Find(answers_->gradients, question, [&] { return Answer(question); });
}

std::shared_ptr<const std::vector<double>> Step::Errors(const Format& format,
                                                        int log2_scale) const {
  return answers_->Find(answers_->errors, {format, log2_scale}, [&] {
    std::vector<double> errors(tables_.gradients);
    ParallelFor(
        errors.size(),
        [&](size_t t) {
          for (const std::vector<TensorTable>& part : tables_.parts) {
            errors[t] += ErrorSquares(part[t], format, log2_scale);
          }
        },
        errors.size() * tables_.parts.size() * kLooksPerAnswer);
    return errors;
  });
}

std::shared_ptr<const StepAnswer> Step::AskForward(const Conversion& conversion) const {
  return answers_->Find(answers_->forward, conversion, [&] {
    const size_t count = tables_.tensors.size() - tables_.gradients;
    const size_t parts = tables_.parts.size();
    StepAnswer answer(count);
    std::vector<uint8_t> told(count, 1);
    ParallelFor(
        count,
        [&](size_t t) {
          for (size_t part = 0; part < parts; ++part) {
            const auto stats =
                dlsim::Ask(tables_.parts[part][tables_.gradients + t], conversion, 1);
            if (!stats) {
              told[t] = 0;
              return;
            }
            answer[t].total.Merge(*stats);
            if (parts > 1) answer[t].parts.push_back(*stats);
          }
        },
        count * parts * kLooksPerAnswer);
    if (std::ranges::find(told, 0) != told.end()) MeasureForward(conversion, told, answer);
    return answer;
  });
}

// Measures the forward tensors of which tables did not tell, as gradients that carry no scale.
void Step::MeasureForward(const Conversion& conversion, std::span<const uint8_t> told,
                          StepAnswer& answer) const {
  const auto outside = OutsideTables(conversion, 1);
  TraceStep step = Values(WhyNot(outside.value_or(NotInTable::kEnds)));
  std::map<std::string, size_t> wanted;
  for (size_t t = 0; t < told.size(); ++t) {
    if (!told[t]) wanted[forward()[t].name] = t;
  }
  for (Recording& recording : step.recordings) {
    recording.grad_scale = 1;
    std::erase_if(recording.tensors, [&](const TraceTensor& tensor) {
      return !IsForward(tensor.role) || !wanted.contains(tensor.name);
    });
    for (TraceTensor& tensor : recording.tensors) tensor.role = Role::kActGrad;
  }
  StepOptions one_by_one = options_;
  one_by_one.accumulation = Accumulation::kQuantizeThenSum;
  const StepQuestion question = {.conversion = conversion};
  StepAnswer measured = MeasureStep(step, std::span(&question, 1), one_by_one).front();
  Check();
  const std::vector<TensorInfo> order = DescribeTensors(step);
  for (size_t i = 0; i < measured.size(); ++i) {
    TensorAnswer& found = answer[wanted.at(order[i].name)];
    found = std::move(measured[i]);
    if (tables_.parts.size() == 1) found.parts.clear();
  }
}

std::shared_ptr<const std::vector<GradientSpread>> Step::Spreads() const {
  return answers_->Find(answers_->spreads, {}, [&] {
    const std::vector<double> sums =
        SumGradients(Values("the policy looks at the spread of each gradient"));
    Check();
    const std::vector<TensorStats> inputs = Inputs();
    std::vector<GradientSpread> spreads(sums.size());
    for (size_t t = 0; t < sums.size(); ++t) {
      const auto count = static_cast<double>(inputs[t].elements - inputs[t].nonfinite());
      if (count == 0) continue;
      const double mean = sums[t] / count;
      const double variance = inputs[t].sum_of_squares / count - mean * mean;
      spreads[t] = {inputs[t].absmax, std::sqrt(std::max(0.0, variance))};
    }
    return spreads;
  });
}

std::vector<std::vector<ScaledLoss>> Step::MeasureScaled(std::span<const NamedScaledFormat> formats,
                                                         const ScaleOfTensor& scale) const {
  if (recorded_ != nullptr) {
    auto losses = MeasureScaledStep(*recorded_, formats, scale);
    Check();
    return losses;
  }
  std::vector<std::vector<ScaledLoss>> losses;
  for (const NamedScaledFormat& format : formats) {
    const auto held = std::ranges::find(options_.scaled, format.name, &NamedScaledFormat::name);
    if (held == options_.scaled.end()) {
      throw InputError(format.name, "the profile does not hold what is lost in this format",
                       "a profile with --scaled-format " + format.name);
    }
    losses.push_back(tables_.scaled[static_cast<size_t>(held - options_.scaled.begin())]);
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
  for (const std::vector<TensorTable>& part : tables_.parts) add(part);
  add(tables_.sums);
  for (const auto& [mantissa, parts] : tables_.by_mantissa) {
    for (const std::vector<TensorTable>& part : parts) add(part);
  }
  const uint64_t answers = answers_->gradients.size() + answers_->forward.size();
  return bytes + tables_.tensors.size() * (sizeof(TensorInfo) + answers * sizeof(TensorAnswer) +
                                           answers_->errors.size() * sizeof(double));
}

void Step::AskAsBefore(const Step& before) const {
  std::vector<StepQuestion> gradients;
  std::vector<Conversion> forward;
  std::vector<Answers::ErrorQuestion> errors;
  {
    const auto copy_used = [](const auto& list, auto& questions) {
      for (const auto& entry : list) {
        if (entry.used) questions.push_back(entry.question);
      }
    };
    const std::lock_guard lock(before.answers_->mutex);
    copy_used(before.answers_->gradients, gradients);
    copy_used(before.answers_->forward, forward);
    copy_used(before.answers_->errors, errors);
  }
  // What tables do not tell is refused when it is asked.
  const auto make_ready = [&](const auto& ask) {
    try {
      ask();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage) throw;
    }
  };
  answers_->only_made_ready = true;
  for (const StepQuestion& question : gradients) {
    if (question.tensor_scales.empty()) make_ready([&] { Ask(question); });
  }
  for (const Conversion& conversion : forward) make_ready([&] { AskForward(conversion); });
  for (const auto& [format, log2_scale] : errors) Errors(format, log2_scale);
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

namespace {

// Steps in flight next to the one that is taken, where one thread opens one.
constexpr uint64_t kMostAhead = 64;

}  // namespace

void ForEachStep(const StepSource& source, const StepOptions& options,
                 const std::function<bool(size_t i, Step& step)>& take) {
  size_t i = 0;
  uint64_t bytes = 0;
  // What a step was asked, which is what the next ones will mostly be asked.
  std::mutex mutex;
  std::shared_ptr<const Step> latest;
  const bool ahead = source.small_steps && options.device == nullptr;
  const auto take_one = [&](size_t k, std::unique_ptr<Step> step) {
    CurrentCaller().CheckCanceled();
    const bool goes_on = take(k, *step);
    bytes = std::max(bytes, step->Bytes());
    const std::lock_guard lock(mutex);
    if (ahead) latest = std::move(step);
    return goes_on;
  };
  // The first step tells how much memory one takes.
  const size_t alone = ahead ? std::min<size_t>(1, source.step_count) : source.step_count;
  for (; i < alone; ++i) {
    if (source.read_ahead && i + 1 < source.step_count) source.read_ahead(i + 1);
    if (!take_one(i, source.load(i, options))) return;
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
        std::unique_ptr<Step> step = source.load(first + k, options);
        std::shared_ptr<const Step> before;
        {
          const std::lock_guard lock(mutex);
          before = latest;
        }
        step->AskAsBefore(*before);
        return step;
      },
      [&](size_t k, std::unique_ptr<Step> step) { return take_one(first + k, std::move(step)); },
      source.facts.file_bytes, at_once);
}

}  // namespace dlsim::sim
