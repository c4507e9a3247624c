// SPDX-License-Identifier: Apache-2.0
// dlsim formats: the table of formats, computed from its rows.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "dlsim/format.h"
#include "dlsim/scaled_format.h"
#include "sim/app/commands.h"
#include "sim/base/files.h"
#include "sim/base/rows.h"
#include "sim/base/table.h"

namespace dlsim::sim {
namespace {

struct FormatsOptions {
  std::vector<std::string> names;
  bool json = false;

  void Visit(OptionRows& option) {
    option.Argument("FORMAT", names, "Only these, e.g. cb16, e5m2 or mxfp8 (default: all)",
                    FormatNamesAndScaled());
    option("--json", json, "Print JSON");
  }
};

// A row to print: one of the table, or a format that the user wrote.
struct Listed {
  std::string name, aliases, note;
  Format format;
};

std::vector<Listed> ListFormats(const std::vector<std::string>& names) {
  std::vector<Listed> listed;
  for (const FormatRow& row : kFormats) {
    std::string aliases(row.aliases[0]);
    if (!row.aliases[1].empty()) aliases += ", " + std::string(row.aliases[1]);
    listed.push_back({std::string(row.name), aliases, std::string(row.note), row.format});
  }
  if (names.empty()) return listed;
  std::vector<Listed> chosen;
  for (const std::string& text : names) {
    if (NamesScaledFormat(text)) continue;
    const NamedFormat format = ParseFormat(text);
    Listed wanted = {format.name, "", "user-written, IEEE-like", format.format};
    for (const Listed& row : listed) {
      if (row.name == format.name) wanted = row;
    }
    chosen.push_back(wanted);
  }
  return chosen;
}

std::string Code(const Format& f, uint32_t code) {
  return fmt::format("{:0{}X}", code, (CodeBits(f) + 3) / 4);
}

uint32_t CodeOfOne(const Format& f) { return static_cast<uint32_t>(f.bias) << f.mantissa_bits; }

std::string Value(double value) { return fmt::format("{:.10g}", value); }

// Where rounding to nearest even overflows: from a value on, or only above it if a tie stays
// finite.
std::string OverflowText(const Format& f) {
  const bool tie_overflows = MaxFiniteCode(f) % 2 == 1;
  return (tie_overflows ? "" : ">") + Value(OverflowThreshold(f));
}

std::string FormatsTable(const std::vector<Listed>& formats) {
  std::vector<TableRow> rows = {{"name", "bits", "s/e/m", "bias", "max finite", "min normal",
                                 "min positive", "overflows at", "1.0", "max", "+inf", "NaN"}};
  for (const Listed& row : formats) {
    const Format& f = row.format;
    rows.push_back({row.name, std::to_string(CodeBits(f)),
                    fmt::format("1/{}/{}", f.exponent_bits, f.mantissa_bits),
                    std::to_string(f.bias), Value(MaxFinite(f)), Value(MinNormal(f)),
                    Value(MinPositive(f)), OverflowText(f), Code(f, CodeOfOne(f)),
                    Code(f, MaxFiniteCode(f)), HasInfinity(f) ? Code(f, OverflowCode(f)) : "-",
                    Code(f, QuietNanCode(f))});
  }
  constexpr std::string_view kDispensable[] = {"1.0",        "max",  "+inf", "NaN",
                                               "min normal", "bias", "bits"};
  std::string text = FormatTable(rows, kDispensable) + "\n";
  for (const Listed& row : formats) {
    text += Wrap(fmt::format("  {:<10}  {}{}{}", row.name, row.note,
                             row.aliases.empty() ? "" : "; also ", row.aliases),
                 OutputColumns());
  }
  return text;
}

std::string ScaledTable(const std::vector<NamedScaledFormat>& formats) {
  if (formats.empty()) return "";
  std::vector<TableRow> rows = {
      {"with scales of its own", "forward", "backward", "a scale for", "stored as"}};
  for (const auto& [name, format] : formats) {
    const bool block = format.sharing == Sharing::kBlock;
    rows.push_back({name, ElementName(format.forward), ElementName(format.backward),
                    block ? fmt::format("{} elements", format.block)
                          : "a " + std::string(NameOf(format.sharing)),
                    std::string(NameOf(format.scale))});
  }
  std::string text = FormatTable(rows) + "\n";
  for (const auto& [name, format] : formats) {
    text += Wrap(fmt::format("  {:<10}  {}", name, format.note), OutputColumns());
  }
  return text;
}

inline void Rows(const Listed& of, RowSink& row) {
  row("name", of.name, "canonical");
  row("bits", CodeBits(of.format), "with the sign");
  row("exponent_bits", of.format.exponent_bits, "of them");
  row("mantissa_bits", of.format.mantissa_bits, "that are stored");
  row("bias", of.format.bias, "of the exponent");
  row("max_finite", MaxFinite(of.format), "largest value");
  row("min_normal", MinNormal(of.format), "smallest normal magnitude");
  row("min_positive", MinPositive(of.format), "smallest magnitude");
  row("overflow_threshold", OverflowThreshold(of.format),
      "the smallest magnitude that overflows when rounding to nearest even");
  row("has_infinity", HasInfinity(of.format), "whether it has infinities");
  row("has_subnormals", of.format.denormals == Denormals::kGradual,
      "whether it has subnormal values");
  row("code_one", CodeOfOne(of.format), "code of 1");
  row("code_max", MaxFiniteCode(of.format), "code of the largest value");
  row("code_infinity",
      HasInfinity(of.format) ? std::optional(OverflowCode(of.format)) : std::nullopt,
      "code of infinity, or null");
  row("code_nan", QuietNanCode(of.format), "code of NaN");
  row("note", of.note, "origin and assumptions");
}

void ScaledRows(const NamedScaledFormat& of, RowSink& row) {
  row("name", of.name, "canonical");
  row("forward", ElementName(of.format.forward),
      "format of the elements of weights and activations");
  row("backward", ElementName(of.format.backward), "format of the elements of gradients");
  row("sharing", of.format.sharing, "what has one scale: a `tensor`, a `row` or a `block`");
  row("block", of.format.sharing == Sharing::kBlock ? &of.format.block : nullptr,
      "elements of a block, or null");
  row("scale_type", of.format.scale, "how a scale is stored: `float32`, `e8m0` or `e4m3`");
  row("note", of.format.note, "origin");
}

void FormatsRows(std::span<const Listed> formats, std::span<const NamedScaledFormat> scaled,
                 RowSink& row) {
  row("schema", "dlsim.formats/1");
  row("formats", formats, "one object per format");
  row.List("scaled", "formats with scales of their own", scaled, ScaledRows);
}

int RunFormats(const FormatsOptions& options) {
  const std::vector<Listed> formats = ListFormats(options.names);
  std::vector<NamedScaledFormat> scaled;
  if (options.names.empty()) {
    for (const ScaledFormat& row : kScaledFormats) scaled.push_back({std::string(row.name), row});
  }
  for (const std::string& text : options.names) {
    if (NamesScaledFormat(text)) scaled.push_back(ParseScaledFormat(text));
  }
  if (options.json) {
    OutputFile out("-");
    const bool taken = WriteJson([&](RowSink& row) { FormatsRows(formats, scaled, row); }, out);
    out.Commit();
    if (!taken) return 0;
  }
  const std::string table = formats.empty() ? "" : FormatsTable(formats);
  const bool both = !formats.empty() && !scaled.empty();
  WriteOutput("-", table + (both ? "\n" : "") + ScaledTable(scaled));
  return 0;
}

}  // namespace

void AddFormatsKeys(std::vector<KeyTable>& tables) {
  AddKeys(
      "", [](RowSink& row) { FormatsRows({}, {}, row); }, tables);
}

Command FormatsCommand() {
  return MakeCommand<FormatsOptions>(
      RunFormats, "formats", "Print the table of number formats",
      "Examples:\n  dlsim formats\n  dlsim formats e6m5 cb16 --json");
}

}  // namespace dlsim::sim
