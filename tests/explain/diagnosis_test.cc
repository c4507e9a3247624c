// SPDX-License-Identifier: Apache-2.0
// Forward or backward: what the losses of a log say of its first skipped step, and where they say
// nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/explain_text.h"

namespace dlsim::sim {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr FailureSide kForward = FailureSide::kForward, kBackward = FailureSide::kBackward,
                      kUnknown = FailureSide::kUnknown;

struct LoggedRun {
  std::string log;
  FailureSide side;
  std::string evidence;  // a part of it
};

void ExpectAll(const std::vector<LoggedRun>& cases) {
  for (const LoggedRun& expected : cases) {
    SCOPED_TRACE(expected.log);
    const Explanation found = ExplainText(expected.log);
    EXPECT_EQ(NameOf(found.diagnosis.side), NameOf(expected.side)) << found.diagnosis.evidence;
    EXPECT_THAT(found.diagnosis.evidence, HasSubstr(expected.evidence));
    const std::string report = FormatExplanation(found);
    if (expected.evidence == "the log shows no skipped step") {
      EXPECT_THAT(report, testing::Not(HasSubstr("diagnosis:")));
    } else {
      EXPECT_THAT(report, StartsWith("diagnosis: " + std::string(NameOf(expected.side)) + ": "));
    }
  }
}

std::string Apex(const std::string& scale) {
  return "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to " + scale + "\n";
}

std::string DeepSpeed(const std::string& rank, const std::string& used, const std::string& next) {
  return "[deepspeed] OVERFLOW! Rank " + rank + " Skipping step. Attempted loss scale: " + used +
         ", reducing to " + next + "\n";
}

std::string Step(int step, const std::string& loss) {
  return "step " + std::to_string(step) + ": loss " + loss + ", time 12.3ms\n";
}

std::string Scaled(int step, const std::string& loss, const std::string& scale) {
  return "iter " + std::to_string(step) + ": loss " + loss + ", grad_scale " + scale + "\n";
}

std::string Megatron(const std::string& iteration, const std::string& loss,
                     const std::string& scale, const std::string& skipped,
                     const std::string& nans) {
  return " iteration " + iteration + "/ 9000 | elapsed time per iteration (ms): 1.0 | " +
         (loss.empty() ? "" : "lm loss: " + loss + " | ") + "loss scale: " + scale +
         " | number of skipped iterations:   " + skipped +
         (nans.empty() ? "" : " | number of nan iterations:   " + nans) + " |\n";
}

std::string Swin(int step, const std::string& loss, const std::string& mean,
                 const std::string& scale) {
  return "INFO Train: [0/300][" + std::to_string(step) + "/1000]\teta 0:01:24 lr 0.0008\t loss " +
         loss + " (" + mean + ")\tgrad_norm 4.1 (inf)\tloss_scale " + scale + " (30000.0)\n";
}

TEST(Diagnosis, OfMessagesAndTheLossOfEachStep) {
  ExpectAll({
      {Step(0, "2.31") + Apex("32768.0") + Step(1, "nan") + Apex("16384.0") + Step(2, "nan"),
       kForward, "the loss is nan at the first skipped step (line 3): consistent with an overflow"},
      {Apex("32768.0") + Step(0, "inf") + Step(1, "2.3"), kForward, "the loss is inf"},
      {Apex("32768.0") + Step(0, "2.31") + Apex("16384.0") + Step(1, "2.29"), kBackward,
       "the loss is finite (2.31) at the first skipped step (line 2): consistent with an overflow "
       "in the backward pass"},
      // Printed before the message of its own step.
      {Step(0, "2.31") + Step(1, "nan") + Apex("32768.0") + Step(2, "nan") + Apex("16384.0"),
       kForward, "(line 2)"},
      {Step(6, "2.31") + Apex("32768.0") + Step(7, "2.30") + Step(8, "2.29"), kBackward, "(2.3)"},
      // A loss that is rounded to 0 is finite; PyTorch prints a tensor so.
      {Step(6, "0.000") + Apex("32768.0") + Step(7, "0.000"), kBackward, "the loss is finite (0)"},
      {"step: 1, loss: tensor(2.1, device='cuda:0')\n" + Apex("32768.0") +
           "step: 2, loss: tensor(nan, device='cuda:0')\n",
       kForward, "(line 3)"},
      {DeepSpeed("0", "65536", "32768") + "step: 1 | train loss: 2.4\n", kBackward, "(2.4)"},
      // Without numbers of steps only a loss that is not finite speaks.
      {"loss: 2.3\n" + Apex("32768.0") + "loss: NaN\n", kForward, "the loss is nan"},
      {"loss: 2.3\n" + Apex("32768.0") + "loss: 2.2\n", kUnknown, "the loss of each step"},
      {Step(10, "2.3") + Apex("32768.0") + Step(20, "2.2"), kUnknown, "the loss of each step"},
      {Step(10, "2.3") + Apex("32768.0") + Apex("16384.0") + Step(20, "nan"), kUnknown,
       "to which of 2 skipped steps"},
      {Apex("32768.0") + Step(500, "2.2"), kUnknown, "the loss of each step"},
      {Step(3, "2.2") + Apex("32768.0"), kUnknown, "no loss after the first skipped step"},
      {Apex("32768.0"), kUnknown, "the log prints no loss"},
  });
}

TEST(Diagnosis, OtherLossesThanThatOfTheTrainingSayNothing) {
  for (const std::string line :
       {"step 1: valid loss 2.2\n", "step 1: moe loss 0.1\n", "step 1: average loss 2.2\n",
        "step 1: val_loss=2.2\n", "step 1: loss information\n", "Eval step 1 loss 2.2\n"}) {
    ExpectAll({{Apex("32768.0") + line, kUnknown, "the log prints no loss"}});
  }
}

// A rank may have a loss that is not finite while another prints a finite one.
TEST(Diagnosis, OfSeveralRanksOnlyALossThatIsNotFiniteSpeaks) {
  const std::string both = DeepSpeed("0", "65536", "32768") + DeepSpeed("1", "65536", "32768");
  ExpectAll({{both + Step(0, "2.3"), kUnknown, "several ranks"},
             {both + Step(0, "nan"), kForward, "the loss is nan"}});
}

TEST(Diagnosis, OfRecordsWithALossAndAScale) {
  ExpectAll({
      {Scaled(0, "2.3", "65536") + Scaled(1, "2.2", "65536") + Scaled(2, "2.2", "32768"), kBackward,
       "the loss is finite"},
      // The scale is that after the step, or the one that it used.
      {Scaled(0, "2.3", "65536") + Scaled(1, "nan", "32768") + Scaled(2, "nan", "16384"), kForward,
       "the loss is nan"},
      {Scaled(0, "2.3", "65536") + Scaled(1, "nan", "65536") + Scaled(2, "2.2", "32768"), kForward,
       "(line 2)"},
      {Scaled(0, "2.3", "65536") + Scaled(10, "2.2", "32768"), kUnknown, "the loss of each step"},
      {"{\"step\": 1, \"loss\": 2.5, \"scale\": 65536, \"skipped\": false}\n"
       "{\"step\": 2, \"loss\": NaN, \"scale\": 65536, \"skipped\": true}\n",
       kForward, "(line 2)"},
      {"step,loss,loss_scale,skipped\n1,2.5,65536,0\n2,2.4,65536,1\n3,2.3,32768,0\n", kBackward,
       "(2.4)"},
      {"step,loss,loss_scale,skipped\n1,2.5,65536,0\n2,nan,65536,1\n3,,32768,0\n", kForward,
       "(line 3)"},
      {"step,train/loss,loss_scale,skipped\n1,2.5,65536,0\n2,2.4,65536,1\n", kUnknown, "no loss"},
      {"Epoch:[  1/  1], step:[    1/  100], loss: 2.2, overflow cond: True, loss_scale: 4096.0\n",
       kBackward, "(2.2)"},
      {"step: 1, outputs are (Tensor(shape=[], dtype=Float32, value= nan), Tensor(shape=[], "
       "dtype=Bool, value= True), Tensor(shape=[], dtype=Float32, value= 65536))\n"
       "step: 2, outputs are (Tensor(shape=[], dtype=Float32, value= nan), Tensor(shape=[], "
       "dtype=Bool, value= True), Tensor(shape=[], dtype=Float32, value= 32768))\n",
       kForward, "the loss is nan"},
  });
}

// Megatron-LM leaves skipped iterations out of its mean, but counts those whose loss is not finite;
// under DeepSpeed it tells no iteration as skipped, and the mean has them all.
TEST(Diagnosis, OfMegatronCountsLosses) {
  ExpectAll({
      {Megatron("10", "9.1", "16384", "2", "0") + Megatron("20", "9.0", "16384", "0", "0"),
       kBackward, "no skipped iteration had a loss that is not finite"},
      {Megatron("10", "9.1", "16384", "2", "2") + Megatron("20", "9.0", "16384", "0", "0"),
       kForward, "2 of 2 skipped iterations"},
      {Megatron("10", "9.1", "16384", "2", "1"), kUnknown, "to which of 2 skipped steps"},
      {Megatron("1", "", "32768", "1", "1") + Megatron("2", "", "16384", "1", "1"), kForward,
       "1 of 1 skipped iteration"},
      {Megatron("1", "", "32768", "1", "0") + Megatron("2", "9", "32768", "0", "0"), kBackward,
       "no skipped iteration had"},
      {Megatron("1", "", "65536", "0", "0") + Megatron("2", "", "32768", "0", "0"), kUnknown,
       "the log prints no loss"},
      {Megatron("10", "9.1", "16384", "2", ""), kUnknown, "leaves out skipped steps"},
      {Megatron("1", "9.1", "65536", "0", "0") + Megatron("2", "nan", "32768", "0", "0"), kForward,
       "the loss is nan"},
      {Megatron("1", "9.1", "65536", "0", "0") + DeepSpeed("0", "65536", "32768") +
           Megatron("2", "9.0", "32768", "0", "0"),
       kBackward, "the loss is finite (9)"},
  });
}

TEST(Diagnosis, OfMeansSpeaksWhereNoStepIsLeftOut) {
  const std::string mmcv = "Epoch [1][50/1000]\tlr: 1.0e-03, eta: 1:00:00, time: 0.2, loss: ";
  ExpectAll({
      {Swin(0, "6.9", "6.9", "65536.0") + Swin(10, "6.8", "6.9", "16384.0"), kBackward, "(6.8)"},
      {Swin(0, "6.9", "6.9", "65536.0") + Swin(10, "6.8", "nan", "32768.0"), kForward, "(line 2)"},
      {Swin(0, "6.9", "6.9", "65536.0") + Swin(10, "nan", "nan", "8192.0"), kUnknown,
       "to which of 3 skipped steps"},
      {"Check overflow, downscale loss scale to 32768.0\n" + mmcv + "2.3\n", kBackward, "(2.3)"},
      {"Check overflow, downscale loss scale to 32768.0\n" + mmcv + "nan\n", kForward, "nan"},
  });
}

TEST(Diagnosis, OfMeansThatLeaveOutStepsIsUnknown) {
  ExpectAll({
      {"gradient overflow detected, ignoring gradient, setting loss scale to: 64.0\n"
       "epoch 001: loss=11.2, num_updates=1, loss_scale=64\n",
       kUnknown, "leaves out skipped steps"},
      {DeepSpeed("0", "65536", "32768") + "{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.01}\n",
       kUnknown, "left out or replaced"},
      {"1epoch:train:1-10batch: loss=9.0, loss_scale=65536.0\n"
       "1epoch:train:11-20batch: loss=9.0, loss_scale=32768.0\n",
       kUnknown, "left out or replaced"},
      {"{\"log_history\": [{\"step\": 1, \"loss\": 2.1, \"grad_norm\": NaN, \"loss_scale\": 65536},"
       "{\"step\": 2, \"loss\": 2.0, \"grad_norm\": 1.0, \"loss_scale\": 32768}]}\n",
       kUnknown, "left out or replaced"},
      {"  0%|  | 1/90 [00:01<1:00,  2.2it/s, loss=2.3]" + Apex("32768.0") +
           "  1%|  | 2/90 [00:02<1:00,  2.2it/s, loss=2.3]\n",
       kUnknown, "of a step before"},
      {"  0%|  | 1/90 [00:01<1:00,  2.2it/s, loss=2.3]" + Apex("32768.0") +
           "  1%|  | 2/90 [00:02<1:00,  2.2it/s, loss=nan]" + Apex("16384.0"),
       kForward, "(line 2)"},
  });
}

// Scales that overflow while a training begins say nothing of a divergence later, whether the log
// counts the steps between or not.
TEST(Diagnosis, JudgesADivergenceByItsOwnLosses) {
  std::string messages = Apex("32768.0") + Step(0, "2.3");
  std::string records = Scaled(0, "2.3", "65536");
  for (int step = 1; step <= 12; ++step) {
    messages += Step(step, "2.2");
    records += Scaled(step, "2.2", "32768");
  }
  double scale = 32768;
  for (int step = 13; step <= 32; ++step) {
    const std::string next = std::to_string(scale / 2);
    messages += Apex(next) + Step(step, "nan");
    records += Scaled(step, "nan", std::to_string(scale));
    scale /= 2;
  }
  // Even where the scale has not fallen far.
  const std::string soon = Apex("32768.0") + Step(0, "2.3") + Step(1, "2.2") + Apex("16384.0") +
                           Step(2, "nan") + Apex("8192.0") + Step(3, "nan");
  ExpectAll({{soon, kForward, "but not from line 5 to the end"},
             {messages, kForward, "but not from line 16 to the end: consistent with an overflow"},
             {records, kForward, "the loss is nan at the first skipped step of the divergence"}});
}

TEST(Diagnosis, AFiniteLossAtTheLowestScaleIsAGradientBeyondTheRange) {
  std::string log;
  double scale = 8;
  for (int step = 0; step < 6; ++step) {
    log += Apex(std::to_string(scale /= 2)) + Step(step, "2.3");
  }
  ExpectAll({{log, kBackward, "a gradient is above"},
             {log + Step(6, "nan"), kBackward, "later, at line 13, the loss is not finite"}});
}

TEST(Diagnosis, WithoutASkipIsUnknown) {
  ExpectAll({{Scaled(0, "2.3", "128") + Scaled(1, "2.2", "128"), kUnknown,
              "the log shows no skipped step"},
             {Scaled(0, "2.3", "128") + Scaled(1, "nan", "128"), kUnknown,
              "the log shows no skipped step, but the loss is nan at line 2, the last one"}});
}

std::string Trainer(const std::string& loss, const std::string& norm) {
  return "{'loss': " + loss + ", 'grad_norm': " + norm + ", 'epoch': 0.01}\n";
}

TEST(Diagnosis, WithoutAScaleLossesAndNormsSayThatItFailsButNotWhere) {
  const std::string good = Trainer("2.31", "1.23"), bad = Trainer("2.21", "nan");
  const std::string state =
      "{\"log_history\": [{\"step\": 1, \"loss\": 2.3, \"grad_norm\": 1.5},\n"
      "{\"step\": 2, \"loss\": 0.0, \"grad_norm\": NaN},\n"
      "{\"step\": 3, \"loss\": 0.0, \"grad_norm\": NaN}";
  ExpectAll({
      {"step 0: train loss 10.9, val loss nan\niter 0: loss 10.9, time 2ms\n"
       "iter 10: loss 9.1, time 2ms\niter 20: loss nan, time 2ms\n",
       kUnknown, "the loss is nan at line 4, the last one; this log prints no loss scale"},
      {"iter 1: loss inf\niter 2: loss 3.1\n", kUnknown,
       "the loss is inf at line 1, and finite again at line 2;"},
      {good + bad + Trainer("0.0", "nan") + Trainer("0.0", "nan"), kUnknown,
       "the loss is not finite from line 3 on (where all losses of a line are NaN, it shows 0);"},
      {Trainer("'2.31'", "'1.23'") + Trainer("'0'", "'nan'") +
           "{'train_runtime': '1', "
           "'train_loss': '0'}\n",
       kUnknown, "the loss is not finite at line 2, the last one"},
      {good + bad + good, kUnknown, "a gradient norm is not finite, with a finite loss"},
      {state + "]}", kUnknown, "the loss is not finite from step 2 on"},
      {state + ",{\"step\": 4, \"loss\": 2.2, \"grad_norm\": 1.5}]}", kUnknown,
       "the loss is not finite at step 2, and finite again at step 4"},
  });
  const Explanation found = ExplainText(bad);
  EXPECT_EQ(NameOf(found.skips.kind), "unknown");
  EXPECT_THAT(FormatExplanation(found),
              testing::EndsWith("\nskips: unknown: the log prints no loss scale\n"));
  EXPECT_EQ(JsonExplanation(found)["skips"]["verdict"], "unknown");
  // A loss of 0 is one, and what does not fail has nothing to explain.
  EXPECT_THROW(ExplainText(good + Trainer("0.0", "0.0")), Error);
}

TEST(Diagnosis, NothingIsNormalWhileTheLossIsNotFiniteToTheEnd) {
  const std::string falls =
      Scaled(0, "2.3", "65536") + Scaled(1, "2.2", "32768") + Scaled(2, "2.2", "32768");
  const std::string normal = "all in warm-up, while the scale finds its level: normal";
  EXPECT_THAT(FormatExplanation(ExplainText(falls)), HasSubstr(normal));
  for (const std::string& log :
       {falls + Scaled(3, "nan", "16384") + Scaled(4, "nan", "8192"),
        Apex("32768.0") + Step(0, "nan") + Apex("16384.0") + Step(1, "nan")}) {
    const std::string report = FormatExplanation(ExplainText(log));
    EXPECT_THAT(report, HasSubstr("but the loss is not finite at the end: not\n"));
    EXPECT_THAT(report, testing::Not(HasSubstr("normal at")));
    EXPECT_THAT(report, testing::Not(HasSubstr(normal)));
  }
  EXPECT_THAT(
      FormatExplanation(ExplainText(falls + Scaled(3, "nan", "16384") + Scaled(4, "2.2", "16384"))),
      HasSubstr(normal));
}

// The first run's lines stay in the log after a resume from an earlier step.
TEST(Diagnosis, OfAResumedRunNeedsTheNeighborsOfTheSkip) {
  ExpectAll({{Step(8, "2.3") + Step(9, "2.2") + Apex("32768.0") + Step(5, "2.4") + Step(6, "2.4"),
              kUnknown, "the loss of each step"}});
}

}  // namespace
}  // namespace dlsim::sim
