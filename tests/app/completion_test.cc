// SPDX-License-Identifier: Apache-2.0
// Completion says what the option model says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/run_command.h"

namespace dlsim {
namespace {

class Completion : public testing::Test {
 protected:
  // Expects every command and every option in a text that writes an option so.
  static void ExpectAll(const std::string& text, const std::string& before) {
    const nlohmann::json model = SucceedJson({"--dump-options"});
    for (const auto& [name, command] : model["commands"].items()) {
      EXPECT_NE(text.find(name), std::string::npos) << name;
      for (const auto& option : command["options"]) {
        if (option["hidden"]) continue;
        const std::string written = before + option["name"].get<std::string>();
        EXPECT_NE(text.find(written), std::string::npos) << name << " " << written;
      }
    }
  }

  // What bash offers for the last of the words.
  std::string Offered(const std::string& words, int last) {
    dir_.Write("c.bash", Succeed({"completion", "bash"}));
    dir_.Write("ask.bash", "source " + dir_.path() + "/c.bash\nCOMP_WORDS=(" + words +
                               ")\nCOMP_CWORD=" + std::to_string(last) +
                               "\n_dlsim\necho \"${COMPREPLY[@]}\" > " + dir_.path() +
                               "/offered\n");
    EXPECT_EQ(std::system(("bash " + dir_.path() + "/ask.bash").c_str()), 0);
    return ReadBytes(dir_.path() + "/offered");
  }

  static bool HasShell(const std::string& shell) {
    return std::system((shell + " -c true > /dev/null 2>&1").c_str()) == 0;
  }

  // What fish offers to complete these words, without the descriptions.
  std::string FishOffers(const std::string& words) {
    dir_.Write("c.fish", Succeed({"completion", "fish"}));
    const std::string command = "HOME=" + dir_.path() + " fish -c \"source " + dir_.path() +
                                "/c.fish; complete -C '" + words + "'\" | cut -f 1 > " +
                                dir_.path() + "/offered";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return ReadBytes(dir_.path() + "/offered");
  }

  // What _arguments of zsh is given for these words: its completion functions replaced by ones that
  // print.
  std::string ZshAsks(const std::string& words) {
    dir_.Write("c.zsh", Succeed({"completion", "zsh"}));
    dir_.Write("ask.zsh",
               "compdef() { }\n_arguments() { print -rl -- \"$@\" }\n"
               "_describe() { print -rl -- \"${(@P)2}\" }\nsource " +
                   dir_.path() + "/c.zsh\nwords=(" + words + ")\nCURRENT=${#words}\n_dlsim > " +
                   dir_.path() + "/offered\n");
    EXPECT_EQ(std::system(("zsh -f " + dir_.path() + "/ask.zsh").c_str()), 0);
    return ReadBytes(dir_.path() + "/offered");
  }

  TempDir dir_;
};

TEST_F(Completion, EveryShellKnowsEveryOption) {
  ExpectAll(Succeed({"completion", "bash"}), "--");
  ExpectAll(Succeed({"completion", "zsh"}), "--");
  ExpectAll(Succeed({"completion", "fish"}), "-l ");
  ExpectFailure({"completion", "tcsh"}, 2, {"one of bash, zsh, fish", "got 'tcsh'"});
}

TEST_F(Completion, BashOffersCommandsOptionsAndNames) {
  EXPECT_EQ(Offered("dlsim rep", 1), "replay report\n");
  EXPECT_EQ(Offered("dlsim replay --pol", 2), "--policy\n");
  EXPECT_EQ(Offered("dlsim replay --policy mega", 3), "megatron\n");
  EXPECT_EQ(Offered("dlsim bench com", 2), "compare\n");
  EXPECT_EQ(Offered("dlsim replay tr", 2), "\n");  // files, by the shell itself
}

TEST_F(Completion, BashOffersTheValuesOfOptions) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"dlsim replay --rounding r", "rne rtz rna ru rd"},
      {"dlsim profile --accumulate s", "sum-first"},
      {"dlsim tune --emit d", "deepspeed"},
      {"dlsim replay --backend c", "csx cpu"},
      {"dlsim sweep --device c", "cpu cuda"},
      {"dlsim replay --check a", "all"},
      {"dlsim tune --recipe h", "half"},
      {"dlsim sweep --sort w", "worst-step"},
      {"dlsim replay --set growth_int", "growth_interval="},
      {"dlsim sweep --vary growth_int", "growth_interval="},
      {"dlsim replay --policy all", "all"},
      {"dlsim replay --policy = mega", "megatron"},
      {"dlsim replay --config-kind cerebras-", "cerebras-tf cerebras-old"},
      {"dlsim completion z", "zsh"},
      {"dlsim import te", "te"},
      {"dlsim report --ti", "--title"},
      {"dlsim report --policy mega", "megatron"},
      {"dlsim formats fp16 cb", "cb16"},
      {"dlsim help scal", "scaler"},
      {"dlsim bench compare --thr", "--threshold"}};
  for (const auto& [line, offered] : cases) {
    const std::string words = line;
    const auto last = static_cast<int>(std::ranges::count(words, ' '));
    EXPECT_EQ(Offered(words, last), std::string(offered) + "\n") << words;
  }
  EXPECT_EQ(Offered("dlsim bench ''", 2), "run compare\n");
}

TEST_F(Completion, FishOffersCommandsOptionsAndNames) {
  if (!HasShell("fish")) GTEST_SKIP() << "no fish";
  EXPECT_EQ(FishOffers("dlsim repl"), "replay\n");
  EXPECT_EQ(FishOffers("dlsim replay --pol"), "--policy\n");
  EXPECT_EQ(FishOffers("dlsim replay --policy mega"), "megatron\n");
  EXPECT_EQ(FishOffers("dlsim bench com"), "compare\n");
  EXPECT_EQ(FishOffers("dlsim bench compare --thr"), "--threshold\n");
  EXPECT_EQ(FishOffers("dlsim tune --emit d"), "deepspeed\n");
  EXPECT_EQ(FishOffers("dlsim completion z"), "zsh\n");
  EXPECT_EQ(FishOffers("dlsim replay --set growth_int"), "growth_interval=\n");
}

TEST_F(Completion, ZshOffersCommandsOptionsAndNames) {
  if (!HasShell("zsh")) GTEST_SKIP() << "no zsh";
  EXPECT_NE(ZshAsks("dlsim rep").find("replay:Replay recorded gradients"), std::string::npos);
  const std::string replay = ZshAsks("dlsim replay --pol");
  EXPECT_NE(replay.find("\n*--policy[Loss-scaling policy"), std::string::npos) << replay;
  EXPECT_NE(replay.find(" megatron "), std::string::npos) << replay;
  const std::string bench = ZshAsks("dlsim bench com");
  EXPECT_TRUE(bench.starts_with("1:argument:(run compare)\n")) << bench;
  EXPECT_TRUE(ZshAsks("dlsim completion z").starts_with("1:argument:(bash zsh fish)\n"));
  const std::string tune = ZshAsks("dlsim tune --emit d");
  EXPECT_NE(tune.find(":value:(zoo deepspeed torch"), std::string::npos) << tune;
  EXPECT_NE(bench.find("\n*--threshold["), std::string::npos) << bench;
}

}  // namespace
}  // namespace dlsim
