// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/benchmark_file.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "dlsim/error.h"
#include "src/trace/strict_json.h"

namespace dlsim::sim {
namespace {

// Time depends on the machine and on the arrays; instructions, which are counted on one thread and
// in one size, depend on the code alone.
constexpr std::array<const char*, 8> kTimeFields = {"cpu_model", "simd_target",    "threads",
                                                    "compiler",  "compiler_flags", "dram_mib",
                                                    "suite",     "trace_mib"};
constexpr std::array<const char*, 3> kInstructionFields = {"simd_target", "compiler",
                                                           "compiler_flags"};
// What Google Benchmark records of a machine and a build by itself.
constexpr std::array<const char*, 3> kPlainFields = {"num_cpus", "mhz_per_cpu",
                                                     "library_build_type"};

std::string AsText(const Json& value) {
  return value.is_string() ? value.get<std::string>() : DumpJson(value);
}

// Custom context of dlsim_bench stands among that of Google Benchmark; all of it is text.
Identity ReadIdentity(const BenchmarkFile& file, const Json& context, const Json& block) {
  Identity identity = {{"kind", std::string(NameOf(file.kind))}};
  const auto add = [&](const auto& fields) {
    for (const char* const field : fields) {
      const Json& holder = block.contains(field) ? block : context;
      if (holder.contains(field)) identity[field] = AsText(holder[field]);
    }
  };
  if (file.kind == BenchKind::kInstructions) {
    add(kInstructionFields);
  } else if (block.contains("cpu_model") || context.contains("cpu_model")) {
    add(kTimeFields);
    add(kGpuFields);
  } else {
    add(kPlainFields);
  }
  return identity;
}

const Json& Member(const std::string& place, const Json& object, const char* name) {
  if (!object.contains(name)) throw InputError(place, std::string("no \"") + name + "\"");
  return object[name];
}

std::string TextMember(const std::string& place, const Json& object, const char* name) {
  const Json& value = Member(place, object, name);
  if (!value.is_string()) throw InputError(place, std::string("bad \"") + name + "\"", "a text");
  return value.get<std::string>();
}

double PositiveMember(const std::string& place, const Json& object, const char* name) {
  const Json& value = Member(place, object, name);
  const double number = value.is_number() ? value.get<double>() : 0;
  if (number > 0 && std::isfinite(number)) return number;
  throw InputError(place, std::string("bad \"") + name + "\"", "a positive number",
                   Quoted(DumpJson(value)));
}

double NanosecondsPer(const std::string& place, const std::string& unit) {
  if (unit == "ns") return 1;
  if (unit == "us") return 1e3;
  if (unit == "ms") return 1e6;
  if (unit == "s") return 1e9;
  throw InputError(place, "bad \"time_unit\"", "one of ns, us, ms, s", Quoted(unit));
}

const char* TimeMember(const std::string& name) {
  return UsesWallTime(name) ? "real_time" : "cpu_time";
}

double CostOf(const std::string& place, const Json& entry, BenchKind kind,
              const std::string& name) {
  if (kind == BenchKind::kInstructions) return PositiveMember(place, entry, "instructions");
  const double unit = NanosecondsPer(place, TextMember(place, entry, "time_unit"));
  return unit * PositiveMember(place, entry, TimeMember(name));
}

void AddCounter(const Json& entry, const char* name, double factor, std::vector<double>& values) {
  if (!entry.contains(name) || !entry[name].is_number()) return;
  values.push_back(factor * entry[name].get<double>());
}

// dlsim_bench divides bytes by wall-clock time, whichever time stands for the kernel here.
double RateFactor(const std::string& place, const Json& entry, const BenchmarkFile& file,
                  const std::string& name) {
  if (!file.identity.contains("cpu_model") || file.kind != BenchKind::kTime) return 1;
  return PositiveMember(place, entry, "real_time") / PositiveMember(place, entry, TimeMember(name));
}

// Adds one entry of "benchmarks" to its kernel. Aggregates repeat what the repetitions say.
void AddEntry(const std::string& place, const Json& entry, BenchmarkFile& file,
              std::unordered_map<std::string, size_t>& index) {
  if (!entry.is_object()) throw InputError(place, "bad benchmark", "an object");
  if (entry.contains("run_type") && AsText(entry["run_type"]) == "aggregate") return;
  const bool has_run_name = entry.contains("run_name");  // not before Google Benchmark 1.5
  const std::string name = TextMember(place, entry, has_run_name ? "run_name" : "name");
  const std::string entry_place = place + ": " + Printable(name);
  if (entry.contains("error_occurred") && entry["error_occurred"] == true) {
    const std::string message =
        entry.contains("error_message") ? AsText(entry["error_message"]) : "";
    throw InputError(entry_place, "the benchmark failed: " + Printable(message));
  }
  const auto [found, is_new] = index.try_emplace(name, file.kernels.size());
  if (is_new) file.kernels.emplace_back().name = name;
  KernelSamples& kernel = file.kernels[found->second];
  const std::string label = entry.contains("label") ? AsText(entry["label"]) : "";
  if (label == kLimitLabel || label == kPeerLabel) kernel.is_judged = false;
  kernel.cost.push_back(CostOf(entry_place, entry, file.kind, name));
  const double rate_factor = RateFactor(entry_place, entry, file, name);
  AddCounter(entry, "bytes_per_second", rate_factor, kernel.bytes_per_second);
  AddCounter(entry, "fraction_of_stream", 1, kernel.fraction_of_stream);
}

BenchKind KindOf(const std::string& place, const Json& block) {
  if (TextMember(place, block, "schema") != kBenchSchema) {
    throw InputError(place, "unknown schema", std::string(kBenchSchema),
                     Quoted(AsText(block["schema"])));
  }
  const std::string kind = TextMember(place, block, "kind");
  if (const std::optional<BenchKind> known = ValueNamed<BenchKind>(kind)) return *known;
  throw InputError(place, "bad \"kind\"", "time or instructions", Quoted(kind));
}

}  // namespace

int ThreadsOf(std::string_view name) {
  constexpr std::string_view kPrefix = "/threads:";
  const size_t at = name.find(kPrefix);
  int threads = 1;
  if (at == name.npos) return threads;
  const char* const begin = name.data() + at + kPrefix.size();
  std::from_chars(begin, name.data() + name.size(), threads);
  return threads;
}

bool UsesWallTime(std::string_view name) {
  return ThreadsOf(name) > 1 || name.starts_with("gpu/") || name.find("/cold/") != name.npos;
}

BenchmarkFile ParseBenchmarks(const std::string& place, const Json& document) {
  BenchmarkFile file;
  file.place = place;
  if (!document.is_object() || !document.contains("context") || !document.contains("benchmarks")) {
    throw InputError(place, "no result of a benchmark",
                     "the JSON of dlsim bench run or of Google Benchmark");
  }
  const Json& context = document["context"];
  const Json& entries = document["benchmarks"];
  if (!context.is_object()) throw InputError(place, "bad \"context\"", "an object");
  if (!entries.is_array()) throw InputError(place, "bad \"benchmarks\"", "an array");
  file.has_dlsim_block = document.contains("dlsim");
  const Json block = file.has_dlsim_block ? document["dlsim"] : Json::object();
  if (!block.is_object()) throw InputError(place, "bad \"dlsim\"", "an object");
  if (file.has_dlsim_block) file.kind = KindOf(place, block);
  if (block.contains("processes")) file.processes = AsText(block["processes"]);
  if (block.contains("cpu_model")) file.cpu_model = AsText(block["cpu_model"]);
  file.identity = ReadIdentity(file, context, block);
  std::unordered_map<std::string, size_t> index;
  for (const Json& entry : entries) AddEntry(place, entry, file, index);
  if (file.kernels.empty()) throw InputError(place, "no benchmark in it");
  return file;
}

BenchmarkFile ReadBenchmarkFile(const std::string& path) {
  return ParseBenchmarks(Printable(path), Json(ReadJsonFile(path)));
}

void RequireComparable(const BenchmarkFile& base, const BenchmarkFile& current) {
  std::set<std::string> fields;
  for (const auto& [field, value] : base.identity) fields.insert(field);
  for (const auto& [field, value] : current.identity) fields.insert(field);
  const auto value_in = [](const BenchmarkFile& file, const std::string& field) {
    const auto found = file.identity.find(field);
    return found == file.identity.end() ? std::string("none") : Quoted(found->second);
  };
  std::string differences;
  for (const std::string& field : fields) {
    const std::string before = value_in(base, field), now = value_in(current, field);
    if (before == now) continue;
    differences += (differences.empty() ? "" : "; ") + field + " " + before + " against " + now;
  }
  if (differences.empty()) return;
  throw Error(ErrorKind::kIncomparable, base.place + " and " + current.place,
              "not comparable: " + differences);
}

}  // namespace dlsim::sim
