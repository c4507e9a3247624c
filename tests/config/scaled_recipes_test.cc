// SPDX-License-Identifier: Apache-2.0
// Formats with scales of their own that configurations name, and what is said of the others.
#include "sim/config/scaled_recipes.h"

#include <gtest/gtest.h>

#include "dlsim/scaled_format.h"
#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

// The format of a text, which dlsim takes.
std::string ScaledOf(const std::string& text) {
  const TrainingConfig config = Interpret(text);
  EXPECT_EQ(config.formats, Texts{"bf16"}) << text;
  EXPECT_EQ(PolicyOf(config), kNothing) << text;
  if (!config.scaled.empty()) {
    EXPECT_NO_THROW(ParseScaledFormat(config.scaled)) << text;
  }
  return config.scaled;
}

// True if a note of the text has these words.
bool HasNote(const std::string& text, std::string_view words) {
  for (const std::string& note : Interpret(text).notes) {
    if (note.find(words) != note.npos) return true;
  }
  return false;
}

std::string OfMegatron(const std::string& arguments) {
  return ScaledOf("pretrain_gpt.py --num-layers 2 --hidden-size 8 --bf16 " + arguments + "\n");
}

TEST(ScaledRecipes, MegatronNamesElementsAndRecipe) {
  EXPECT_EQ(OfMegatron("--fp8-format hybrid"),
            "fp8-delayed:backward=e5m2,history=1,decides=most_recent,margin=0");
  EXPECT_EQ(OfMegatron("--fp8-format e4m3 --fp8-amax-history-len 16 --fp8-amax-compute-algo max"),
            "fp8-delayed:backward=e4m3,history=16,decides=max,margin=0");
  EXPECT_EQ(OfMegatron("--fp8-format hybrid --fp8-recipe tensorwise"), "fp8-current:backward=e5m2");
  EXPECT_EQ(OfMegatron("--fp8-format e4m3 --fp8-recipe mxfp8"), "mxfp8:backward=e4m3");
  EXPECT_EQ(OfMegatron("--fp8-format e4m3 --fp8-recipe blockwise"), "fp8-block:backward=e4m3");
  EXPECT_EQ(OfMegatron("--fp4-format e2m1"), "nvfp4");
  EXPECT_EQ(OfMegatron("--fp8-format hybrid --fp8-recipe custom"), "");
  EXPECT_EQ(OfMegatron(""), "");
}

TEST(ScaledRecipes, MegatronSaysWhatIsNotSimulated) {
  const std::string start = "pretrain_gpt.py --num-layers 2 --hidden-size 8 --bf16 ";
  const auto has_note = [&](const std::string& arguments, std::string_view words) {
    return HasNote(start + arguments + "\n", words);
  };
  EXPECT_TRUE(has_note("--fp8-format hybrid --fp8-recipe custom", "fp8_recipe custom"));
  EXPECT_TRUE(has_note("--fp4-format e2m1 --fp4-recipe custom", "fp4_recipe custom"));
  EXPECT_TRUE(has_note("--fp8-format hybrid --fp8-param-gather", "fp8_param_gather is not"));
  EXPECT_FALSE(has_note("--fp8-format hybrid", "not simulated"));
  EXPECT_TRUE(has_note("--fp4-format e2m1", "without the stochastic rounding"));
}

std::string OfNemo(const std::string& keys) {
  return "trainer: {precision: bf16, max_steps: 9}\nmodel: {megatron_amp_O2: true, " + keys + "}\n";
}

TEST(ScaledRecipes, NemoHasTheKeysOfMegatronAndSwitchesForElements) {
  EXPECT_EQ(ScaledOf(OfNemo("fp8: false, fp8_hybrid: true")), "");
  EXPECT_EQ(ScaledOf(OfNemo("fp8: true, fp8_e4m3: false, fp8_hybrid: true, fp8_margin: 1, "
                            "fp8_amax_history_len: 1024, fp8_amax_compute_algo: max")),
            "fp8-delayed:backward=e5m2,history=1024,decides=max,margin=1");
  EXPECT_EQ(ScaledOf(OfNemo("fp8: true, fp8_e4m3: true, fp8_hybrid: true, fp8_recipe: tensorwise")),
            "fp8-current:backward=e4m3");
  const std::string code = OfNemo("fp8: true, fp8_e4m3: true, fp8_recipe: custom");
  EXPECT_EQ(ScaledOf(code), "");
  EXPECT_TRUE(HasNote(code, "fp8_recipe custom is not simulated"));
  EXPECT_TRUE(HasNote(OfNemo("fp8: true, fp8_hybrid: true, fp8_params: true"),
                      "fp8_params is not simulated: it stores weights in FP8"));
  EXPECT_FALSE(HasNote(OfNemo("fp8: true, fp8_hybrid: true, fp8_params: false"), "fp8_params"));
  ExpectConfigError(OfNemo("fp8: true"),
                    "f:2: model.fp8: NeMo refuses it without elements, expected fp8_e4m3 or "
                    "fp8_hybrid: true");
}

std::string OfAccelerate(const std::string& fp8_config, const std::string& type = "MULTI_GPU") {
  return "distributed_type: " + type + "\nmixed_precision: fp8\nfp8_config: {" + fp8_config + "}\n";
}

TEST(ScaledRecipes, AcceleratePassesItsOwnDefaultsToNobody) {
  const std::string plain = OfAccelerate("backend: TE, amax_history_len: 32, fp8_format: E4M3");
  EXPECT_EQ(ScaledOf(plain), "fp8-delayed:backward=e4m3,history=32,decides=max,margin=0");
  EXPECT_TRUE(HasNote(plain, "max, counts"));
  const std::string full = OfAccelerate("fp8_backend: TE, amax_compute_algo: max, margin: 2");
  EXPECT_EQ(ScaledOf(full), "fp8-delayed:backward=e5m2,history=1024,decides=max,margin=2");
  EXPECT_FALSE(HasNote(full, "max, counts"));
  EXPECT_EQ(ScaledOf(OfAccelerate("backend: TE, use_mxfp8_block_scaling: true")),
            "mxfp8:backward=e4m3");
  EXPECT_EQ(ScaledOf(OfAccelerate("backend: AO")), "fp8-current:backward=e5m2");
  const TrainingConfig zero = Interpret(OfAccelerate("backend: AO", "DEEPSPEED"));
  EXPECT_EQ(zero.scaled, "fp8-current:backward=e5m2");
  EXPECT_EQ(PolicyOf(zero), "deepspeed loss_scale=1");
}

TEST(ScaledRecipes, AccelerateSaysWhatIsNotSimulated) {
  EXPECT_EQ(ScaledOf("distributed_type: FSDP\nmixed_precision: fp8\n"), "");
  EXPECT_TRUE(HasNote("distributed_type: FSDP\nmixed_precision: fp8\n", "what is installed"));
  EXPECT_TRUE(HasNote(OfAccelerate("backend: AO"), "the first and the last linear layer"));
  EXPECT_TRUE(HasNote(OfAccelerate("backend: TE, interval: 4"), "interval is not simulated"));
  EXPECT_TRUE(
      HasNote(OfAccelerate("backend: TE, amax_history_length: 4"), "it reads amax_history_len"));
  EXPECT_TRUE(HasNote(OfAccelerate("backend: TE, amax_compute_algorithm: max"),
                      "it reads amax_compute_algo"));
  EXPECT_TRUE(HasNote(OfAccelerate("backend: TE, override_linear_precision: [false, true, false]"),
                      "override_linear_precision is not simulated"));
  EXPECT_FALSE(
      HasNote(OfAccelerate("backend: TE, override_linear_precision: [false, false, false]"),
              "override_linear_precision"));
}

TEST(ScaledRecipes, AccelerateRefusesWhatItDoesNotTrain) {
  ExpectConfigError(
      OfAccelerate("backend: te"),
      "f:3: fp8_config.backend: unknown name (did you mean 'TE'?), expected one of TE, AO, "
      "MSAMP, got 'te'");
  ExpectConfigError(OfAccelerate("backend: MSAMP"),
                    "f:3: fp8_config.backend: MS-AMP scales weights and states, too, which is not "
                    "read, expected TE or AO");
  ExpectConfigError(OfAccelerate("backend: TE, fp8_format: e5m2"),
                    "f:3: fp8_config.fp8_format: TransformerEngine does not train in E5M2 alone, "
                    "expected HYBRID or E4M3");
  ExpectConfigError(OfAccelerate("backend: TE, use_mxfp8_block_scaling: true, amax_history_len: 2"),
                    "f:3: fp8_config.amax_history_len: Accelerate refuses it with "
                    "use_mxfp8_block_scaling");
}

std::string OfTitan(const std::string& converters, const std::string& table) {
  return "[job]\ndump_folder = './o'\n[model]\nconverters = " + converters +
         "\n[training]\nsteps = 9\n" + table;
}

TEST(ScaledRecipes, TorchtitanNamesRecipesOfTorchao) {
  EXPECT_EQ(ScaledOf(OfTitan("[]", "[quantize.linear.float8]\nrecipe_name = 'rowwise'\n")), "");
  EXPECT_EQ(ScaledOf(OfTitan("['quantize.linear.float8']", "")), "fp8-current:backward=e5m2");
  EXPECT_EQ(ScaledOf(OfTitan("['quantize.linear.float8']",
                             "[quantize.linear.float8]\nrecipe_name = 'rowwise'\n")),
            "fp8-rowwise");
  EXPECT_EQ(ScaledOf(OfTitan("'float8,other'", "[float8]\nrecipe_name = 'tensorwise'\n")),
            "fp8-current:backward=e5m2");
  EXPECT_EQ(ScaledOf(OfTitan("[]", "[float8]\nenable_float8_linear = true\n")),
            "fp8-current:backward=e5m2");
  EXPECT_EQ(ScaledOf(OfTitan("['quantize.linear.mx']", "")), "mxfp8:rule=floor");
  EXPECT_EQ(ScaledOf(OfTitan("['mx']", "[mx]\nrecipe_name = 'mxfp8_cublas_rceil'\n")), "mxfp8");
  EXPECT_EQ(ScaledOf(OfTitan("['mx']", "[mx]\nrecipe_name = 'mxfp4_cutlass'\n")), "mxfp4");
}

TEST(ScaledRecipes, TorchtitanSaysWhatIsNotSimulated) {
  const std::string mixed = OfTitan("['float8']", "[float8]\nrecipe_name = 'rowwise_with_gw_hp'\n");
  EXPECT_EQ(ScaledOf(mixed), "");
  EXPECT_TRUE(HasNote(mixed, "--format fp8-rowwise"));
  EXPECT_TRUE(HasNote(OfTitan("['float8']", "[float8]\nscaling_type_input = 'delayed'\n"),
                      "scaling_type_input delayed is not simulated"));
  EXPECT_TRUE(
      HasNote(OfTitan("['mx']", "[mx]\nrecipe_name = 'mxfp8'\n"), "recipe_name mxfp8 is not"));
  EXPECT_TRUE(
      HasNote(OfTitan("['float8']", "[float8]\nfilter_fqns = ['output']\n"), "judged all the"));
  ExpectConfigError(OfTitan("['float8']", "[float8]\nrecipe_name = 'axiswise'\n"),
                    "f:8: float8.recipe_name: unknown name, expected one of tensorwise, rowwise, "
                    "rowwise_with_gw_hp, got 'axiswise'");
}

}  // namespace
}  // namespace dlsim::sim
