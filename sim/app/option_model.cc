// SPDX-License-Identifier: Apache-2.0
#include "sim/app/option_model.h"

#include "sim/app/option_values.h"
#include "sim/base/json_value.h"

namespace dlsim::sim {
namespace {

Json ModelOf(const CLI::Option& option) {
  const bool is_flag = option.get_items_expected_max() == 0 && option.get_fnames().empty();
  return {{"name", option.get_lnames().front()},
          {"help", option.get_description()},
          {"value", is_flag ? Json() : Json(option.get_option_text())},
          {"optional_value", !option.get_fnames().empty()},
          {"repeatable", option.get_items_expected_max() > 1},
          {"values", OfferedValues(&option)},
          {"hidden", option.get_group().empty()}};
}

}  // namespace

std::string OptionModel(const CLI::App& app) {
  Json commands = Json::object();
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    Json options = Json::array();
    for (const CLI::Option* option : command->get_options()) {
      if (!option->get_lnames().empty() && option != command->get_help_ptr())
        options.push_back(ModelOf(*option));
    }
    commands[command->get_name()] = {{"description", command->get_description()},
                                     {"options", std::move(options)}};
  }
  return DumpJson({{"schema", "dlsim.options/1"}, {"commands", std::move(commands)}});
}

}  // namespace dlsim::sim
