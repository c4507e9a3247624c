// SPDX-License-Identifier: Apache-2.0
// dlsim explain: what a training log says of its loss scale, without a trace.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/format.h"
#include "sim/app/commands.h"
#include "sim/app/expect_option.h"
#include "sim/base/output_file.h"
#include "sim/explain/explanation.h"
#include "sim/explain/read_log.h"

namespace dlsim::sim {
namespace {

struct ExplainOptions {
  std::vector<std::string> logs;
  std::string format = "fp16";
  WhatIfRequest what_if;
  std::vector<Expectation> expectations;
  ResultPaths results;

  void Visit(OptionRows& option) {
    option
        .Argument(
            "LOG", logs,
            "The log of one training run, or its parts in order: text, trainer_state.json or CSV; "
            "'-' for standard input")
        .Required();
    option.Group(kTryGroup);
    option("--format", format, "F",
           "Number format of the gradients, from which their bounds follow (default fp16)",
           FormatNames());
    option("--policy", what_if.policies, "NAME",
           "Also run this policy on the overflows that the log implies; repeatable; 'all' for all",
           PolicyNamesAndAll());
    option("--set", what_if.settings, "KEY=VALUE",
           "Parameter of --policy; without --policy, of the policy that reproduces the log; "
           "repeatable",
           ParameterNames());
    VisitExpect(option, expectations, "skipped_steps<=20");
    option.Output("--json", results.json, "Write the result as JSON");
    option.Output("--csv", results.csv, "Write the scale path as CSV, one row per step");
    option("--quiet", results.quiet, "No report; errors only");
  }
};

// What --expect can ask: the summary, and where the scale began to fall without recovery.
Json FiguresOf(const Json& document) {
  Json figures = document["summary"];
  figures["divergence_from"] = document["skips"]["divergence_from"];
  return figures;
}

std::vector<ExpectationOutcome> Check(const ExplainOptions& options, const Json& document) {
  const Json figures = FiguresOf(document);
  RequireFigures(options.expectations, FigureNames(figures), "a log");
  return CheckExpectations(options.expectations, figures);
}

int RunExplain(const ExplainOptions& options) {
  const NamedFormat format = ParseFormat(options.format);
  LogEvents log = ReadLogs(options.logs);
  if (log.events.empty() && (!options.expectations.empty() || options.results.csv)) {
    RefuseWithoutScale(options.logs);
  }
  ResultFiles files(options.results);
  const Explanation explanation = Explain(BuildPath(std::move(log)), format, options.what_if);
  std::vector<ExpectationOutcome> outcomes;
  if (files.json || !options.expectations.empty()) {  // of a long log it is large
    Json document = JsonExplanation(explanation);
    outcomes = Check(options, document);
    if (!outcomes.empty()) document["expectations"] = JsonOutcomes(outcomes);
    if (files.json) files.json->Write(DumpJson(document, 1) + "\n");
  }
  if (files.csv) files.csv->Write(CsvExplanation(explanation));
  files.Commit();
  if (options.results.wants_report()) WriteOutput("-", FormatExplanation(explanation));
  return ReportOutcomes(outcomes);
}

}  // namespace

void AddExplainCommand(CLI::App& app, Action& action) {
  AddCommand<ExplainOptions>(
      app, action, RunExplain, "explain",
      "Find out from a training log which policy set the loss scale, and why steps were skipped",
      "Examples:\n"
      "  dlsim explain train.log\n"
      "  dlsim explain train.log.1 train.log --json explained.json\n"
      "  dlsim explain train.log --set init_scale=2^12\n"
      "  dlsim explain scales.csv --policy torch --policy megatron --format bf16\n"
      "  grep OVERFLOW train.log | dlsim explain -\n"
      "  dlsim explain train.log --quiet --expect 'divergence_from==none'");
}

}  // namespace dlsim::sim
