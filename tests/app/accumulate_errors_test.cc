// SPDX-License-Identifier: Apache-2.0
// What dlsim accumulate refuses: one clear line, an exit code, and no file.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

TEST(AccumulateErrors, WrongUsageIsOneLineAndExitCode2) {
  const auto fails = [](const Arguments& more, const Arguments& words) {
    Arguments all = {"accumulate", kAccumulated};
    all.insert(all.end(), more.begin(), more.end());
    ExpectFailure(all, 2, words);
  };
  fails({"--chunk", "0"}, {"--chunk: out of range", "1 or more", "'0'"});
  fails({"--chunk", "-3"}, {"--chunk: out of range"});
  fails({"--chunk", "x"}, {"--chunk: not a number"});
  fails({"--level", "3"}, {"--level", "0, 1, 2", "'3'"});
  fails({"--reduce", "sums"}, {"--reduce", "micro, norm, sum, axis:K", "'sums'"});
  fails({"--reduce", "axis:x"}, {"--reduce: not a number", "'x'"});
  fails({"--reduce", "axis:9"}, {"--reduce: no tensor has this axis", "at most 3", "'axis:9'"});
  fails({"--dot", "a"}, {"--dot: not a pair", "A:B"});
  fails({"--dot", "a:b:c"}, {"--dot: not a pair"});
  fails({"--dot", "nope:ln_f.bias.grad"}, {"--dot: no tensor of this name", "'nope'"});
  fails({"--dot", "ln_f.bias.grad:blocks.0.mlp.fc1.bias.grad"},
        {"--dot: shapes do not fit", "one shape", "[32] and [128]"});
  fails({"--matmul", "ln_f.bias.grad:ln_f.weight.grad"}, {"--matmul", "[..., K] and [K, N]"});
  fails({"--accumulator", "fp61"}, {"unknown name", "'fp61'"});
  fails({"--accumulator", "e8m20"}, {"--accumulator: too many mantissa bits", "at most 19"});
  fails({"--format", "fp32"}, {"--format: levels need a format", "'fp32'"});
  fails({"--combiner", "cb16"}, {"--combiner: levels have their own", "--accumulator"});
  fails({"--level", "2", "--products", "cb16"}, {"--products: levels have their own"});
  fails({"--accumulator", "cb16", "--products", "cb61"}, {"unknown name", "'cb61'"});
  fails({"--scale", "0"}, {"--scale: out of range"});
  fails({"--operation", "softmax"}, {"--operation", "matmul, attention, reduction"});
  fails({"--rounding", "up"}, {"--rounding"});
  fails({"--json", "-", "--csv", "-"}, {"--csv", "--json"});
  ExpectFailure({"accumulate", kSingle, "--reduce", "micro"}, 2, {"no step has micro-steps"});
  ExpectFailure({"accumulate"}, 2, {"TRACE is required"});
}

// Axes without elements must not make results without end.
TEST(AccumulateErrors, EmptyTensorsHaveNoSums) {
  const TempDir trace;
  const uint64_t many = uint64_t{1} << 32;
  trace.Write("step-0.safetensors", BuildSafetensors({{"a.grad", "F32", {0, many}, ""},
                                                      {"b.grad", "F32", {many, 0}, ""},
                                                      FloatTensor("c.grad", {1, 2})}));
  Succeed({"accumulate", trace.path()});
  ExpectFailure({"accumulate", trace.path(), "--matmul", "b.grad:a.grad"}, 2,
                {"--matmul: shapes do not fit", "at most 2^28 results"});
}

TEST(AccumulateErrors, BadInputIsOneLineAndExitCode3) {
  ExpectFailure({"accumulate", "/nonexistent"}, 3, {"/nonexistent: cannot be opened"});
  ExpectFailure({"accumulate", kSingle, "--tensors", "nope*"}, 3, {"no tensor matches"});
  const TempDir trace;
  trace.Write("step-0.safetensors",
              BuildSafetensors({FloatTensor("a.grad", {1, 2}), FloatTensor("b.grad", {1, 2})}));
  trace.Write("step-1.safetensors",
              BuildSafetensors({FloatTensor("a.grad", {1, 2}), FloatTensor("b.grad", {1, 2, 3})}));
  const TempDir results;
  const std::string path = results.path() + "/r.json";
  ExpectFailure({"accumulate", trace.path(), "--dot", "a.grad:b.grad", "--json", path}, 3,
                {"step-1.safetensors: shapes of a pair do not fit", "[2]", "[3]"});
  EXPECT_TRUE(std::filesystem::is_empty(results.path()));
}

}  // namespace
}  // namespace dlsim
