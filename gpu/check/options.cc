// SPDX-License-Identifier: Apache-2.0
#include "gpu/check/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "dlsim/error.h"
#include "gpu/check/input_order.h"

namespace dlsim::gpu_check {
namespace {

constexpr std::array<std::string_view, 4> kGroups = {"encode", "large", "multi", "bench"};

uint64_t ParseCount(std::string_view option, std::string_view text, uint64_t most) {
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count > most) {
    throw UsageError(option, "bad number", "0 to " + std::to_string(most), Quoted(text));
  }
  return count;
}

std::vector<std::string> ParseGroups(std::string_view text) {
  std::vector<std::string> groups;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view group = text.substr(0, comma);
    if (std::ranges::find(kGroups, group) == kGroups.end()) {
      throw UsageError("--only", "unknown group", "encode, large, multi or bench", Quoted(group));
    }
    groups.emplace_back(group);
    if (comma == std::string_view::npos) return groups;
    text.remove_prefix(comma + 1);
  }
}

// What an effort means where the command line says nothing else.
void FillSizes(Options& options) {
  const bool quick = options.effort == Effort::kQuick;
  if (options.inputs == 0) options.inputs = quick ? uint64_t{1} << 24 : kAllInputs;
  if (options.elements == 0) options.elements = uint64_t{1} << (quick ? 26 : 30);
}

void SetOption(std::string_view name, std::string_view value, Options& options) {
  constexpr uint64_t kMostElements = uint64_t{1} << 36, kMostDevices = 1023;
  // Rounds count into the same tables, up to 2^40 values: so often those that fit into 192 GB.
  constexpr uint64_t kMostRounds = 250;
  if (name == "--only") {
    options.groups = ParseGroups(value);
  } else if (name == "--device") {
    options.device = static_cast<int>(ParseCount(name, value, kMostDevices));
  } else if (name == "--json") {
    options.json = value;
  } else if (name == "--peers") {
    options.peers = value;
  } else if (name == "--inputs") {
    options.inputs = ParseCount(name, value, kAllInputs);
  } else if (name == "--elements") {
    options.elements = ParseCount(name, value, kMostElements);
  } else if (name == "--rounds") {
    options.rounds = static_cast<int>(std::max<uint64_t>(1, ParseCount(name, value, kMostRounds)));
  } else {
    throw UsageError("dlsim_gpu_check", "unknown option", "see --help", Quoted(name));
  }
}

}  // namespace

bool Options::Wants(const std::string& group) const {
  return groups.empty() || std::ranges::find(groups, group) != groups.end();
}

Options ParseOptions(std::span<const char* const> arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view name = arguments[i];
    if (name == "--help") {
      options.help = true;
    } else if (name == "--quick") {
      options.effort = Effort::kQuick;
    } else if (name == "--full") {
      options.effort = Effort::kFull;
    } else if (i + 1 == arguments.size()) {
      throw UsageError("dlsim_gpu_check", "unknown option, or one without its value", "see --help",
                       Quoted(name));
    } else {
      SetOption(name, arguments[++i], options);
    }
  }
  FillSizes(options);
  return options;
}

const char* HelpText() {
  return R"(dlsim_gpu_check [OPTION]...
Checks the CUDA kernels for encoding against the scalar reference, and times all kernels.
  --quick          sweeps over 2^24 inputs and arrays of 2^26 elements instead of 2^32 and 2^30
  --full           the host repeats every sweep, too (some ten minutes on 16 cores)
  --only GROUPS    some of encode,large,multi,bench
  --device N       the CUDA device (default 0)
  --json FILE      writes all results
  --peers FILE     timings of other programs for the table: name TAB data set TAB GB/s
  --inputs N, --elements N, --rounds N   other sizes
Exit code: 0 all equal, 1 a difference, 2 wrong usage, 3 no usable device.
)";
}

}  // namespace dlsim::gpu_check
