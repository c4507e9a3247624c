// SPDX-License-Identifier: Apache-2.0
// dlsim bench run: measure kernels, or whole commands, and keep what was measured.
#include "sim/app/bench_run_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "dlsim/error.h"
#include "dlsim/simd.h"
#include "sim/app/device_option.h"
#include "sim/app/typed_options.h"
#include "sim/base/json_value.h"
#include "sim/base/number.h"
#include "sim/base/output_file.h"
#include "sim/base/progress.h"
#include "sim/bench/bench_runner.h"
#include "sim/bench/callgrind.h"
#include "sim/bench/command_bench.h"
#include "sim/bench/command_scaling.h"
#include "sim/bench/cpu_model.h"

namespace dlsim::sim {
namespace {

struct RunOptions {
  BenchRequest request;
  std::string out;
  DeviceChoice device;
  bool instructions = false, commands = false, cold = false, quiet = false;
  std::string trace_directory;
  uint64_t trace_mib = 256;

  ProgressMode progress_mode() const { return quiet ? ProgressMode::kQuiet : ProgressMode::kAuto; }
};

// What tells this program from another one that was measured.
Json BuildFields() {
  return {{"cpu_model", CpuModel()},
          {"simd_target", SupportedSimdTargets().front()},
          {"compiler", DLSIM_COMPILER},
          {"compiler_flags", DLSIM_COMPILER_FLAGS},
          {"dlsim_version", DLSIM_VERSION}};
}

Json RunCommands(const RunOptions& options) {
  CommandBenchRequest request;
  request.program = std::filesystem::read_symlink("/proc/self/exe").string();
  request.filter = options.request.filter;
  request.sizes = options.request.sizes;
  request.threads = options.request.threads;
  request.repetitions = options.request.repetitions;
  request.directory = options.trace_directory;
  request.mib = options.trace_mib;
  request.cache = options.cold ? FileCache::kCold : FileCache::kCached;
  std::optional<Progress> progress;
  CommandBenchObserver observer;
  observer.announce = [&](const std::string& text) {
    if (!options.quiet) std::fprintf(stderr, "dlsim bench run: %s\n", text.c_str());
  };
  observer.progress = [&](uint64_t done, uint64_t total) {
    if (!progress) progress.emplace("bench", total, options.progress_mode(), ProgressUnit::kCount);
    progress->Update(done);
  };
  return BenchCommands(request, BuildFields(), observer);
}

Json RunKernels(const RunOptions& options) {
  const std::string program = FindBenchProgram();
  if (options.instructions) return CountInstructions(program, options.request);
  Progress progress("bench", ProcessCount(options.request), options.progress_mode(),
                    ProgressUnit::kCount);
  return RunBenchmarks(program, options.request, [&](uint64_t done) { progress.Update(done); });
}

int RunRun(RunOptions options) {
  ProcessCount(options.request);  // bad values fail before the work
  if (options.device.kind == DeviceChoice::Kind::kCuda) {
    options.request.device = options.device.text();
    if (options.instructions) {
      throw UsageError("--instructions", "Valgrind counts those of the CPU alone", "--device cpu",
                       options.request.device);
    }
    OpenDevice(options.device, 0);  // first, so that a device that is not there fails at once
  }
  OutputFile out(options.out);  // first, so that a bad path fails at once
  const Json document = options.commands ? RunCommands(options) : RunKernels(options);
  out.Write(DumpJson(document, 1) + "\n");
  out.Commit();
  const bool reports = options.commands && options.out != "-" && !options.quiet;
  if (reports) WriteOutput("-", CommandReport(document));
  return 0;
}

CLI::Option* AddText(CLI::App& command, const char* option, std::string& target,
                     const char* placeholder, const std::string& help) {
  return command.add_option(option, target, help)->option_text(placeholder);
}

void AddSelection(CLI::App& command, BenchRequest& request) {
  AddText(command, "--filter", request.filter, "RE",
          "Benchmarks whose name the POSIX extended pattern matches; -RE: does not match");
  AddText(command, "--sizes", request.sizes, "L1,L2,DRAM",
          "Sizes (default all); of commands large,small");
  AddText(command, "--threads", request.threads, "N[,M]",
          "Numbers of threads (default 1; of commands 1 and all)");
  AddCount(command, "--repetitions", request.repetitions, "Repetitions of each (default 11)");
}

// Options that whole commands do not have.
void AddKernelOptions(CLI::App& command, RunOptions& options, CLI::Option& commands) {
  BenchRequest& request = options.request;
  AddText(command, "--targets", request.targets, "best|all|NAME[,NAME]",
          "SIMD targets (default best; with --instructions AVX2)")
      ->excludes(&commands);
  AddText(command, "--dram-mib", request.dram_mib, "N", "MiB of float32 of the size DRAM")
      ->excludes(&commands);
  AddCount(command, "--processes", request.processes,
           "Processes over which they are spread (default one each)");
  command
      .add_option_function<std::string>(
          "--min-time",
          [&request](const std::string& text) {
            request.min_time = ParseNumber(text, "--min-time");
            if (request.min_time > 0 && request.min_time <= 1000) return;
            throw UsageError("--min-time", "out of range", "above 0, at most 1000", Quoted(text));
          },
          "Seconds per repetition (default 0.05)")
      ->option_text("S")
      ->excludes(&commands);
  AddDeviceOption(command, options.device, "the CPU");
  command
      .add_flag("--instructions", options.instructions,
                "Count instructions under Valgrind instead, in L2 on one thread")
      ->excludes(&commands);
  for (const char* const option : {"--processes", "--device"}) {
    command.get_option(option)->excludes(&commands);
  }
}

void AddTraceOptions(CLI::App& command, RunOptions& options, CLI::Option& commands) {
  AddCount(command, "--trace-mib", options.trace_mib,
           "MiB of each of the two traces of --commands (default 256)");
  command.get_option("--trace-mib")->needs(&commands);
  AddText(command, "--trace-dir", options.trace_directory, "DIR",
          "Where they are written, and removed at the end (default $TMPDIR, or /tmp)")
      ->needs(&commands);
  command
      .add_flag("--cold", options.cold,
                "Drop the files from the page cache before each command, if they are on a disk")
      ->needs(&commands);
}

}  // namespace

void AddBenchRun(CLI::App& bench, Action& action) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command =
      bench.add_subcommand("run", "Measure kernels or commands and write their times to a file");
  AddSelection(*command, options->request);
  CLI::Option* const commands =
      command->add_flag("--commands", options->commands,
                        "Whole commands on made-up traces instead, beside reading these files");
  AddTraceOptions(*command, *options, *commands);
  AddKernelOptions(*command, *options, *commands);
  command->add_flag("--quiet", options->quiet, "No progress, no table; errors only");
  AddText(*command, "--out", options->out, "FILE", "Result, JSON; - is standard output")
      ->required();
  command->footer(
      "Kernels are those of dlsim_bench, which lies beside dlsim, or $DLSIM_BENCH.\n"
      "Examples:\n"
      "  dlsim bench run --out new.json\n"
      "  dlsim bench run --filter '^(Encode|Stream)/' --sizes L2,DRAM --threads 1,2 --out "
      "new.json\n"
      "  dlsim bench run --commands --out new.json\n"
      "  dlsim bench run --commands --cold --trace-mib 1024 --trace-dir /data --out cold.json\n"
      "  dlsim bench run --device cuda --out gpu.json\n"
      "  dlsim bench run --instructions --out base.cg.json");
  command->callback([options, &action] { action = [options] { return RunRun(*options); }; });
}

}  // namespace dlsim::sim
