// SPDX-License-Identifier: Apache-2.0
#include "sim/app/ladder_options.h"

#include "sim/app/help_format.h"
#include "sim/app/typed_options.h"

namespace dlsim::sim {

void AddLadderOptions(CLI::App& command, LadderSettings& settings) {
  StartGroup(command, "What to answer exactly for");
  OfferFormats(
      command.add_option("--format", settings.formats,
                         "Number format to answer exactly for, repeatable (default: fp16 bf16 "
                         "cb16)"))
      ->option_text("F")
      ->allow_extra_args(false);
  OfferValues(
      command.add_option("--rounding", settings.roundings,
                         "Rounding mode to answer exactly for, repeatable: rne, rtz, rna, ru or rd "
                         "(default: all of them)"),
      {"rne", "rtz", "rna", "ru", "rd"})
      ->option_text("MODE")
      ->allow_extra_args(false);
  AddChoice<std::vector<Subnormals>>(
      command, "--subnormals", settings.subnormals,
      {{NameOf(Subnormals::kKeep), {Subnormals::kKeep}},
       {NameOf(Subnormals::kFlushToZero), {Subnormals::kFlushToZero}},
       {"both", {Subnormals::kKeep, Subnormals::kFlushToZero}}},
      "RULE", "Subnormal results to answer exactly for: keep, flush or both (default)");
  command
      .add_option("--scales", settings.scales,
                  "Loss scales to answer exactly for: numbers, ranges of powers of two such as "
                  "2^-24..2^40, and default, separated by commas")
      ->option_text("LIST");
}

}  // namespace dlsim::sim
