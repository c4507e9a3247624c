// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/command_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/statistics/univariate_statistics.hpp>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/table.h"
#include "sim/bench/benchmark_file.h"
#include "sim/bench/serial_share.h"

namespace dlsim::sim {
namespace {

// The medians of one command.
struct CommandTimes {
  std::string name;
  double wall_seconds = 0, cpu_seconds = 0, bytes_per_second = 0, fraction = 0, peak_bytes = 0;
  bool is_limit = false;
};

double MedianOf(const std::vector<const Json*>& entries, const char* member) {
  std::vector<double> values;
  for (const Json* const entry : entries) {
    if (entry->contains(member)) values.push_back((*entry)[member].get<double>());
  }
  return values.empty() ? 0 : boost::math::statistics::median(values);
}

// In the order of the entries, of which those of one name follow each other.
std::vector<CommandTimes> TimesOf(const Json& entries) {
  std::vector<std::pair<std::string, std::vector<const Json*>>> groups;
  for (const Json& entry : entries) {
    const std::string name = entry.at("name");
    if (groups.empty() || groups.back().first != name) groups.push_back({name, {}});
    groups.back().second.push_back(&entry);
  }
  std::vector<CommandTimes> all;
  for (const auto& [name, group] : groups) {
    all.push_back({name, 1e-9 * MedianOf(group, "real_time"), 1e-9 * MedianOf(group, "cpu_time"),
                   MedianOf(group, "bytes_per_second"), MedianOf(group, "fraction_of_stream"),
                   MedianOf(group, "peak_bytes"), group.front()->contains("label")});
  }
  return all;
}

std::string WithoutThreads(const std::string& name) { return name.substr(0, name.rfind('/')); }

std::string CommandTable(const std::vector<CommandTimes>& all) {
  std::vector<TableRow> rows = {{"command", "wall", "cpu", "GB/s", "of limit", "peak"}};
  for (const CommandTimes& times : all) {
    rows.push_back({times.name, fmt::format("{:.3f} s", times.wall_seconds),
                    fmt::format("{:.3f} s", times.cpu_seconds),
                    fmt::format("{:.2f}", 1e-9 * times.bytes_per_second),
                    times.is_limit ? "limit" : fmt::format("{:.2f}", times.fraction),
                    times.is_limit ? "-" : fmt::format("{:.0f} MB", 1e-6 * times.peak_bytes)});
  }
  return FormatTable(rows);
}

std::string ScalingTable(const std::vector<CommandScaling>& scaling) {
  TableRow header = {"command", "speed-up", "serial"};
  for (const int cores : kPredictedCores) header.push_back(fmt::format("{} cores", cores));
  std::vector<TableRow> rows = {header};
  for (const CommandScaling& command : scaling) {
    const std::string speedup =
        command.speedup > 0 ? fmt::format("{:.2f}", command.speedup) : std::string("-");
    TableRow row = {command.name, speedup, fmt::format("{:.1f} %", 100 * command.serial_share)};
    for (const int cores : kPredictedCores) {
      row.push_back(
          fmt::format("{:.0f} %", 100 * PredictedEfficiency(command.serial_share, cores)));
    }
    rows.push_back(std::move(row));
  }
  return FormatTable(rows);
}

// Whether commands on one thread, which wait for nothing in memory, did not run all the time.
bool WasBusy(const std::vector<CommandTimes>& all) {
  return std::ranges::any_of(all, [](const CommandTimes& times) {
    if (times.is_limit || UsesWallTime(times.name)) return false;
    return times.cpu_seconds < 0.8 * times.wall_seconds;
  });
}

}  // namespace

std::vector<CommandScaling> ScalingOf(const Json& entries) {
  const std::vector<CommandTimes> all = TimesOf(entries);
  std::vector<CommandScaling> scaling;
  for (const CommandTimes& times : all) {
    const int threads = ThreadsOf(times.name);
    if (threads == 1 || times.is_limit) continue;
    CommandScaling& command = scaling.emplace_back();
    command.name = times.name;
    command.threads = threads;
    command.serial_share = SerialShare(times.wall_seconds, times.cpu_seconds, threads);
    for (const CommandTimes& other : all) {
      const bool is_single = ThreadsOf(other.name) == 1;
      if (!is_single || WithoutThreads(other.name) != WithoutThreads(times.name)) continue;
      command.speedup = other.wall_seconds / times.wall_seconds;
    }
  }
  return scaling;
}

Json ScalingJson(const std::vector<CommandScaling>& scaling) {
  Json list = Json::array();
  for (const CommandScaling& command : scaling) {
    Json& object = list.emplace_back(Json::object());
    object["name"] = command.name;
    object["threads"] = command.threads;
    if (command.speedup > 0) object["speedup"] = command.speedup;
    object["serial_share"] = command.serial_share;
    for (const int cores : kPredictedCores) {
      object["efficiency"][std::to_string(cores)] =
          PredictedEfficiency(command.serial_share, cores);
    }
  }
  return list;
}

std::string CommandReport(const Json& document) {
  const Json& entries = document.at("benchmarks");
  const std::vector<CommandTimes> all = TimesOf(entries);
  std::string text = CommandTable(all);
  const std::vector<CommandScaling> scaling = ScalingOf(entries);
  if (scaling.empty()) return text;
  return text +
         "\nSerial: work done while other threads have none. By it, of so many cores these "
         "would be busy:\n" +
         ScalingTable(scaling) +
         (WasBusy(all) ? "The machine was busy, and its other programs count as serial.\n" : "");
}

}  // namespace dlsim::sim
