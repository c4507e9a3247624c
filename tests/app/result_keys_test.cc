// SPDX-License-Identifier: Apache-2.0
// The page of keys says what the rows say.
#include <gtest/gtest.h>

#include "tests/support/run_command.h"

namespace dlsim {
namespace {

TEST(ResultKeys, AreThoseOfTheDocumentation) {
  EXPECT_EQ(Succeed({"--dump-results"}), ReadBytes(DLSIM_TEST_DATA "/../../docs/keys.md"))
      << "dlsim --dump-results > docs/keys.md";
}

}  // namespace
}  // namespace dlsim
