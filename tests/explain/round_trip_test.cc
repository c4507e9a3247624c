// SPDX-License-Identifier: Apache-2.0
// The log of a known run gives back its policy, its parameters, its skips, and brackets that hold:
// runs of real scalers are written in the wording of their stack and explained.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "sim/replay/largest_scale.h"
#include "tests/support/explain_text.h"

namespace dlsim::sim {
namespace {

// A step of the run: the largest gradient decides whether it overflows.
struct RunStep {
  double scale = 0, next = 0, absmax = 0;
  bool skipped = false;
};

// Gradients that wander over some binades around 2^-`binades`, with a spike now and then.
std::vector<RunStep> Train(LossScaler scaler, int count, int binades, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<RunStep> run;
  double level = std::ldexp(1.0, -binades);
  for (int i = 0; i < count; ++i) {
    level *= random() % 2 == 0 ? 1.05 : 1 / 1.05;
    const double absmax = static_cast<float>(random() % 97 == 0 ? level * 8 : level);
    const auto scale = static_cast<float>(scaler.scale());
    RunStep step = {.scale = scaler.scale(), .absmax = absmax};
    step.skipped = ScaleMagnitude({.format = kFp16}, static_cast<float>(absmax), scale).overflows;
    const ScalerDecision decision = scaler.Next({.overflow = step.skipped});
    if (decision.event && decision.event->fatal) break;
    step.next = scaler.scale();
    run.push_back(step);
  }
  return run;
}

std::string AsTable(const std::vector<RunStep>& run) {
  std::string text = "step,scale,skipped\n";
  for (size_t i = 0; i < run.size(); ++i) {
    text += fmt::format("{},{},{}\n", i, run[i].scale, run[i].skipped ? 1 : 0);
  }
  return text;
}

std::string AsDeepSpeed(const std::vector<RunStep>& run) {
  std::string text;
  int skipped = 0;
  for (size_t i = 0; i < run.size(); ++i) {
    const auto used = static_cast<int64_t>(run[i].scale);
    const std::string attempted = fmt::format(
        "[2026-03-08 16:33:21,416] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! "
        "Rank 0 Skipping step. Attempted loss scale: {}, ",
        used);
    if (run[i].skipped && run[i].next == run[i].scale) {
      text += attempted + "but hysteresis is 2. Reducing hysteresis to 1\n";
    } else if (run[i].skipped) {
      text += attempted + fmt::format("reducing to {}\n", static_cast<int64_t>(run[i].next));
    }
    if (run[i].skipped) ++skipped;
    text += fmt::format(
        "[2026-03-08 16:33:29,012] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped={}, "
        "lr=[1e-05], mom=[(0.9, 0.999)]\n",
        i + 1, skipped);
  }
  return text;
}

std::string AsMegatron(const std::vector<RunStep>& run) {
  std::string text;
  for (size_t i = 0; i < run.size(); ++i) {
    text += fmt::format(
        " iteration {:8d}/{:8d} | consumed samples: {:12d} | learning rate: 1.000E-05 | global "
        "batch size:     4 | loss scale: {:.1f} | number of skipped iterations: {:3d} | number of "
        "nan iterations:   0 |\n",
        i + 1, run.size(), 4 * i, run[i].next, run[i].skipped ? 1 : 0);
  }
  return text;
}

std::string AsFairseq(const std::vector<RunStep>& run) {
  std::string text;
  int updates = 0;
  for (const RunStep& step : run) {
    if (step.skipped) {
      text += fmt::format(
          "2021-03-08 12:33:12 | INFO | fairseq.trainer | NOTE: gradient overflow detected, "
          "ignoring gradient, setting loss scale to: {}\n",
          step.next);
      continue;
    }
    text += fmt::format(
        "2021-03-08 12:33:12 | INFO | train_inner | {{\"epoch\": 1, \"num_updates\": \"{}\", "
        "\"gnorm\": \"1.9\", \"loss_scale\": \"{}\"}}\n",
        ++updates, step.next);
  }
  return text;
}

std::string AsMindFormers(const std::vector<RunStep>& run) {
  std::string text;
  for (size_t i = 0; i < run.size(); ++i) {
    text += fmt::format(
        "- INFO - {{ Epoch:[  1/  1], step:[{:5d}/{:5d}], loss: 2.6, overflow cond: {}, "
        "loss_scale: {:.1f}, global_norm: [1.3] }}\n",
        i + 1, run.size(), run[i].skipped ? "True" : "False", run[i].next);
  }
  return text;
}

struct Case {
  std::string policy;
  std::vector<std::string> settings;  // as SetOptions gives them, in the order of names
  std::string (*write)(const std::vector<RunStep>&);
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> kCases = {
      {"torch", {"growth_interval=40", "init_scale=32768"}, AsTable},
      {"torch", {"backoff_factor=0.25", "growth_interval=30"}, AsTable},
      {"torch", {"growth_factor=4", "growth_interval=25"}, AsTable},
      {"apex", {"scale_window=30"}, AsTable},
      {"cerebras-2.10", {"init_scale=16384", "steps_per_increase=40"}, AsTable},
      {"cerebras-tf", {"increment_period=50"}, AsTable},
      {"apex-hysteresis", {"growth_interval=40", "hysteresis=2"}, AsTable},
      {"paddle", {"decr_every_n_nan_or_inf=2", "incr_every_n_steps=30"}, AsTable},
      {"tf-contrib", {"incr_every_n_steps=30"}, AsTable},
      {"metaseq", {"init_scale=1024", "scale_window=8"}, AsFairseq},
      {"fairseq", {"init_scale=128", "scale_window=32"}, AsFairseq},
      {"fairseq", {"init_scale=8192", "scale_window=32", "tolerance=0.05"}, AsFairseq},
      {"deepspeed", {"delayed_shift=2", "init_scale=65536", "scale_window=50"}, AsDeepSpeed},
      {"deepspeed", {"init_scale=65536", "scale_window=50"}, AsDeepSpeed},
      {"deepspeed",
       {"consecutive_hysteresis=true", "delayed_shift=2", "init_scale=65536", "scale_window=50"},
       AsDeepSpeed},
      {"megatron", {"growth_interval=30", "initial_scale=65536"}, AsMegatron},
      {"megatron", {"growth_interval=30", "hysteresis=4", "initial_scale=65536"}, AsMegatron},
      {"mindspore-cell", {"loss_scale_value=65536", "scale_window=30"}, AsMindFormers},
  };
  return kCases;
}

class RoundTrip : public testing::TestWithParam<size_t> {};

TEST_P(RoundTrip, GivesBackThePolicyItsSkipsAndBracketsThatHold) {
  const Case& test = Cases()[GetParam()];
  SCOPED_TRACE(test.policy);
  const PolicyInfo& policy = FindPolicy(test.policy);
  const ConfiguredScaler configured = policy.make(ResolveParameters(policy, test.settings), "fp16");
  const std::vector<RunStep> run = Train(configured.scaler, 900, 0, 7);
  const Explanation explanation = ExplainText(test.write(run));

  // The policy is among those that fit, with these settings unless the log leaves others open.
  const auto& matches = explanation.inference.matches;
  const auto found = std::ranges::find(matches, &policy, &PolicyMatch::policy);
  ASSERT_NE(found, matches.end()) << FormatExplanation(explanation);
  EXPECT_EQ(SetOptions(*found), test.settings);

  ASSERT_EQ(explanation.steps.size(), run.size());
  for (size_t i = 0; i < run.size(); ++i) {
    ASSERT_EQ(explanation.steps[i].overflow, run[i].skipped) << i;
    ASSERT_EQ(explanation.steps[i].scale, run[i].scale) << i;
  }
  for (const GradientBracket& bracket : explanation.brackets) {
    for (size_t i = bracket.first; i <= bracket.last; ++i) {
      if (run[i].skipped) {
        ASSERT_GT(run[i].absmax, bracket.above.value()) << i;
      } else {
        ASSERT_LE(run[i].absmax, bracket.at_most.value()) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, RoundTrip, testing::Range<size_t>(0, Cases().size()));

// A log of every tenth step tells how many steps were skipped, not which.
TEST(SparseLog, GivesBackThePolicyAndTheNumberOfSkips) {
  const PolicyInfo& policy = FindPolicy("megatron");
  const std::vector<std::string> settings = {"growth_interval=30", "initial_scale=65536"};
  const ConfiguredScaler configured = policy.make(ResolveParameters(policy, settings), "fp16");
  const std::vector<RunStep> run = Train(configured.scaler, 400, 0, 3);
  std::string text;
  int skipped = 0, all = 0;
  for (size_t i = 0; i < run.size(); ++i) {
    skipped += run[i].skipped ? 1 : 0;
    all += run[i].skipped ? 1 : 0;
    if ((i + 1) % 10 != 0) continue;
    text += fmt::format(
        " iteration {:8d}/     400 | loss scale: {:.1f} | number of skipped iterations: {:3d} |\n",
        i + 1, run[i].next, skipped);
    skipped = 0;
  }
  const Explanation explanation = ExplainText(text);
  ASSERT_FALSE(explanation.inference.matches.empty());
  EXPECT_EQ(explanation.inference.matches.front().policy->name, "megatron");
  EXPECT_EQ(explanation.skips.skipped, all);
  for (size_t i = 9; i < run.size(); i += 10) {
    if (i + 1 == run.size()) break;
    EXPECT_EQ(explanation.steps[i + 1].scale, run[i].next) << i;
  }
  for (const ParameterEvidence& evidence : explanation.inference.matches.front().evidence) {
    if (evidence.name != "growth_interval") continue;
    EXPECT_LE(evidence.least, 30);
    EXPECT_GE(evidence.most, 30);
  }
}

}  // namespace
}  // namespace dlsim::sim
