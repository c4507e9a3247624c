// SPDX-License-Identifier: Apache-2.0
// Completion and the man page say what the option model says.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

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
        std::string shown = before;
        for (const char c : option["name"].get<std::string>()) {
          shown += c == '-' && before == "\\-\\-" ? std::string("\\-") : std::string(1, c);
        }
        EXPECT_NE(text.find(shown), std::string::npos) << name << " " << shown;
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

  TempDir dir_;
};

TEST_F(Completion, EveryShellKnowsEveryOption) {
  ExpectAll(Succeed({"completion", "bash"}), "--");
  ExpectAll(Succeed({"completion", "zsh"}), "--");
  ExpectAll(Succeed({"completion", "fish"}), "-l ");
  ExpectFailure({"completion", "tcsh"}, 2, {"expected one of bash, zsh, fish", "got 'tcsh'"});
}

TEST_F(Completion, BashOffersCommandsOptionsAndNames) {
  EXPECT_EQ(Offered("dlsim rep", 1), "replay report\n");
  EXPECT_EQ(Offered("dlsim replay --pol", 2), "--policy\n");
  EXPECT_EQ(Offered("dlsim replay --policy mega", 3), "megatron\n");
  EXPECT_EQ(Offered("dlsim bench ga", 2), "gate\n");
  EXPECT_EQ(Offered("dlsim replay tr", 2), "\n");  // files, by the shell itself
}

TEST_F(Completion, TheManPageHasEveryOption) {
  const std::string page = Succeed({"man"});
  ExpectAll(page, "\\-\\-");
  EXPECT_TRUE(page.starts_with(".TH DLSIM 1 ")) << page.substr(0, 40);
  EXPECT_NE(page.find("\n.SH EXIT STATUS\n"), std::string::npos);
}

}  // namespace
}  // namespace dlsim
