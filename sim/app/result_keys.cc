// SPDX-License-Identifier: Apache-2.0
// dlsim --dump-results: docs/keys.md, the keys of all results, from their rows.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "sim/advice/advice.h"
#include "sim/advice/tune_report.h"
#include "sim/app/commands.h"
#include "sim/app/scaler_run.h"
#include "sim/base/expectation.h"
#include "sim/base/source_text.h"
#include "sim/diff/diff.h"
#include "sim/replay/replay_results.h"
#include "sim/replay/summaries.h"
#include "sim/scaled/scaled.h"
#include "sim/sweep/results.h"

namespace dlsim::sim {
namespace {

constexpr const char* kIntroduction =
    R"(# Keys of results

*What are the keys of `--json` and the columns of `--csv`?* All are listed here, by the command and by the
object that has them. `dlsim --dump-results` prints this page. [Results](results.md) says what they have
in common. A name such as `runs[].steps[]` is an object of the list `steps` in an object of the list `runs`;
what several objects have is listed where it comes first. Keys of `explain`, `accumulate` and `updates`, which
are written in Python, are in [explain](explain.md#results), [accumulation](accumulation.md) and
[updates](updates.md).
)";

struct Section {
  const char* title;
  void (*add)(std::vector<KeyTable>& tables);
};

constexpr Section kSections[] = {
    {"What was read: `trace`", AddTraceKeys},
    {"The verdict", AddAdviceKeys},
    {"The verdict on a scaled format", AddScaledKeys},
    {"With --expect: `expectations`", AddOutcomeKeys},
    {"dlsim replay: `dlsim.replay/1`", AddReplayKeys},
    {"Of dlsim replay: `options`", AddReplayOptionKeys},
    {"dlsim replay --summaries: `dlsim.summaries/1`", AddSummariesKeys},
    {"dlsim sweep: `dlsim.sweep/1`", AddSweepKeys},
    {"Of dlsim sweep: `options`", AddSweepOptionKeys},
    {"dlsim tune: `dlsim.tune/1`", AddTuneKeys},
    {"dlsim diff: `dlsim.diff/1`", AddDiffKeys},
    {"Of dlsim diff: `options`", AddDiffOptionKeys},
    {"dlsim scaler: `dlsim.scaler/1`", AddScalerKeys},
    {"dlsim info: `dlsim.info/1`", AddInfoKeys},
    {"dlsim profile: `dlsim.profile-report/1`", AddProfileKeys},
    {"dlsim formats: `dlsim.formats/1`", AddFormatsKeys},
};

}  // namespace

std::string ResultKeys() {
  std::string text = kIntroduction;
  std::vector<KeyTable> tables;
  for (const auto& [title, add] : kSections) {
    const size_t before = tables.size();
    add(tables);
    text += fmt::format("\n## {}\n", title);
    for (size_t i = before; i < tables.size(); ++i) {
      if (tables[i].keys.empty()) continue;
      const std::string& path = tables[i].path;
      const std::string of = path.empty() ? "" : fmt::format(" of `{}`", path);
      text += fmt::format("\n| Key{} | Meaning |\n|---|---|\n", of);
      for (const auto& [name, meaning] : tables[i].keys) {
        text += fmt::format("| `{}` | {} |\n", name, meaning);
      }
    }
  }
  return text;
}

}  // namespace dlsim::sim
