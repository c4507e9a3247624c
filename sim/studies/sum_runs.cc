// SPDX-License-Identifier: Apache-2.0
#include "sim/studies/sum_runs.h"

#include <fmt/format.h>

#include "dlsim/error.h"
#include "dlsim/format.h"

namespace dlsim::sim {
namespace {

// A precision with the name to print.
struct NamedPrecision {
  std::string name;
  Precision precision;
};

NamedPrecision ParsePrecision(const std::string& text, const std::string& option,
                              Conversion conversion) {
  if (text == "fp32" || text == "float32") return {"fp32", kFloat32Precision};
  const NamedFormat format = ParseFormat(text);
  if (format.format.mantissa_bits > kMaxAccumulatorMantissa) {
    throw UsageError(option, "too many mantissa bits",
                     fmt::format("at most {}, or fp32", kMaxAccumulatorMantissa), Quoted(text));
  }
  conversion.format = format.format;
  return {format.name, FormatPrecision(conversion)};
}

std::string ChunkText(uint64_t chunk_length) {
  return chunk_length == kOneChunk ? "" : fmt::format(" chunk {}", chunk_length);
}

SumRun LevelRun(PrecisionOptLevel level, const std::string& format, uint64_t chunk_length,
                const SumRunsRequest& request) {
  const NamedPrecision named = ParsePrecision(format, "--format", request.conversion);
  if (named.precision.kind != Precision::Kind::kFormat) {
    throw UsageError("--format", "levels need a format of their own", "such as cb16",
                     Quoted(format));
  }
  SumRun run;
  run.level = level;
  run.format = named.name;
  run.parameters.short_format = named.precision.conversion;
  if (chunk_length != kOneChunk) run.parameters.chunk_length = chunk_length;
  run.chunk_length = run.parameters.chunk_length;
  run.name = fmt::format("level {} {}{}", NumberOf(level), run.format, ChunkText(chunk_length));
  return run;
}

SumRun AccumulatorRun(const std::string& accumulator, const std::string& format,
                      uint64_t chunk_length, const SumRunsRequest& request) {
  Conversion of_inputs = request.conversion;
  of_inputs.rounding = Rounding::kNearestEven;
  const NamedPrecision sums = ParsePrecision(accumulator, "--accumulator", request.conversion);
  const NamedPrecision inputs = ParsePrecision(format, "--format", of_inputs);
  const NamedPrecision combiner =
      ParsePrecision(request.combiner.value_or("fp32"), "--combiner", request.conversion);
  SumRun run;
  run.format = inputs.name;
  run.accumulator = sums.name;
  run.combiner = combiner.name;
  run.chunk_length = chunk_length;
  run.options.inputs = inputs.precision;
  run.options.accumulator = sums.precision;
  run.options.combiner = combiner.precision;
  run.options.chunk_length = chunk_length;
  if (request.products) {
    run.options.terms =
        ParsePrecision(*request.products, "--products", request.conversion).precision;
  }
  run.name = run.accumulator + (inputs.name == sums.name ? "" : " of " + inputs.name) +
             ChunkText(chunk_length);
  if (chunk_length != kOneChunk && combiner.name != "fp32") run.name += " in " + combiner.name;
  return run;
}

// Without formats, inputs have that of the accumulator, which float32 is no answer to.
std::vector<std::string> FormatsFor(const std::string& accumulator, const SumRunsRequest& request) {
  if (!request.formats.empty()) return request.formats;
  return {accumulator == "fp32" || accumulator == "float32" ? "cb16" : accumulator};
}

}  // namespace

std::vector<SumRun> MakeSumRuns(const SumRunsRequest& request) {
  if (request.accumulators.empty() && (request.combiner || request.products)) {
    throw UsageError(request.combiner ? "--combiner" : "--products", "levels have their own",
                     "--accumulator beside it");
  }
  std::vector<PrecisionOptLevel> levels = request.levels;
  if (levels.empty() && request.accumulators.empty()) {
    levels = {PrecisionOptLevel::k0, PrecisionOptLevel::k1, PrecisionOptLevel::k2};
  }
  std::vector<uint64_t> chunks = request.chunks;
  if (chunks.empty()) chunks = {kOneChunk};
  const std::vector<std::string> formats =
      request.formats.empty() ? std::vector<std::string>{"cb16"} : request.formats;
  std::vector<SumRun> runs;
  for (const std::string& format : formats) {
    for (const PrecisionOptLevel level : levels) {
      for (const uint64_t chunk : chunks) {
        runs.push_back(LevelRun(level, format, chunk, request));
      }
    }
  }
  for (const std::string& accumulator : request.accumulators) {
    for (const std::string& format : FormatsFor(accumulator, request)) {
      for (const uint64_t chunk : chunks) {
        runs.push_back(AccumulatorRun(accumulator, format, chunk, request));
      }
    }
  }
  return runs;
}

AccumulationOptions OptionsOf(const SumRun& run, Operation operation, const RandomStream& random) {
  if (!run.level) {
    AccumulationOptions options = run.options;
    options.random = random;
    return options;
  }
  LevelParameters parameters = run.parameters;
  parameters.random = random;
  return OptionsOf(*run.level, operation, parameters);
}

int NumberOf(PrecisionOptLevel level) { return static_cast<int>(level); }

}  // namespace dlsim::sim
