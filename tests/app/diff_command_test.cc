// SPDX-License-Identifier: Apache-2.0
// dlsim diff: a trace and itself, one changed tensor, a float32 run and its twins (docs/diff.md).
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "dlsim/convert.h"
#include "dlsim/format.h"
#include "tests/support/changed_trace.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

using nlohmann::json;

const std::string kCnn = kTraces + "cnn-digits";  // 45 steps, all finite

json DiffJson(const std::string& a, const std::string& b, const Arguments& more = {}) {
  Arguments arguments = {"diff", a, b, "--json", "-"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return SucceedJson(arguments);
}

// What encoding to a format and decoding makes of values.
void Round(const char* format, std::vector<float>& values) {
  ArrayConversion how;
  how.conversion.format = ParseFormat(format).format;
  std::vector<uint16_t> codes(values.size());
  EncodeArray(how, values, codes);
  DecodeArray(how.conversion.format, codes, values);
}

// As docs/diff.md defines the figures, element by element in long double.
struct Reference {
  long double a = 0, b = 0, product = 0, difference = 0;

  Reference(const std::vector<float>& of_a, const std::vector<float>& of_b) {
    for (size_t i = 0; i < of_a.size(); ++i) {
      const long double x = of_a[i], y = of_b[i];
      a += x * x;
      b += y * y;
      product += x * y;
      difference += (y - x) * (y - x);
    }
  }
  double relative_difference() const { return static_cast<double>(std::sqrt(difference / a)); }
  double cosine() const { return static_cast<double>(product / std::sqrt(a * b)); }
  double norm_ratio() const { return static_cast<double>(std::sqrt(b / a)); }
};

void ExpectNear(const json& found, double expected) {
  EXPECT_NEAR(found.get<double>(), expected, 1e-12 * std::fabs(expected));
}

// Columns of the CSV by "step/tensor".
std::map<std::string, std::vector<std::string>> RowsOf(const std::string& csv) {
  std::map<std::string, std::vector<std::string>> rows;
  for (const std::string& line : Lines(csv)) {
    std::vector<std::string> cells;
    std::istringstream stream(line + ",.");
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    rows[cells[0] + "/" + cells[2]] = cells;
  }
  return rows;
}

TEST(DiffCommand, OneScaledTensorIsNamedAndNoOther) {
  const TempDir dir;
  const std::string scaled = "convs.1.weight.grad";
  WriteChanged(kCnn, dir, [&](int64_t step, const std::string& name, std::vector<float>& values) {
    if (step < 7 || name != scaled) return;
    for (float& value : values) value *= 1 + 0x1p-10f;
  });
  const json document = DiffJson(kCnn, dir.path());
  EXPECT_EQ(document["first"]["step"], 7);
  EXPECT_EQ(document["first"]["tensor"], scaled);
  EXPECT_EQ(document["summary"]["tensors_beyond"], 1);
  EXPECT_EQ(document["summary"]["steps_beyond"], 38);
  // Each product is rounded to float32, by 2^-24 at most.
  EXPECT_NEAR(document["summary"]["max_relative_difference"], 0x1p-10, 0x1p-24);
  EXPECT_NEAR(document["summary"]["min_cosine"], 1, 1e-12);
  EXPECT_NEAR(document["summary"]["max_norm_ratio"], 1 + 0x1p-10, 0x1p-24);
  for (const json& tensor : document["tensors"]) {
    EXPECT_EQ(tensor["name"] == scaled, tensor["difference"] > 0) << tensor;
    EXPECT_EQ(tensor["name"] == scaled, !tensor["first_step_beyond"].is_null()) << tensor;
  }
  const std::vector<std::string> lines = Lines(Succeed({"diff", kCnn, dir.path()}));
  EXPECT_EQ(lines[0],
            "They diverge at step 7 in convs.1.weight.grad: relative difference 0.000977; the");
  EXPECT_EQ(lines[1], "  7 steps before are equal.");
  EXPECT_EQ(lines[2], "Above 0.0001: 38 of 45 steps, 1 of 22 tensors.");
  const json within = DiffJson(kCnn, dir.path(), {"--threshold", "0.001"});
  EXPECT_EQ(within["first"], nullptr);
  EXPECT_TRUE(within["lines"][0].get<std::string>().starts_with(
      "No divergence in all 45 steps of 22 tensors: none is above 0.001; the largest relative "
      "difference is "
      "0.000977, at step "));
}

TEST(DiffCommand, ATwinInCb16HasTheFiguresOfTheDefinition) {
  const TempDir dir;
  WriteChanged(kCnn, dir, [](int64_t, const std::string&, std::vector<float>& values) {
    Round("cb16", values);
  });
  const std::string csv = dir.path() + "/diff.csv";
  const json document = DiffJson(kCnn, dir.path(), {"--csv", csv});
  EXPECT_EQ(document["first"]["step"], 0);
  const auto rows = RowsOf(ReadBytes(csv));
  const TraceReader trace = OpenTrace({kCnn}), twin = OpenTrace({dir.path()});
  double largest = 0, smallest_cosine = 1;
  for (size_t i = 0; i < trace.step_count(); ++i) {
    const TraceStep a = trace.Load(i), b = twin.Load(i);
    for (size_t t = 0; t < a.recordings[0].tensors.size(); ++t) {
      const TraceTensor& tensor = a.recordings[0].tensors[t];
      const Reference expected(ValuesOf(a.recordings[0], tensor),
                               ValuesOf(b.recordings[0], b.recordings[0].tensors[t]));
      const std::vector<std::string>& row =
          rows.at(std::to_string(a.step) + "/" + tensor.info->name);
      SCOPED_TRACE(tensor.info->name);
      ExpectNear(std::stod(row[7]), expected.norm_ratio());
      ExpectNear(std::stod(row[8]), expected.relative_difference());
      ExpectNear(std::stod(row[9]), expected.relative_difference());
      ExpectNear(std::stod(row[10]), expected.cosine());
      largest = std::max(largest, expected.relative_difference());
      smallest_cosine = std::min(smallest_cosine, expected.cosine());
    }
  }
  EXPECT_EQ(rows.size(), 45 * 22 + 1u);
  ExpectNear(document["summary"]["max_relative_difference"], largest);
  ExpectNear(document["summary"]["min_cosine"], smallest_cosine);
  EXPECT_GT(largest, 1e-4);  // what CB16 keeps of a significand is visible by default
}

TEST(DiffCommand, PrintsTheSameBytesOnAnyNumberOfThreads) {
  const TempDir a, b;
  std::vector<float> values(200'001);  // several blocks, and a part of one
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i)) * std::ldexp(1.0f, static_cast<int>(i % 40) - 30);
  }
  a.Write("step-1.safetensors", BuildSafetensors({FloatTensor("w.grad", values)}));
  std::vector<float> twin = values;
  Round("bf16", twin);
  b.Write("step-1.safetensors", BuildSafetensors({FloatTensor("w.grad", twin)}));
  const auto run = [&](const char* threads) {
    setenv("OMP_NUM_THREADS", threads, 1);
    const std::string text = Succeed({"diff", a.path(), b.path(), "--json", "-"}) +
                             Succeed({"diff", a.path(), b.path(), "--csv", "-"});
    unsetenv("OMP_NUM_THREADS");
    return text;
  };
  const std::string one = run("1");
  EXPECT_EQ(run("3"), one);
  const Reference expected(values, twin);
  const json tensor = DiffJson(a.path(), b.path())["tensors"][0];
  ExpectNear(tensor["max_relative_difference"], expected.relative_difference());
  ExpectNear(tensor["min_cosine"], expected.cosine());
}

TEST(DiffCommand, MicroStepsAreSummedFirst) {
  const TraceReader trace = OpenTrace({kAccumulated});
  const TempDir summed;
  for (size_t i = 0; i < trace.step_count(); ++i) {
    const TraceStep step = trace.Load(i);
    std::vector<BuiltTensor> tensors;
    for (const TraceTensor& tensor : step.recordings[0].tensors) {
      if (tensor.info->role == Role::kActGrad) continue;
      std::vector<float> sum(tensor.elements, 0.0f);
      for (const Recording& recording : step.recordings) {
        const auto same = std::ranges::find(recording.tensors, tensor.info, &TraceTensor::info);
        const std::vector<float> values = ValuesOf(recording, *same);
        for (size_t k = 0; k < sum.size(); ++k) sum[k] += values[k];
      }
      tensors.push_back({tensor.info->name, "F32", tensor.info->shape, FloatBytes(sum)});
    }
    summed.Write("step-" + std::to_string(step.step) + ".safetensors", BuildSafetensors(tensors));
  }
  const json document = DiffJson(kAccumulated, summed.path(), {"--tensors", "*.weight.grad"});
  EXPECT_EQ(document["summary"]["max_relative_difference"], 0);
  EXPECT_EQ(document["summary"]["steps"], 2);
  EXPECT_EQ(document["summary"]["unmatched_tensors"], 0);
}

TEST(DiffCommand, ProfilesAreComparedByTheirTables) {
  const TempDir dir, changed;
  const auto profile = [&](const std::string& trace, const std::string& name) {
    const std::string path = dir.path() + "/" + name;
    Succeed({"profile", trace, "-o", path, "--quiet"});
    return path;
  };
  const std::string doubled = "fc.weight.grad";
  WriteChanged(kCnn, changed, [&](int64_t step, const std::string& name, auto& values) {
    if (step < 3 || name != doubled) return;
    for (float& value : values) value *= 2;
  });
  const std::string a = profile(kCnn, "a"), b = profile(changed.path(), "b");
  const json same = DiffJson(a, a, {"--threshold", "0"});
  EXPECT_EQ(same["compared"], "histograms");
  EXPECT_EQ(same["first"], nullptr);
  EXPECT_EQ(same["summary"]["max_relative_difference"], nullptr);
  EXPECT_EQ(same["summary"]["max_histogram_distance"], 0);
  const json document = DiffJson(a, b);
  EXPECT_EQ(document["first"]["step"], 3);
  EXPECT_EQ(document["first"]["tensor"], doubled);
  EXPECT_EQ(document["summary"]["max_histogram_distance"], 1);
  EXPECT_EQ(document["summary"]["max_norm_ratio"], 2);
  EXPECT_EQ(document["summary"]["tensors_beyond"], 1);
  // A trace has the figures of its profile.
  json mixed = DiffJson(kCnn, b), reversed = DiffJson(a, changed.path());
  for (const char* key : {"summary", "steps", "tensors", "lines"}) {
    EXPECT_EQ(mixed[key], document[key]) << key;
    EXPECT_EQ(reversed[key], document[key]) << key;
  }
  EXPECT_EQ(DiffJson(kAccumulated, profile(kAccumulated, "micro"))["summary"]["max_difference"], 0);
}

}  // namespace
}  // namespace dlsim
