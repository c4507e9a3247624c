// SPDX-License-Identifier: Apache-2.0
// Which parameters the policies of fairseq, metaseq, fairscale, flax, jmp, MXNet and MindSpore
// refuse, and which they take with a note.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/make_policy.h"

namespace dlsim::sim {
namespace {

using Notes = std::vector<std::string>;

TEST(FairseqJaxParameters, AreRefusedAsTheOriginalsDo) {
  const struct {
    std::string_view policy;
    PolicySettings settings;
    std::string_view refusal;
  } cases[] = {
      {"fairscale", {"growth_factor=1"}, "AssertionError: The growth factor must be > 1.0."},
      {"fairscale", {"backoff_factor=1"}, "AssertionError: The backoff factor must be < 1.0."},
      {"fairscale", {"backoff_factor=0"}, ""},
      {"mindspore-amp",
       {"scale_value=0.5"},
       "ValueError: The argument 'scale_value' must be > 1, but got 0.5"},
      {"mindspore-amp",
       {"scale_value=0"},
       "ValueError: The argument 'scale_value' must be > 1, but got 0"},
      {"mindspore-amp", {"scale_value=1"}, ""},
      {"mindspore-amp",
       {"scale_window=0"},
       "ValueError: The 'scale_window' must be int and must > 0, but got '0' with type 'int'."},
      {"mindspore-amp",
       {"scale_factor=-2"},
       "ValueError: The 'scale_factor' must be int and must > 0, but got '-2' with type 'int'."},
      {"mindspore-cell", {"loss_scale_value=0.5", "scale_window=0", "scale_factor=0.5"}, ""},
      {"jmp", {"loss_scale=0.5", "period=0", "factor=0"}, ""},
      {"flax", {"growth_factor=0.5", "backoff_factor=2"}, ""},
  };
  for (const auto& [policy, settings, refusal] : cases) {
    EXPECT_EQ(Refusal(policy, settings), refusal)
        << policy << " " << testing::PrintToString(settings);
  }
}

TEST(FairseqJaxParameters, HaveTheirTypes) {
  EXPECT_EQ(UsageMessage("flax", {"growth_interval=2^31"}),
            "flax.growth_interval: out of range, expected a number that int32 can hold, got "
            "'2^31'");
  EXPECT_EQ(UsageMessage("metaseq", {"scale_window=9007199254740993"}),
            "metaseq.scale_window: out of range, expected at most 2^53 either way, got "
            "'9007199254740993'");
  EXPECT_EQ(UsageMessage("fairseq", {"threshold=nothing"}),
            "fairseq.threshold: not a number, expected a number such as 2^15, 2e15 or 0x1.8p+3, "
            "got 'nothing'");
  for (const std::string value : {"2.5", "-2^32", "none"}) {
    EXPECT_NE(UsageMessage("jmp", {"period=" + value}), "") << value;
    EXPECT_NE(UsageMessage("mindspore-amp", {"scale_factor=" + value}), "") << value;
    EXPECT_NE(UsageMessage("mindspore-cell", {"scale_window=" + value}), "") << value;
  }
  EXPECT_NE(UsageMessage("mxnet", {"scale_seq_len=1.5"}), "");
  EXPECT_NE(UsageMessage("fairscale", {"growth_interval=x"}), "");
}

TEST(FairseqJaxParameters, NoneHasThreeSpellings) {
  for (const std::string none : {"none", "None", "null"}) {
    for (const NamedValue& value : MakePolicy("flax", {"minimum_scale=" + none}).parameters) {
      if (value.name != "minimum_scale") continue;
      EXPECT_EQ(std::get<std::string>(value.value), "none");
    }
    EXPECT_TRUE(MakePolicy("fairseq", {"threshold=" + none}).notes == MakePolicy("fairseq").notes)
        << none;
  }
}

// Notes that a policy gives whatever its parameters are.
Notes DefaultNotes(std::string_view policy) { return MakePolicy(policy).notes; }

TEST(FairseqJaxParameters, DefaultsNoteOnlyWhatEveryUserShouldKnow) {
  EXPECT_EQ(DefaultNotes("fairseq"),
            Notes{"29 overflows in a row raise FloatingPointError; a threshold above "
                  "min_loss_scale goes on instead"});
  EXPECT_EQ(DefaultNotes("metaseq"),
            Notes{"scale_window is not constant: growth multiplies it by scale_factor, an "
                  "overflow divides it, down to 1"});
  EXPECT_EQ(DefaultNotes("flax"),
            Notes{"the scale grows on clean step 2001, one more than growth_interval"});
  EXPECT_EQ(DefaultNotes("mxnet").size(), 1U);
  EXPECT_EQ(DefaultNotes("mindspore-cell"),
            Notes{"no ceiling: the scale can grow to infinity, and it can never come back"});
  for (const std::string_view policy : {"fairscale", "jmp", "mindspore-amp"}) {
    EXPECT_EQ(DefaultNotes(policy), Notes{}) << policy;
  }
}

TEST(FairseqJaxParameters, SurprisesAreNoted) {
  const struct {
    std::string_view policy;
    PolicySettings settings;
    std::string_view note;
  } cases[] = {
      {"fairseq", {"threshold=1e-4"}, "threshold at or below min_loss_scale is useless"},
      {"fairseq", {"init_scale=128"}, "21 overflows in a row raise FloatingPointError"},
      {"fairseq", {"init_scale=1e-5"}, "the first overflow raises FloatingPointError"},
      {"fairseq", {"threshold=2^16"}, "an overflow raises the scale to threshold"},
      {"fairseq", {"tolerance=1"}, "tolerance 1 compares with >="},
      {"fairseq", {"tolerance=1.5"}, "only by overflows from before its last growth"},
      {"fairseq", {"scale_factor=1"}, "an overflow does not lower the scale"},
      {"fairseq", {"scale_factor=-2"}, "changes its sign"},
      {"fairseq", {"scale_window=0"}, "the first clean step raises ZeroDivisionError"},
      {"fairseq", {"scale_window=-3"}, "acts as its absolute value"},
      {"fairseq", {"scale_window=1"}, "1009 clean steps make the scale infinite"},
      {"metaseq", {"threshold=2^-6"}, "threshold below min_loss_scale has no effect"},
      {"metaseq", {"init_scale=2^-6"}, "an overflow leaves the scale as it is"},
      {"metaseq", {"tolerance=1"}, "tolerance 1 compares with >="},
      {"fairscale", {"growth_interval=0"}, "never grows"},
      {"fairscale", {"init_scale=2^-130"}, "not clamped before the first change"},
      {"fairscale", {"min_scale=8", "max_scale=4"}, "sets the scale to min_scale"},
      {"fairscale", {"growth_interval=1"}, "118 clean steps bring the scale to max_scale, no"},
      {"flax", {"growth_interval=0"}, "every clean step grows"},
      {"flax", {"growth_interval=-1"}, "never grows"},
      {"flax", {"growth_interval=10"}, "grows on clean step 11"},
      {"flax", {"growth_interval=1"}, "224 clean steps bring the scale to the largest float32"},
      {"flax", {"growth_factor=1"}, "growth_factor of 1 or less: the scale never grows"},
      {"flax", {"backoff_factor=1"}, "backoff_factor of 1 or more"},
      {"flax", {"minimum_scale=2^17"}, "an overflow raises it to minimum_scale"},
      {"flax", {"minimum_scale=none"}, "166 overflows in a row make the scale 0"},
      {"jmp", {"period=0"}, "period below 1: the scale never grows"},
      {"jmp", {"min_loss_scale=2"}, "tree_flatten drops it"},
      {"jmp", {"loss_scale=0.5"}, "an overflow raises it to min_loss_scale"},
      {"jmp", {"loss_scale=1e39"}, "infinite as float32"},
      {"jmp", {"factor=1"}, "an overflow does not lower the scale"},
      {"mxnet", {}, "each change acts one step late"},
      {"mxnet", {"scale_seq_len=0"}, "overflows double the scale"},
      {"mxnet", {"scale_seq_len=-1"}, "never grows"},
      {"mxnet", {"loss_scale=2^25"}, "the first growth lowers the scale"},
      {"mxnet", {"max_loss_scale=3e6"}, "12001 clean steps bring the scale to max_loss_scale, no"},
      {"mindspore-amp", {"scale_value=1e39"}, "infinite as float32"},
      {"mindspore-amp", {"scale_factor=1"}, "an overflow does not lower the scale"},
      {"mindspore-cell", {"scale_window=10"}, "1040 clean steps make the scale infinite"},
      {"mindspore-cell", {"loss_scale_value=1e39"}, "infinite as float32"},
      {"mindspore-cell", {"loss_scale_value=0.5"}, "an overflow raises the scale to 1"},
      {"mindspore-cell", {"scale_window=0"}, "scale_window below 1 acts as 1"},
      {"mindspore-cell", {"scale_factor=0.5"}, "an overflow does not lower the scale"},
  };
  for (const auto& [policy, settings, text] : cases) {
    const Notes notes = MakePolicy(policy, settings).notes;
    const auto mentions = [&, text = text](const std::string& note) {
      return note.find(text) != std::string::npos;
    };
    EXPECT_EQ(std::ranges::count_if(notes, mentions), 1)
        << policy << ": " << text << " in " << testing::PrintToString(notes);
  }
}

TEST(FairseqJaxParameters, AreNotNotedWhereTheyDoNoHarm) {
  const struct {
    std::string_view policy;
    PolicySettings settings;
    std::string_view note;
  } cases[] = {
      {"fairseq", {"threshold=2e-4"}, "FloatingPointError"},
      {"fairseq", {"scale_window=100"}, "infinite"},
      {"metaseq", {"init_scale=2^-6", "threshold=2^-5"}, "leaves the scale as it is"},
      {"mxnet", {"scale_seq_len=1"}, "max_loss_scale"},
      {"jmp", {"min_loss_scale=1"}, "tree_flatten"},
      {"flax", {}, "largest float32"},
      {"flax", {}, "make the scale 0"},
  };
  for (const auto& [policy, settings, text] : cases) {
    for (const std::string& note : MakePolicy(policy, settings).notes) {
      EXPECT_EQ(note.find(text), std::string::npos) << policy << ": " << note;
    }
  }
}

}  // namespace
}  // namespace dlsim::sim
