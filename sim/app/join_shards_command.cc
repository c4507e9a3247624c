// SPDX-License-Identifier: Apache-2.0
// dlsim join-shards: what the processes of sharded training recorded, as one trace or profile.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "dlsim/error.h"
#include "sim/align/join_shards.h"
#include "sim/app/commands.h"
#include "sim/base/wrap.h"

namespace dlsim::sim {
namespace {

struct JoinShardsOptions {
  std::string path, output;
  bool quiet = false;
};

int RunJoinShards(const JoinShardsOptions& options) {
  const JoinedShards joined = JoinShards(options.path, options.output);
  if (options.quiet) return 0;
  WriteReport(fmt::format("{}: one {} of {} shards\n", Printable(options.output),
                          joined.is_profile ? "profile" : "trace", joined.shards));
  return 0;
}

}  // namespace

void AddJoinShardsCommand(CLI::App& app, Action& action) {
  const auto options = std::make_shared<JoinShardsOptions>();
  CLI::App* command = app.add_subcommand(
      "join-shards",
      "Join what the processes of sharded training recorded to one trace or profile");
  command
      ->add_option("RUN", options->path,
                   "What their recorders were given: a directory, or FILE.dlprof for profiles "
                   "FILE.shard-00000-of-00004.dlprof")
      ->required();
  command
      ->add_option("-o,--output", options->output,
                   "The trace, a directory that holds none yet, or the profile")
      ->option_text("PATH")
      ->required();
  command->add_flag("--quiet", options->quiet, "No summary; errors only");
  command->footer(
      "Examples:\n"
      "  dlsim join-shards run/ -o joined/\n"
      "  dlsim join-shards run.dlprof -o joined.dlprof");
  command->callback([options, &action] { action = [options] { return RunJoinShards(*options); }; });
}

}  // namespace dlsim::sim
