// SPDX-License-Identifier: Apache-2.0
// Which surprise of a stack each policy notes, by the parameters that hit it. docs/policies.md has
// the most common ones, the pages of docs/policies the others.
#include <gtest/gtest.h>

#include <set>

#include "tests/support/make_policy.h"

namespace dlsim::sim {
namespace {

struct Surprise {
  std::string_view policy;
  PolicySettings settings;
  std::string_view format;
  std::string_view fragment;
};

void ExpectNoted(const std::vector<Surprise>& surprises) {
  for (const auto& [policy, settings, format, fragment] : surprises) {
    const ConfiguredScaler hit = MakePolicy(policy, settings, format);
    const std::string context = std::string(policy) + " " + testing::PrintToString(settings);
    EXPECT_TRUE(NotesMention(hit, fragment))
        << context << ": " << fragment << " in " << testing::PrintToString(hit.notes);
    if (settings.empty() && format.empty()) continue;
    EXPECT_FALSE(NotesMention(MakePolicy(policy), fragment)) << context << ": " << fragment;
  }
}

TEST(PolicyNotes, GrowthOffByOne) {
  ExpectNoted({
      {"cerebras", {}, "", "doubles on step 2001 since its last change"},
      {"cerebras-2.10", {"steps_per_increase=10"}, "", "step 11 since its last change"},
      {"cerebras-2.10", {"steps_per_increase=2^62"}, "", "step 4611686018427387905"},
      {"flax", {"growth_interval=10"}, "", "grows on clean step 11"},
      {"mxnet", {}, "", "each change acts one step late"},
      {"deepspeed-fp16-optimizer", {}, "", "first grows after scale_window + 1 clean steps"},
  });
}

TEST(PolicyNotes, Tolerance) {
  ExpectNoted({
      {"cerebras-tf", {}, "", "a first overflow in step 20 since the last change or later"},
      {"cerebras-tf", {"overflow_tolerance=0.25"}, "", "a first overflow in step 4 since"},
      {"cerebras-2.10", {"overflow_tolerance=0.5"}, "", "a first overflow in step 2 since"},
      {"cerebras-2.10", {"overflow_tolerance=1"}, "", "overflows never lower the scale"},
      {"cerebras-tf", {"overflow_tolerance=1"}, "", "overflows never lower the scale"},
      {"fairseq", {"tolerance=1"}, "", "compares with >=: the scale still falls"},
      {"metaseq", {"tolerance=1"}, "", "compares with >=: the scale still falls"},
      {"fairseq", {"tolerance=1.5"}, "", "tolerance above 1"},
  });
  // With so short a period no step is late enough.
  EXPECT_TRUE(MakePolicy("cerebras-tf", {"increment_period=19"}).notes.empty());
  EXPECT_TRUE(MakePolicy("cerebras-tf", {"overflow_tolerance=0"}).notes.empty());
}

TEST(PolicyNotes, FirstScaleAndLimitsThatDisagree) {
  ExpectNoted({
      {"cerebras-2.10", {"init_scale=1e-6"}, "", "the first step raises ApplianceNanError"},
      {"cerebras-2.10", {"init_scale=2^16"}, "", "starts at max_loss_scale"},
      {"cerebras-2.10", {"min_loss_scale=2", "max_loss_scale=1"}, "", "every step raises"},
      {"cerebras-tf", {"initial_loss_scale=2^16"}, "", "the first step uses it as it is"},
      {"cerebras-tf", {"initial_loss_scale=0"}, "", "the first step uses it as it is"},
      {"cerebras-tf", {"min_loss_scale=2", "max_loss_scale=1"}, "", "is min_loss_scale after"},
      {"fairscale", {"init_scale=2^-130"}, "", "not clamped before the first change"},
      {"fairscale", {"min_scale=8", "max_scale=4"}, "", "min_scale above max_scale"},
      {"apex", {"init_scale=2^25"}, "", "starts at max_loss_scale"},
      {"apex", {"min_loss_scale=2^17"}, "", "the first overflow raises the scale"},
      {"mxnet", {"loss_scale=2^25"}, "", "the first growth lowers the scale"},
      {"deepspeed", {"init_scale=0.5"}, "", "the first decrease raises the scale"},
      {"deepspeed-fp16-optimizer", {"init_scale=0.5"}, "", "first overflow raises the scale"},
      {"fairseq", {"threshold=2^16"}, "", "an overflow raises the scale to threshold"},
      {"flax", {"minimum_scale=2^17"}, "", "an overflow raises it to minimum_scale"},
      {"jmp", {"loss_scale=0.5"}, "", "an overflow raises it to min_loss_scale"},
      {"mindspore-cell", {"loss_scale_value=0.5"}, "", "an overflow raises the scale to 1"},
      {"apex-fp16-utils", {"init_scale=0.5"}, "", "raises the scale to 1"},
      {"tf", {"initial_loss_scale=0.5"}, "", "raises the scale to 1"},
      {"keras2", {"initial_loss_scale=0.5"}, "", "raises the scale to 1"},
      {"tf-contrib", {"init_loss_scale=0.5"}, "", "raises the scale to 1"},
      {"paddle-static", {"init_loss_scaling=0.5"}, "", "raises the scale to 1"},
      {"metaseq", {"init_scale=2^-6"}, "", "an overflow leaves the scale as it is"},
      {"openseq2seq-backoff", {"scale_min=8", "scale_max=4"}, "", "sets the scale to scale_min"},
      {"openseq2seq-logmax", {"scale_min=8", "scale_max=4"}, "", "the scale stays at scale_min"},
      {"fairseq", {"threshold=1e-4"}, "", "threshold at or below min_loss_scale is useless"},
      {"metaseq", {"threshold=2^-6"}, "", "threshold below min_loss_scale has no effect"},
  });
}

TEST(PolicyNotes, WhatZeroMeans) {
  ExpectNoted({
      {"cerebras-2.10", {"init_scale=0"}, "", "init_scale 0 means the default"},
      {"cerebras-2.10", {"steps_per_increase=0"}, "", "steps_per_increase 0 means the default"},
      {"cerebras-2.10", {"loss_scale=0"}, "", "loss_scale 0 means the default, 1"},
      {"apex", {"min_loss_scale=0"}, "", "min_loss_scale 0 means none"},
      {"colossalai", {"min_scale=0"}, "", "min_scale 0 means none"},
      {"colossalai", {"max_scale=0"}, "", "max_scale 0 means none"},
      {"deepspeed", {"min_scale=0"}, "", "no error before the scale has underflowed to 0"},
      {"fairseq", {"min_loss_scale=0"}, "", "no error before the scale has underflowed to 0"},
      {"fairseq", {"min_loss_scale=0"}, "", "1090 overflows in a row raise FloatingPointError"},
      {"fairseq", {"init_scale=0"}, "", "not as the default: the scale stays 0"},
      {"metaseq", {"min_loss_scale=0"}, "", "the scale can reach 0"},
      {"torch", {"init_scale=0"}, "", "not as the default: the scale stays 0"},
      {"flax", {"scale=1e-50", "minimum_scale=none"}, "", "the scale stays 0"},
      {"keras", {"initial_scale=0"}, "", "not as the default: the scale stays 0"},
      {"paddle", {"init_loss_scaling=0"}, "", "not as the default: the scale stays 0"},
  });
}

TEST(PolicyNotes, HysteresisKinds) {
  ExpectNoted({
      {"apex-hysteresis", {"hysteresis=3"}, "", "one clean step restores it"},
      {"apex-hysteresis", {"hysteresis=0"}, "", "hysteresis below 1 acts as 1"},
      {"megatron", {}, "", "restored only when the scale grows"},
      {"colossalai", {}, "", "restored only when the scale grows"},
      {"colossalai", {"hysteresis=0"}, "", "hysteresis 0 acts as 1"},
      {"deepspeed", {"hysteresis=2"}, "", "restored only when the scale grows"},
      {"deepspeed",
       {"hysteresis=2", "consecutive_hysteresis=true"},
       "",
       "counts overflows in a row: one clean step restores it"},
      {"deepspeed", {"hysteresis=0"}, "", "overflows never lower the scale"},
      {"paddle", {"decr_every_n_nan_or_inf=2"}, "", "a clean step clears the count"},
      {"paddle", {"decr_every_n_nan_or_inf=0"}, "", "the scale never shrinks"},
      {"tf-contrib", {}, "", "overflows add up across clean steps"},
      {"tf-contrib", {"decr_every_n_nan_or_inf=0"}, "", "below 1 acts as 1"},
  });
}

TEST(PolicyNotes, InfinityAndZero) {
  ExpectNoted({
      {"torch-1.13", {}, "", "no ceiling: the scale can grow to infinity"},
      {"torch-1.13", {"growth_interval=10"}, "", "1120 clean steps make the scale infinite"},
      {"megatron", {}, "", "96000 clean steps make the scale infinite"},
      {"megatron", {"growth_interval=2000"}, "", "no ceiling: the scale can grow to infinity"},
      {"mindspore-cell", {}, "", "no ceiling: the scale can grow to infinity"},
      {"mindspore-cell", {"scale_window=10"}, "", "1040 clean steps make the scale infinite"},
      {"keras", {}, "", "no floor and no ceiling"},
      {"paddle", {}, "", "no ceiling and no floor"},
      {"paddle", {"incr_every_n_steps=0"}, "", "no floor: the scale can fall to 0"},
      {"colossalai", {}, "", "the scale can reach 0 or grow to infinity"},
      {"torch", {}, "", "166 overflows in a row make the scale 0"},
      {"torch", {"init_scale=1"}, "", "150 overflows in a row make the scale 0"},
      {"torch-1.13", {}, "", "166 overflows in a row make the scale 0"},
      {"apex-hysteresis", {"hysteresis=2"}, "", "167 overflows in a row make the scale 0"},
      {"flax", {"minimum_scale=none"}, "", "166 overflows in a row make the scale 0"},
      {"apex", {}, "", "the step after that raises ZeroDivisionError"},
      {"flax", {"growth_interval=1"}, "", "bring the scale to the largest float32"},
      {"megatron", {"initial_scale=1e39"}, "", "infinite as float32"},
      {"paddle-static", {"init_loss_scaling=1e39"}, "", "infinite as float32"},
  });
  EXPECT_FALSE(NotesMention(MakePolicy("torch"), "infinit"));
  EXPECT_FALSE(NotesMention(MakePolicy("flax", {"scale=0"}), "the scale stays 0"));
  EXPECT_FALSE(NotesMention(MakePolicy("mindspore-cell", {"scale_factor=1"}), "infinit"));
}

TEST(PolicyNotes, IntervalsOfZero) {
  ExpectNoted({
      {"cerebras-2.10", {"steps_per_increase=-1"}, "", "every step doubles the scale"},
      {"cerebras-tf", {"increment_period=0"}, "", "grows by factors of 3 and more"},
      {"torch", {"growth_interval=0"}, "", "the scale never grows"},
      {"torch-1.13", {"growth_interval=9223372036854775807"}, "", "acts as -1"},
      {"apex-hysteresis", {"growth_interval=0"}, "", "the scale never grows"},
      {"fairseq", {"scale_window=0"}, "", "the first clean step raises ZeroDivisionError"},
      {"metaseq", {"scale_window=0"}, "", "the first clean step raises ZeroDivisionError"},
      {"fairscale", {"growth_interval=0"}, "", "the scale never grows"},
      {"flax", {"growth_interval=0"}, "", "every clean step grows the scale"},
      {"jmp", {"period=0"}, "", "never grows"},
      {"mxnet", {"scale_seq_len=0"}, "", "overflows double the scale"},
      {"mindspore-cell", {"scale_window=0"}, "", "scale_window below 1 acts as 1"},
      {"apex", {"scale_window=0"}, "", "doubled back at once"},
      {"apex-fp16-utils", {"scale_window=0"}, "", "first clean step raises ZeroDivisionError"},
      {"deepspeed", {"scale_window=0"}, "", "second clean step in a row raises"},
      {"deepspeed-0.16", {"scale_window=0"}, "", "first clean step raises ZeroDivisionError"},
      {"deepspeed-fp16-optimizer", {"scale_window=0"}, "", "second clean step in a row raises"},
      {"colossalai", {"growth_interval=0"}, "", "the scale never grows"},
      {"tf", {"increment_period=0"}, "", "grows on every step"},
      {"keras2", {"growth_steps=0"}, "", "grows on every step"},
      {"keras", {"dynamic_growth_steps=0"}, "", "the scale never grows"},
      {"tf-contrib", {"incr_every_n_steps=0"}, "", "grows on every clean step"},
      {"paddle", {"incr_every_n_steps=0"}, "", "the scale never grows"},
      {"paddle-static", {"incr_every_n_steps=0"}, "", "the scale never grows"},
      {"openseq2seq-backoff", {"step_window=0"}, "", "divides by zero"},
  });
}

TEST(PolicyNotes, DocumentedNumbersAndTypesWithoutScaling) {
  ExpectNoted({
      {"cerebras", {}, "", "misprints of 2^15 and 2^-14"},
      {"cerebras", {}, "", "refuses min_loss_scale below 2^-14"},
      {"cerebras",
       {"init_scale=1", "max_loss_scale=4", "min_loss_scale=1e-9"},
       "",
       "below 2^-14; run as asked"},
      {"cerebras-2.10", {"max_loss_scale=2e15"}, "", "misprints of 2^15 and 2^-14"},
      {"cerebras-tf", {"max_loss_scale=2e15"}, "", "misprints of 2^15 and 2^-14"},
      {"cerebras-2.10", {"fp16_type=bfloat16"}, "", "no scaler at all for bfloat16"},
      {"cerebras-2.10", {}, "bf16", "no scaler at all for bfloat16"},
      {"cerebras-2.10", {"loss_scale=8"}, "bf16", "no scaler at all for bfloat16"},
      {"cerebras-2.10", {"loss_scale=8"}, "cb16", "refuses a static loss scale with cbfloat16"},
      {"deepspeed", {"loss_scale=8"}, "", "overflows skip their step"},
      {"deepspeed-fp16-optimizer", {"loss_scale=8"}, "", "overflows skip their step"},
      {"paddle", {"use_dynamic_loss_scaling=false"}, "", "overflows skip their step"},
  });
}

TEST(PolicyNotes, WhatEveryUserOfAStackShouldKnow) {
  ExpectNoted({
      {"tf", {}, "", "the floor of 1 is fixed"},
      {"keras2", {}, "", "the floor of 1 is fixed"},
      {"tf-contrib", {}, "", "the floor of 1 is fixed"},
      {"paddle-static", {}, "", "the floor of 1 is fixed"},
      {"fairseq", {}, "", "29 overflows in a row raise FloatingPointError"},
      {"metaseq", {}, "", "scale_window is not constant"},
      {"deepspeed", {}, "", "these are the defaults of the class before 0.17.1"},
      {"deepspeed-0.16", {}, "", "these are the defaults of the class; DeepSpeed's JSON"},
      {"deepspeed", {"scale_factor=3"}, "", "not an argument of the class since 0.17.1"},
      {"openseq2seq-backoff", {}, "", "the scale starts at scale_max"},
      {"openseq2seq-logmax", {}, "", "one holds the scale at scale_min for very long"},
      {"popart", {}, "", "every update halves or doubles the scale"},
      {"fairseq2", {}, "", "fairseq2's recipes start at 128"},
      {"fairseq2", {"scale_window=2^40"}, "", "scale_window 1099511627776 does not fit"},
      {"icefall", {}, "", "the training loop doubles a low scale"},
      {"guided-diffusion", {}, "", "there is no floor"},
      {"bmtrain", {}, "", "one loss_scale_factor beyond them"},
  });
}

TEST(PolicyNotes, DefaultsGiveAtMostTwoNotesOfOneLine) {
  for (const PolicyInfo& policy : Policies()) {
    for (const std::string_view format : {"", "fp16", "bf16", "cb16", "e5m2"}) {
      const std::vector<std::string> notes = policy.make({}, format).notes;
      EXPECT_LE(notes.size(), format == "bf16" ? 3u : 2u) << policy.name;
      EXPECT_EQ(std::set(notes.begin(), notes.end()).size(), notes.size()) << policy.name;
      for (const std::string& note : notes) {
        EXPECT_FALSE(note.empty() || note.find('\n') != note.npos || note.size() > 200)
            << policy.name << ": " << note;
      }
    }
  }
}

}  // namespace
}  // namespace dlsim::sim
