// SPDX-License-Identifier: Apache-2.0
// dlsim merge: profiles of parts of a trace into that of the whole.
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/profile_file.h"
#include "sim/app/commands.h"
#include "sim/app/profile_summary.h"
#include "sim/base/wrap.h"
#include "src/profile/part_code.h"

namespace dlsim::sim {
namespace {

struct MergeCommandOptions {
  std::vector<std::string> paths;
  std::string output;
  bool partial = false;
  bool quiet = false;

  void Visit(OptionRows& option) {
    option
        .Argument("PROFILE", paths,
                  "Profiles with the same settings, such as those of dlsim profile --shard")
        .Required();
    option.Group(kOutputGroup);
    option("-o,--output", output, "FILE", "The merged profile").Required();
    option("--partial", partial,
           "Allow missing shards, and steps that are in several profiles if they are the same in "
           "all");
    option("--quiet", quiet, "No summary; errors only");
  }
};

// A step that two files hold is one in the result: most often a file was given twice.
void RequireDistinctSteps(const std::vector<std::string>& paths) {
  ProfileReader::Open(paths);  // other settings are the better reason
  std::map<int64_t, std::string> holders;
  for (const std::string& path : paths) {
    const ProfileReader profile = ProfileReader::Open(std::array<std::string, 1>{path});
    for (size_t i = 0; i < profile.step_count(); ++i) {
      const auto [holder, is_new] = holders.emplace(profile.step_number(i), path);
      if (is_new) continue;
      throw InputError(
          Printable(path),
          "step " + std::to_string(holder->first) + " is in " + Printable(holder->second) + " too",
          "each step in one profile, or --partial");
    }
  }
}

// A part of a trace would be taken for the whole.
void RequireAllShards(const std::vector<std::string>& paths) {
  const std::optional<ProfilePart> part = ProfileReader::Open(paths).settings().part;
  if (!part) return;
  throw InputError(Printable(paths.front()),
                   "shards are missing: no file holds " + MissingSteps(*part),
                   "the profiles of all shards, or --partial");
}

int RunMerge(const MergeCommandOptions& options) {
  if (options.output == "-") {
    throw UsageError("-o", "cannot write a profile to standard output", "a file",
                     Quoted(options.output));
  }
  if (!options.partial) {
    RequireDistinctSteps(options.paths);
    RequireAllShards(options.paths);
  }
  MergeProfiles(options.paths, options.output);
  if (options.quiet) return 0;
  const std::array<std::string, 1> merged = {options.output};
  WriteReport(FormatSummary(options.output, ProfileReader::Open(merged)));
  return 0;
}

}  // namespace

void AddMergeCommand(CLI::App& app, Action& action) {
  AddCommand<MergeCommandOptions>(app, action, RunMerge, "merge",
                                  "Merge profiles of parts of a trace into one, in any order",
                                  "Examples:\n  dlsim merge part-*.dlprof -o run.dlprof");
}

}  // namespace dlsim::sim
