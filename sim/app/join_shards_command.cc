// SPDX-License-Identifier: Apache-2.0
// dlsim join-shards: what the processes of sharded training recorded, as one trace or profile.
#include <fmt/format.h>

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

  void Visit(OptionRows& option) {
    option
        .Argument(
            "RUN", path,
            "The path that the recorders were given: a directory, or FILE.dlprof for the profiles "
            "FILE.shard-00000-of-00004.dlprof")
        .Required();
    option("-o,--output", output, "PATH",
           "The result: a directory without a trace, or a .dlprof file")
        .Required();
    option("--quiet", quiet, "No summary; errors only");
  }
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
  AddCommand<JoinShardsOptions>(
      app, action, RunJoinShards, "join-shards",
      "Join the recordings of the processes of sharded training into one trace or profile",
      "Examples:\n"
      "  dlsim join-shards run/ -o joined/\n"
      "  dlsim join-shards run.dlprof -o joined.dlprof");
}

}  // namespace dlsim::sim
