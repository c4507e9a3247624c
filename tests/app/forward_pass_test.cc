// SPDX-License-Identifier: Apache-2.0
// Forward tensors in a trace change nothing that is said of its gradients: no policy's path, no
// window of loss scales, no counter.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/special_values.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

using nlohmann::json;

// Values that would end every scale's way if they were gradients.
std::vector<BuiltTensor> ForwardTensors(float step) {
  return {FloatTensor("block.0.act", {1, 66246 + step, -3}),
          FloatTensor("mask.act", {-kInf, 0, std::nanf("")}),
          FloatTensor("block.0/exp.act", {3e38f, 1e-9f}),
          FloatTensor("block.0.weight.value", {1e-6f, -0.5f, 0.25f, 2}),
          FloatTensor("block.1.fwd", {0, 0})};
}

std::string StepFileOf(int64_t step, int64_t micro) {
  return "step-" + std::to_string(step) + (micro < 0 ? "" : ".micro-" + std::to_string(micro)) +
         ".safetensors";
}

// A copy of a trace, and the same with forward tensors between the gradients.
class TwoTraces {
 public:
  explicit TwoTraces(const std::string& source) {
    const TraceReader trace = OpenTrace({source});
    for (size_t i = 0; i < trace.step_count(); ++i) {
      for (const Recording& recording : trace.Load(i).recordings)
        Write(trace.step_number(i), recording);
    }
  }

  std::string plain() const { return plain_.path(); }
  std::string forward() const { return forward_.path(); }

 private:
  void Write(int64_t step, const Recording& recording) {
    std::vector<BuiltTensor> tensors, both = ForwardTensors(static_cast<float>(step));
    for (const TraceTensor& tensor : recording.tensors) {
      const std::string dtype(NameOf(tensor.info->dtype));
      tensors.push_back({tensor.info->name, dtype, tensor.info->shape, TensorBytes(tensor)});
    }
    both.insert(both.begin() + 2, tensors.begin(), tensors.end());
    nlohmann::ordered_json metadata = recording.metadata;
    metadata["grad_scale"] = "4096";
    const std::string file = StepFileOf(step, recording.micro);
    plain_.Write(file, BuildSafetensors(tensors, metadata));
    metadata["autocast_float32"] = "mask.act\nblock.0/exp.act";
    forward_.Write(file, BuildSafetensors(both, metadata));
  }

  TempDir plain_, forward_;
};

bool IsForwardRole(const json& role) { return role == "act" || role == "value"; }

// The runs without what tells of the forward pass.
std::string GradientsOf(json runs) {
  for (json& run : runs) {
    run["summary"].erase("forward");
    run["summary"].erase("values");
    std::erase_if(run["tensors"].get_ref<json::array_t&>(),
                  [](const json& tensor) { return IsForwardRole(tensor["role"]); });
  }
  return runs.dump(1);
}

// What a verdict says of the scales of each format.
std::string WindowsOf(const json& result) {
  std::string text;
  for (const json& format : result["verdict"]["formats"]) {
    for (const char* key :
         {"format", "window", "window_low", "window_high", "scale", "steps", "steps_outside_window",
          "mean_harm", "tensors_at_risk", "noise_tensors", "never_finite_steps"}) {
      text += format.at(key).dump() + "\n";
    }
  }
  return text + result["verdict"]["paths"].dump();
}

std::string Profiled(const std::string& trace, const std::string& file) {
  EXPECT_EQ(RunCommand({"profile", trace, "-o", file}).exit_code, 0);
  return file;
}

void ExpectSameGradients(const std::string& plain, const std::string& forward,
                         const Arguments& more) {
  const auto replayed = [&](const std::string& path) {
    Arguments arguments = {"replay", path, "--json", "-", "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json::parse(RunCommand(arguments).out);
  };
  const json expected = replayed(plain), found = replayed(forward);
  EXPECT_EQ(GradientsOf(found["runs"]), GradientsOf(expected["runs"]));
  EXPECT_EQ(WindowsOf(found), WindowsOf(expected));
}

TEST(ForwardPass, ChangesNoPathAndNoWindow) {
  for (const std::string& source : {kSingle, kAccumulated, kTraces + "cnn-digits"}) {
    SCOPED_TRACE(source);
    const TwoTraces traces(source);
    const Arguments formats = {"--format", "fp16", "--format", "bf16", "--format", "cb16"};
    Arguments all = formats;
    for (const char* policy : {"torch", "cerebras", "deepspeed", "megatron", "openseq2seq-logmax",
                               "adaloss", "static"}) {
      all.insert(all.end(), {"--policy", policy});
    }
    ExpectSameGradients(traces.plain(), traces.forward(), all);
    for (const Arguments& how : std::vector<Arguments>{{"--check", "all"},
                                                       {"--finite-test", "global-norm"},
                                                       {"--max-gradient-norm", "1"},
                                                       {"--accumulate", "sum-first"},
                                                       {"--rounding", "sr", "--seed", "3"}}) {
      SCOPED_TRACE(how[0] + " " + how[1]);
      ExpectSameGradients(traces.plain(), traces.forward(), how);
    }
    const TempDir dir;
    Arguments of_tables = formats;
    for (const char* policy : {"torch", "megatron", "static"}) {
      of_tables.insert(of_tables.end(), {"--policy", policy});
    }
    ExpectSameGradients(Profiled(traces.plain(), dir.path() + "/a.profile"),
                        Profiled(traces.forward(), dir.path() + "/b.profile"), of_tables);
  }
}

TEST(ForwardPass, ChangesNoOtherCommand) {
  const TwoTraces traces(kAccumulated);
  const auto swept = [](const std::string& trace) {
    return Succeed({"sweep", trace, "--policy", "torch", "--csv", "-", "--quiet"});
  };
  EXPECT_EQ(swept(traces.forward()), swept(traces.plain()));
  const auto tuned = [](const std::string& trace) {
    return SucceedJson({"tune", trace, "--json", "-", "--quiet"});
  };
  const json expected = tuned(traces.plain()), found = tuned(traces.forward());
  EXPECT_EQ(WindowsOf(found), WindowsOf(expected));
}

TEST(ForwardPass, MetadataGoThroughProfiles) {
  const TwoTraces traces(kSingle);
  const TempDir dir;
  const std::string profile = Profiled(traces.forward(), dir.path() + "/a.profile");
  for (const std::string& path : {traces.forward(), profile}) {
    const json info = SucceedJson({"info", path, "--json"});
    EXPECT_NE(info["steps"].dump().find("mask.act\\nblock.0/exp.act"), std::string::npos) << path;
  }
}

}  // namespace
}  // namespace dlsim
