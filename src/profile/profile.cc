// SPDX-License-Identifier: Apache-2.0
// The folder of a profile, and the rows of numbers that a step is in it.
#include "dlsim/profile.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "src/base/check.h"
#include "src/profile/npz_members.h"
#include "src/table/exact_sum.h"
#include "src/trace/read_only_file.h"
#include "src/trace/strict_json.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSchema = "dlsim.profile/2", kStepSchema = "dlsim.profile-step/2";
constexpr const char* kSettingsName = "profile.json";
constexpr uint64_t kMostSettingsBytes = uint64_t{1} << 25;
constexpr int64_t kMostMantissas = 64, kMostParts = 1 << 20;

// ---- Files of the folder

std::string StepName(int64_t step) {
  std::array<char, 40> name{};
  const int size =
      std::snprintf(name.data(), name.size(), "step-%010lld.npz", static_cast<long long>(step));
  return std::string(name.data(), static_cast<size_t>(size));
}

// The step of a file name; nothing for names that are not of steps.
std::optional<int64_t> StepOfName(std::string_view name) {
  if (!name.starts_with("step-") || !name.ends_with(".npz")) return std::nullopt;
  const std::optional<int64_t> step = ParseDigits(name.substr(5, name.size() - 9));
  return step && StepName(*step) == name ? step : std::nullopt;
}

// A file that is being written is hidden: ".step-0000000012.npz.4711-3.tmp".
bool IsTemporary(std::string_view name) {
  return name.ends_with(".tmp") &&
         (name.starts_with(".step-") || name.starts_with(".profile.json."));
}

[[noreturn]] void Fail(const std::string& path, const char* what) {
  throw InputError(Printable(path), std::string(what) + " (" + std::strerror(errno) + ")");
}

std::vector<std::string> NamesIn(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
  if (directory == nullptr) Fail(folder, "cannot be read");
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* const entry = readdir(directory.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) Fail(folder, "cannot be read");
  return names;
}

// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int number() const { return number_; }
  int Close() { return close(std::exchange(number_, -1)); }

 private:
  int number_;
};

bool WriteAll(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = ENOSPC;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

// A temporary file, locked as long as its writer lives: whoever can lock it may remove it.
class Temporary {
 public:
  explicit Temporary(const std::string& target) : target_(target) {
    static std::atomic<uint64_t> counter = 0;
    const size_t slash = target.rfind('/');
    const std::string prefix = target.substr(0, slash + 1) + "." + target.substr(slash + 1) + "." +
                               std::to_string(getpid()) + "-";
    constexpr int kMostAttempts = 1000;
    for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
      path_ = prefix + std::to_string(counter++) + ".tmp";
      constexpr int kCreate = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
      descriptor_ = open(path_.c_str(), kCreate, 0666);
      if (descriptor_ < 0 && (errno == EEXIST || errno == EINTR)) continue;
      if (descriptor_ < 0) break;
      // Where files cannot be locked, nobody removes them. Somebody may have, before it was locked.
      while (flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) continue;
      struct stat status = {};
      if (fstat(descriptor_, &status) != 0 || status.st_nlink > 0) return;
      close(descriptor_);
    }
    Fail(target, "cannot be written");
  }

  ~Temporary() {
    if (!path_.empty()) unlink(path_.c_str());
    close(descriptor_);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  void Write(std::string_view bytes) const {
    if (!WriteAll(descriptor_, bytes)) Fail(target_, "cannot be written");
    int failed = fsync(descriptor_);
    while (failed != 0 && errno == EINTR) failed = fsync(descriptor_);
    if (failed != 0) Fail(target_, "cannot be written");
  }

  void Replace() {
    if (std::rename(path_.c_str(), target_.c_str()) != 0)
      Fail(target_, "cannot be renamed into place");
    path_.clear();
  }

  // Returns false if the target is there already.
  bool Create() {
    if (link(path_.c_str(), target_.c_str()) == 0) return true;
    if (errno == EEXIST) return false;
    Replace();  // a file system without links
    return true;
  }

 private:
  std::string target_;
  std::string path_;
  int descriptor_ = -1;
};

// Removes the temporary files of writers that were killed.
void RemoveAbandoned(const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!IsTemporary(name)) continue;
    const std::string path = folder + "/" + name;
    const Descriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file.number() < 0 || flock(file.number(), LOCK_EX | LOCK_NB) != 0) continue;
    unlink(path.c_str());
  }
}

// Keeps a file's name where the machine fails next.
void SyncFolder(const std::string& folder) {
  const Descriptor directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.number() >= 0) fsync(directory.number());
}

// ---- Settings

Json SettingsJson(const ProfileSettings& settings) {
  Json json;
  json["schema"] = std::string(kSchema);
  json["scaled_formats"] = Json::array();
  for (const NamedScaledFormat& format : settings.scaled) {
    json["scaled_formats"].push_back(format.name);
  }
  json["mantissas"] = Json::array();
  for (const float mantissa : settings.mantissas) json["mantissas"].push_back(double{mantissa});
  json["tensors"] = settings.tensors;
  json["accumulation"] = NameOf(settings.accumulation);
  json["accumulate_steps"] = settings.accumulate_steps;
  json["description"] = Json::object();
  for (const auto& [key, value] : settings.description) json["description"][key] = value;
  return json;
}

std::string Dump(const std::string& place, const Json& json, int indent = -1) {
  try {
    return json.dump(indent);
  } catch (const nlohmann::json::exception& exception) {
    throw InputError(place, "a profile cannot hold this: " + JsonMessage(exception));
  }
}

std::string Hex(uint64_t number) {
  std::array<char, 20> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(number));
  return text.data();
}

// Steps name the settings that they were made with.
std::string SettingsKey(const ProfileSettings& settings) {
  const std::string text = Dump(kSettingsName, SettingsJson(settings));
  return Hex(XXH3_64bits(text.data(), text.size()));
}

// Reads JSON with what a defect means: `read` may throw nlohmann's exceptions.
template <class Read>
auto ReadJson(const std::string& place, const std::string& text, const Read& read) {
  CheckStrictJson(place, text);
  try {
    return read(Json::parse(text));
  } catch (const nlohmann::json::exception& exception) {
    throw InputError(place, "damaged: " + JsonMessage(exception));
  }
}

void RequireSchema(const std::string& place, const Json& json, std::string_view schema) {
  const std::string got = json.at("schema").get<std::string>();
  if (got != schema) throw InputError(place, "unknown schema", Quoted(schema), Quoted(got));
}

int64_t NumberIn(const std::string& place, const Json& json, const char* key, int64_t least,
                 int64_t most) {
  const Json& value = json.at(key);
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t(most)
                                               : value.is_number_integer();
  if (fits && value.get<int64_t>() >= least && value.get<int64_t>() <= most) {
    return value.get<int64_t>();
  }
  throw InputError(place, "damaged: '" + std::string(key) + "' has a wrong value",
                   std::to_string(least) + " to " + std::to_string(most), Printable(value.dump()));
}

template <NamedEnum E>
E NameIn(const std::string& place, const Json& json, const char* key) {
  const std::string text = json.at(key).get<std::string>();
  if (const std::optional<E> value = ValueNamed<E>(text)) return *value;
  throw InputError(place, "damaged: unknown " + std::string(key), {}, Quoted(text));
}

std::map<std::string, std::string> TextsIn(const Json& json) {
  std::map<std::string, std::string> texts;
  for (const auto& [key, value] : json.items()) texts[key] = value.get<std::string>();
  return texts;
}

ProfileSettings ReadSettings(const std::string& folder) {
  const std::string path = folder + "/" + kSettingsName, place = Printable(path);
  return ReadJson(place, ReadTextFile(path, kMostSettingsBytes), [&](const Json& json) {
    RequireSchema(place, json, kSchema);
    ProfileSettings settings;
    for (const Json& name : json.at("scaled_formats")) {
      try {
        settings.scaled.push_back(ParseScaledFormat(name.get<std::string>()));
      } catch (const Error& error) {
        throw InputError(place, std::string("damaged: ") + error.what());
      }
    }
    for (const Json& number : json.at("mantissas")) {
      const auto mantissa = static_cast<float>(number.get<double>());
      const bool ascends = settings.mantissas.empty() || settings.mantissas.back() < mantissa;
      if (!(mantissa > 1 && mantissa < 2 && ascends) || double{mantissa} != number.get<double>() ||
          settings.mantissas.size() == kMostMantissas) {
        throw InputError(place, "damaged: 'mantissas' has a wrong value",
                         "ascending float32 numbers between 1 and 2", Printable(number.dump()));
      }
      settings.mantissas.push_back(mantissa);
    }
    settings.tensors = json.at("tensors").get<std::string>();
    settings.accumulation = NameIn<Accumulation>(place, json, "accumulation");
    settings.accumulate_steps =
        NumberIn(place, json, "accumulate_steps", 1, std::numeric_limits<int64_t>::max());
    settings.description = TextsIn(json.at("description"));
    return settings;
  });
}

// Throws for the first setting that a profile has otherwise than it is asked for.
void RequireSame(const std::string& place, const Json& has, const Json& asked) {
  for (const auto& [key, value] : asked.items()) {
    if (has.at(key) == value) continue;
    const auto shown = [](const Json& json) {
      return json.is_string() ? Quoted(json.get<std::string>()) : Printable(json.dump());
    };
    throw InputError(place, "the profile was made with another '" + key + "'", shown(has.at(key)),
                     shown(value));
  }
}

// ---- Rows

// A table, but for its lists.
struct TableRow {
  uint32_t tensor = 0;  // index
  int32_t part = 0;     // index; -1: the sum over the parts
  float mantissa = 1;   // by which values were multiplied
  uint64_t elements = 0, zeros = 0, nan = 0, inf = 0;
  float absmax = 0, largest = 0;
  double sum_of_squares = 0;

  template <class Self, class Visit>
  static void Fields(Self& row, const Visit& visit) {
    visit("tensor", row.tensor);
    visit("part", row.part);
    visit("mantissa", row.mantissa);
    visit("elements", row.elements);
    visit("zeros", row.zeros);
    visit("nan", row.nan);
    visit("inf", row.inf);
    visit("absmax", row.absmax);
    visit("largest", row.largest);
    visit("sum_of_squares", row.sum_of_squares);
  }
};

// One of TensorTable::values.
struct ValueRow {
  uint32_t table = 0;  // index
  float value = 0;

  template <class Self, class Visit>
  static void Fields(Self& row, const Visit& visit) {
    visit("table", row.table);
    visit("value", row.value);
  }
};

// One of TensorTable::channels, whose key is that of the least magnitude that it counts.
struct ChannelRow {
  uint32_t table = 0;  // index
  float magnitude = 0;
  uint64_t channels = 0;

  static constexpr int kKeyShift = 21;

  template <class Self, class Visit>
  static void Fields(Self& row, const Visit& visit) {
    visit("table", row.table);
    visit("magnitude", row.magnitude);
    visit("channels", row.channels);
  }
};

// A Binade. Sums of squares are in two words; the high ones are mostly zero and lie together, so
// that they take little room. The errors at the last quantum follow from other columns.
struct BinadeRow {
  static constexpr size_t kErrors = Binade::kQuanta - 1;

  uint32_t table = 0;  // index
  int16_t exponent = 0;
  uint64_t count = 0, powers = 0, significands = 0;
  std::array<uint64_t, Binade::kMostBits> rounding_up{};
  std::array<uint64_t, Binade::kTails> tail_sums{};
  uint64_t squares = 0;
  std::array<uint64_t, Binade::kTails> tail_squares{};
  std::array<uint64_t, kErrors> errors{};
  uint64_t squares_high = 0;
  std::array<uint64_t, Binade::kTails> tail_squares_high{};
  std::array<uint64_t, kErrors> errors_high{};

  template <class Self, class Visit>
  static void Fields(Self& row, const Visit& visit) {
    visit("table", row.table);
    visit("exponent", row.exponent);
    visit("count", row.count);
    visit("powers", row.powers);
    visit("significands", row.significands);
    visit("rounding_up", row.rounding_up);
    visit("tail_sums", row.tail_sums);
    visit("squares", row.squares);
    visit("tail_squares", row.tail_squares);
    visit("errors", row.errors);
    visit("squares_high", row.squares_high);
    visit("tail_squares_high", row.tail_squares_high);
    visit("errors_high", row.errors_high);
  }
};

uint64_t Low(uint128_t value) { return static_cast<uint64_t>(value); }
uint64_t High(uint128_t value) { return static_cast<uint64_t>(value >> 64); }
uint128_t Joined(uint64_t low, uint64_t high) { return uint128_t{high} << 64 | low; }

// Distances to 2^24, the only multiple of the last quantum that is near.
uint128_t LastErrors(uint64_t count, uint64_t significands, uint128_t squares) {
  return squares + (uint128_t{count} << 48) - (uint128_t{significands} << 25);
}

BinadeRow RowOf(const Binade& binade, size_t table) {
  DLSIM_CHECK(binade.errors.back() ==
              LastErrors(binade.count, binade.significands, binade.squares));
  BinadeRow row;
  row.table = static_cast<uint32_t>(table);
  row.exponent = static_cast<int16_t>(binade.exponent);
  row.count = binade.count;
  row.powers = binade.powers;
  row.significands = binade.significands;
  row.rounding_up = binade.rounding_up;
  row.tail_sums = binade.tail_sums;
  row.squares = Low(binade.squares);
  row.squares_high = High(binade.squares);
  for (size_t i = 0; i < Binade::kTails; ++i) {
    row.tail_squares[i] = Low(binade.tail_squares[i]);
    row.tail_squares_high[i] = High(binade.tail_squares[i]);
  }
  for (size_t i = 0; i < BinadeRow::kErrors; ++i) {
    row.errors[i] = Low(binade.errors[i]);
    row.errors_high[i] = High(binade.errors[i]);
  }
  return row;
}

Binade BinadeOf(const BinadeRow& row) {
  Binade binade;
  binade.exponent = row.exponent;
  binade.count = row.count;
  binade.powers = row.powers;
  binade.significands = row.significands;
  binade.rounding_up = row.rounding_up;
  binade.tail_sums = row.tail_sums;
  binade.squares = Joined(row.squares, row.squares_high);
  for (size_t i = 0; i < Binade::kTails; ++i) {
    binade.tail_squares[i] = Joined(row.tail_squares[i], row.tail_squares_high[i]);
  }
  for (size_t i = 0; i < BinadeRow::kErrors; ++i) {
    binade.errors[i] = Joined(row.errors[i], row.errors_high[i]);
  }
  binade.errors.back() = LastErrors(binade.count, binade.significands, binade.squares);
  return binade;
}

// What a tensor loses in a scaled format.
struct ScaledRow {
  uint32_t format = 0;  // index in the settings
  uint32_t tensor = 0;  // index
  uint32_t axis = 0;    // 0: blocks along rows
  ScaledStats stats;

  template <class Self, class Visit>
  static void Fields(Self& row, const Visit& visit) {
    visit("format", row.format);
    visit("tensor", row.tensor);
    visit("axis", row.axis);
    auto& stats = row.stats.stats;
    visit("elements", stats.elements);
    visit("zeros", stats.zeros);
    visit("nan", stats.nan);
    visit("inf", stats.inf);
    visit("underflow", stats.underflow);
    visit("subnormal", stats.subnormal);
    visit("overflow", stats.overflow);
    visit("nonfinite_outputs", stats.nonfinite_outputs);
    visit("absmax", stats.absmax);
    visit("sum_of_squares", stats.sum_of_squares);
    visit("error_sum_of_squares", stats.error_sum_of_squares);
    visit("underflow_sum_of_squares", stats.underflow_sum_of_squares);
    visit("quantized_sum_of_squares", stats.quantized_sum_of_squares);
    visit("mean_channel_harm", row.stats.mean_channel_harm);
    visit("worst_channel_harm", row.stats.worst_channel_harm);
    visit("channels", row.stats.channels);
    visit("min_scale", row.stats.min_scale);
    visit("max_scale", row.stats.max_scale);
  }
};

// ---- A step

// Calls visit(table, tensor, part, mantissa) for all tables of a step, in the order of their rows.
template <class Step, class Visit>
void ForEachTable(Step& step, const Visit& visit) {
  const auto parts = [&](auto& tables, float mantissa) {
    for (size_t part = 0; part < tables.size(); ++part) {
      for (size_t t = 0; t < tables[part].size(); ++t) {
        visit(tables[part][t], t, static_cast<int32_t>(part), mantissa);
      }
    }
  };
  parts(step.parts, 1);
  for (size_t t = 0; t < step.sums.size(); ++t) visit(step.sums[t], t, -1, 1.0f);
  for (auto& [mantissa, tables] : step.by_mantissa) parts(tables, mantissa);
}

Json HeadJson(const StepTables& step, const ProfileSettings& settings) {
  Json json;
  json["schema"] = std::string(kStepSchema);
  json["settings"] = SettingsKey(settings);
  json["step"] = step.step;
  json["parts"] = step.parts.size();
  json["micro_steps"] = step.micro_steps;
  json["sums"] = !step.sums.empty();
  json["gradients"] = step.gradients;
  json["tensors"] = Json::array();
  for (const TensorInfo& tensor : step.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"role", NameOf(tensor.role)},
                               {"dtype", NameOf(tensor.dtype)},
                               {"shape", tensor.shape}});
  }
  json["files"] = Json::array();
  for (const RecordedFile& file : step.files) {
    json["files"].push_back({{"name", file.name},
                             {"bytes", file.bytes},
                             {"content", file.content == 0 ? Json() : Json(Hex(file.content))}});
  }
  json["metadata"] = Json::object();
  for (const auto& [key, value] : step.metadata) json["metadata"][key] = value;
  return json;
}

constexpr std::string_view kBytesType = "'|u1'";

std::string EncodeStep(const std::string& place, const StepTables& step,
                       const ProfileSettings& settings) {
  const std::string head = Dump(place, HeadJson(step, settings));
  std::vector<TableRow> tables;
  std::vector<ValueRow> values;
  std::vector<ChannelRow> channels;
  std::vector<BinadeRow> binades;
  ForEachTable(step, [&](const TensorTable& table, size_t tensor, int32_t part, float mantissa) {
    const auto index = static_cast<uint32_t>(tables.size());
    tables.push_back({static_cast<uint32_t>(tensor), part, mantissa, table.elements, table.zeros,
                      table.nan, table.inf, table.absmax, table.largest, table.sum_of_squares});
    for (const float value : table.values) values.push_back({index, value});
    for (const auto& [key, count] : table.channels) {
      channels.push_back({index, std::bit_cast<float>(key << ChannelRow::kKeyShift), count});
    }
    for (const Binade& binade : table.binades) binades.push_back(RowOf(binade, index));
  });
  std::vector<NpzBytes> members = {{"header", MakeNpyList(kBytesType, head.size(), head)},
                                   PackRows("tables", tables),
                                   PackRows("binades", binades),
                                   PackRows("values", values),
                                   PackRows("channels", channels)};
  if (!step.scaled.empty()) {
    std::vector<ScaledRow> scaled;
    for (uint32_t format = 0; format < step.scaled.size(); ++format) {
      for (uint32_t t = 0; t < step.scaled[format].size(); ++t) {
        for (uint32_t axis = 0; axis < 2; ++axis) {
          scaled.push_back({format, t, axis, step.scaled[format][t].by_axis[axis]});
        }
      }
    }
    members.push_back(PackRows("scaled", scaled));
  }
  return MakeNpz(members);
}

// Refuses what the settings do not say, before it is written.
void CheckStep(const StepTables& step, const ProfileSettings& settings) {
  const size_t tensors = step.tensors.size(), parts = step.parts.size();
  const auto has = [](const auto& lists, size_t outer, size_t inner) {
    return lists.size() == outer &&
           std::ranges::all_of(lists, [&](const auto& list) { return list.size() == inner; });
  };
  DLSIM_CHECK(parts >= 1 && has(step.parts, parts, tensors) && step.gradients <= tensors);
  DLSIM_CHECK(step.micro_steps.size() == parts || parts == 1);
  DLSIM_CHECK(step.sums.empty() || step.sums.size() == step.gradients);
  DLSIM_CHECK(has(step.scaled, settings.scaled.size(), tensors));
  DLSIM_CHECK(std::ranges::equal(step.by_mantissa, settings.mantissas, {},
                                 [](const auto& entry) { return entry.first; }));
  for (const auto& [mantissa, tables] : step.by_mantissa) {
    DLSIM_CHECK(has(tables, parts, step.gradients));
  }
}

// A step without tables, and what they will be.
struct Head {
  StepTables step;
  size_t parts = 0;
  bool sums = false;
};

std::vector<TensorInfo> TensorsIn(const std::string& place, const Json& json) {
  std::vector<TensorInfo> tensors;
  std::set<std::string> names;
  for (const Json& entry : json) {
    TensorInfo& tensor = tensors.emplace_back();
    tensor.name = entry.at("name").get<std::string>();
    if (!names.insert(tensor.name).second) {
      throw InputError(place, "damaged: two tensors of one name", {}, Quoted(tensor.name));
    }
    tensor.role = NameIn<Role>(place, entry, "role");
    tensor.dtype = NameIn<DType>(place, entry, "dtype");
    for (const Json& dimension : entry.at("shape")) {
      if (!dimension.is_number_unsigned() || tensor.shape.size() == kMaxRank) {
        throw InputError(place, "damaged: 'shape' has a wrong value", {},
                         Printable(entry.at("shape").dump()));
      }
      tensor.shape.push_back(dimension.get<uint64_t>());
    }
  }
  return tensors;
}

std::vector<RecordedFile> FilesIn(const std::string& place, const Json& json) {
  std::vector<RecordedFile> files;
  for (const Json& entry : json) {
    RecordedFile& file = files.emplace_back();
    file.name = entry.at("name").get<std::string>();
    file.bytes = static_cast<uint64_t>(
        NumberIn(place, entry, "bytes", 0, std::numeric_limits<int64_t>::max()));
    if (entry.at("content").is_null()) continue;
    const std::string text = entry.at("content").get<std::string>();
    const std::string_view digits = text;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), file.content, 16);
    if (error != std::errc() || end != digits.data() + digits.size() || Hex(file.content) != text) {
      throw InputError(place, "damaged: 'content' has a wrong value", "16 hexadecimal digits",
                       Quoted(text));
    }
  }
  return files;
}

Head ReadHead(const std::shared_ptr<NpzArchive>& archive, int64_t number,
              const ProfileSettings& settings) {
  const std::string place = archive->place() + ": header";
  const std::string text = ReadNpyList(archive, "header", kBytesType, 1);
  return ReadJson(place, text, [&](const Json& json) {
    RequireSchema(place, json, kStepSchema);
    const std::string key = json.at("settings").get<std::string>();
    if (key != SettingsKey(settings)) {
      throw InputError(archive->place(), "made with other settings than those of profile.json",
                       SettingsKey(settings), Quoted(key));
    }
    Head head;
    StepTables& step = head.step;
    step.step = NumberIn(place, json, "step", number, number);
    head.parts = static_cast<size_t>(NumberIn(place, json, "parts", 1, kMostParts));
    for (const Json& micro : json.at("micro_steps")) {
      if (!micro.is_number_integer()) {
        throw InputError(place, "damaged: 'micro_steps' has a wrong value", "numbers",
                         Printable(micro.dump()));
      }
      step.micro_steps.push_back(micro.get<int64_t>());
    }
    if (step.micro_steps.size() != head.parts && head.parts != 1) {
      throw InputError(place, "damaged: 'micro_steps' has a wrong length",
                       std::to_string(head.parts), std::to_string(step.micro_steps.size()));
    }
    head.sums = json.at("sums").get<bool>();
    step.tensors = TensorsIn(place, json.at("tensors"));
    step.gradients = static_cast<size_t>(
        NumberIn(place, json, "gradients", 0, static_cast<int64_t>(step.tensors.size())));
    for (size_t t = 0; t < step.tensors.size(); ++t) {
      if (IsGradient(step.tensors[t].role) == (t < step.gradients)) continue;
      throw InputError(place, "damaged: tensors out of order", "gradients first",
                       Quoted(step.tensors[t].name));
    }
    step.files = FilesIn(place, json.at("files"));
    step.metadata = TextsIn(json.at("metadata"));
    return head;
  });
}

// Significands of values in one binade.
constexpr uint64_t kLeast = 1u << 23, kMost = (1u << 24) - 1;

bool IsBetween(uint128_t value, uint128_t least, uint128_t most) {
  return least <= value && value <= most;
}

// Returns the first column of a binade that cannot be true; null for none.
const char* WrongColumn(const Binade& binade) {
  const uint128_t count = binade.count;
  if (count == 0) return "count";
  if (binade.powers > count) return "powers";
  if (!IsBetween(binade.significands, count * kLeast, count * kMost)) return "significands";
  if (!IsBetween(binade.squares, count * kLeast * kLeast, count * kMost * kMost)) return "squares";
  // Neither more than there are, nor more than those that one bit less rounds up.
  uint64_t before = binade.count;
  for (const uint64_t up : binade.rounding_up) {
    if (up > before) return "rounding_up";
    before = up;
  }
  for (size_t i = 0; i < Binade::kTails; ++i) {
    const uint128_t up = binade.rounding_up[Binade::kFewestTailBits - 1 + i];
    const uint128_t lack = uint128_t{1} << (23 - Binade::kFewestTailBits - static_cast<int>(i));
    if (!IsBetween(binade.tail_sums[i], up, up * lack)) return "tail_sums";
    if (!IsBetween(binade.tail_squares[i], up, up * lack * lack)) return "tail_squares";
  }
  for (size_t i = 0; i < Binade::kQuanta; ++i) {
    const int half = 22 + Binade::kFirstQuantum + static_cast<int>(i);  // of a quantum, its log2
    if (binade.errors[i] > count << (2 * half)) return "errors";
  }
  return nullptr;
}

int ExponentOf(float magnitude) { return std::ilogb(magnitude); }

uint64_t Rotated(float value) { return std::rotl(std::bit_cast<uint32_t>(value), 1); }

// Refuses a table that contradicts itself.
void CheckTable(const std::string& place, const TensorTable& table) {
  const auto refuse = [&](const char* problem, const std::string& expected = {},
                          const std::string& got = {}) {
    throw InputError(place, problem, expected, got);
  };
  const uint128_t others = uint128_t{table.zeros} + table.nan + table.inf;
  uint128_t nonzero = table.values.size();
  ExactSum squares;
  for (size_t i = 0; i < table.binades.size(); ++i) {
    const Binade& binade = table.binades[i];
    if (!IsBetween(static_cast<uint128_t>(binade.exponent + 149), 0, 127 + 149)) {
      refuse("exponent out of range", "-149 to 127", std::to_string(binade.exponent));
    }
    if (i > 0 && table.binades[i - 1].exponent >= binade.exponent) refuse("exponents out of order");
    if (const char* const column = WrongColumn(binade)) {
      throw InputError(place, "impossible '" + std::string(column) + "' of exponent " +
                                  std::to_string(binade.exponent));
    }
    nonzero += binade.count;
    squares.Add(binade.squares, 2 * (binade.exponent - 23));
  }
  if (!table.values.empty() && !table.binades.empty()) refuse("has both values and binades");
  if (table.values.size() > TensorTable::kMostValues) {
    refuse("too many values", "at most " + std::to_string(TensorTable::kMostValues),
           std::to_string(table.values.size()));
  }
  for (size_t i = 0; i < table.values.size(); ++i) {
    const float value = table.values[i];
    if (!std::isfinite(value) || value == 0) refuse("a value that is zero or not finite");
    if (i > 0 && Rotated(table.values[i - 1]) > Rotated(value)) refuse("values out of order");
    int exponent = 0;
    const auto significand =
        static_cast<uint64_t>(std::ldexp(std::frexp(std::fabs(value), &exponent), 24));
    squares.Add(uint128_t{significand} * significand, 2 * (exponent - 24));
  }
  if (others + nonzero != table.elements) {
    refuse("other counts than elements", std::to_string(table.elements),
           std::to_string(static_cast<uint64_t>(others + nonzero)));
  }
  const bool has_absmax = !table.values.empty() ? table.absmax == std::fabs(table.values.back())
                          : !table.binades.empty()
                              ? std::isfinite(table.absmax) && table.absmax > 0 &&
                                    ExponentOf(table.absmax) == table.binades.back().exponent
                              : table.absmax == 0;
  if (!has_absmax) {
    refuse("a largest magnitude that is not there", {}, std::to_string(table.absmax));
  }
  const auto is_value = [&](float end) {
    return std::ranges::find(table.values, end) != table.values.end() ||
           std::ranges::find(table.binades, ExponentOf(end), &Binade::exponent) !=
               table.binades.end();
  };
  const bool has_largest =
      table.largest == 0 ||
      (table.largest > 0 && table.largest <= table.absmax && is_value(table.largest));
  if (!has_largest) {
    refuse("a largest value that is not there", {}, std::to_string(table.largest));
  }
  if (squares.Value() != table.sum_of_squares) {
    refuse("another sum of squares than its binades have", std::to_string(squares.Value()),
           std::to_string(table.sum_of_squares));
  }
  for (size_t i = 0; i < table.channels.size(); ++i) {
    const bool ascends = i == 0 || table.channels[i - 1].first < table.channels[i].first;
    if (!ascends || table.channels[i].second == 0) refuse("channels out of order or empty");
  }
}

// Hands out rows to the tables that they name, which ascend.
template <class Row, class Take>
void Distribute(const std::shared_ptr<NpzArchive>& archive, const char* name, size_t tables,
                const Take& take) {
  uint32_t before = 0;
  for (const Row& row : ReadRows<Row>(archive, name)) {
    if (row.table < before || row.table >= tables) {
      throw InputError(archive->place() + ": " + name, "'table' out of order or range",
                       std::to_string(before) + " to " + std::to_string(tables - 1),
                       std::to_string(row.table));
    }
    before = row.table;
    take(row);
  }
}

void ReadTables(const std::shared_ptr<NpzArchive>& archive, StepTables& step) {
  const std::string place = archive->place() + ": tables";
  const std::vector<TableRow> rows = ReadRows<TableRow>(archive, "tables");
  std::vector<TensorTable*> tables;
  ForEachTable(step, [&](TensorTable& table, size_t tensor, int32_t part, float mantissa) {
    const size_t i = tables.size();
    tables.push_back(&table);
    if (i >= rows.size()) return;
    const TableRow& row = rows[i];
    if (row.tensor != tensor || row.part != part || row.mantissa != mantissa) {
      throw InputError(place, "row " + std::to_string(i) + " is of another table");
    }
    table.elements = row.elements;
    table.zeros = row.zeros;
    table.nan = row.nan;
    table.inf = row.inf;
    table.absmax = row.absmax;
    table.largest = row.largest;
    table.sum_of_squares = row.sum_of_squares;
  });
  if (rows.size() != tables.size()) {
    throw InputError(place, "wrong number of rows", std::to_string(tables.size()),
                     std::to_string(rows.size()));
  }
  Distribute<BinadeRow>(archive, "binades", tables.size(), [&](const BinadeRow& row) {
    tables[row.table]->binades.push_back(BinadeOf(row));
  });
  Distribute<ValueRow>(archive, "values", tables.size(), [&](const ValueRow& row) {
    tables[row.table]->values.push_back(row.value);
  });
  Distribute<ChannelRow>(archive, "channels", tables.size(), [&](const ChannelRow& row) {
    const uint32_t bits = std::bit_cast<uint32_t>(row.magnitude);
    const uint32_t key = bits >> ChannelRow::kKeyShift;
    if (key << ChannelRow::kKeyShift != bits || bits >> 31 != 0) {
      throw InputError(archive->place() + ": channels", "'magnitude' begins no quarter of a binade",
                       {}, std::to_string(row.magnitude));
    }
    tables[row.table]->channels.emplace_back(key, row.channels);
  });
  size_t i = 0;
  ForEachTable(step, [&](const TensorTable& table, size_t tensor, int32_t, float) {
    CheckTable(
        place + ": row " + std::to_string(i++) + " (" + Printable(step.tensors[tensor].name) + ")",
        table);
  });
}

void ReadScaled(const std::shared_ptr<NpzArchive>& archive, size_t formats, StepTables& step) {
  if (formats == 0) return;
  const std::string place = archive->place() + ": scaled";
  const std::vector<ScaledRow> rows = ReadRows<ScaledRow>(archive, "scaled");
  const size_t tensors = step.tensors.size();
  if (rows.size() != formats * tensors * 2) {
    throw InputError(place, "wrong number of rows", std::to_string(formats * tensors * 2),
                     std::to_string(rows.size()));
  }
  step.scaled.assign(formats, std::vector<ScaledLoss>(tensors));
  for (size_t i = 0; i < rows.size(); ++i) {
    const ScaledRow& row = rows[i];
    const size_t format = i / (2 * tensors), t = i / 2 % tensors, axis = i % 2;
    const TensorStats& stats = row.stats.stats;
    const uint128_t others = uint128_t{stats.zeros} + stats.nan + stats.inf;
    const bool counts =
        others <= stats.elements &&
        // A value that overflows as its block is scaled may count as two of these.
        std::max({stats.underflow, stats.subnormal, stats.overflow}) <= stats.elements - others &&
        stats.nonfinite_outputs <= stats.elements;
    const bool sums = stats.sum_of_squares >= 0 && stats.error_sum_of_squares >= 0 &&
                      stats.underflow_sum_of_squares >= 0 && row.stats.mean_channel_harm >= 0 &&
                      row.stats.worst_channel_harm >= 0 && stats.absmax >= 0;
    if (row.format != format || row.tensor != t || row.axis != axis || !counts || !sums) {
      throw InputError(place, "row " + std::to_string(i) + " is impossible or of another tensor");
    }
    step.scaled[format][t].by_axis[axis] = row.stats;
  }
}

// Makes room for the tables, of which there are as many rows as the file says.
void MakeTables(const std::shared_ptr<NpzArchive>& archive, const ProfileSettings& settings,
                Head& head) {
  StepTables& step = head.step;
  const size_t of_gradients = settings.mantissas.size() * step.gradients;
  const uint128_t rows = uint128_t{head.parts} * (step.tensors.size() + of_gradients) +
                         (head.sums ? step.gradients : 0);
  const auto found = std::ranges::find(archive->members(), "tables", &NpzMember::name);
  const uint64_t bytes = found == archive->members().end() ? 0 : found->size;
  if (rows > bytes / NpyRowBytes<TableRow>()) {
    throw InputError(archive->place() + ": tables", "wrong number of rows",
                     std::to_string(static_cast<uint64_t>(rows)),
                     "at most " + std::to_string(bytes / NpyRowBytes<TableRow>()));
  }
  step.parts.assign(head.parts, std::vector<TensorTable>(step.tensors.size()));
  if (head.sums) step.sums.resize(step.gradients);
  for (const float mantissa : settings.mantissas) {
    step.by_mantissa[mantissa].assign(head.parts, std::vector<TensorTable>(step.gradients));
  }
}

}  // namespace

ProfileWriter::ProfileWriter(std::string folder, const ProfileSettings& settings, Existing existing)
    : folder_(std::move(folder)), settings_(settings) {
  std::ranges::sort(settings_.mantissas);
  while (folder_.size() > 1 && folder_.ends_with('/')) folder_.pop_back();
  const std::string path = folder_ + "/" + kSettingsName;
  const Json asked = SettingsJson(settings_);
  const std::string text = Dump(Printable(path), asked, 2) + "\n";
  if (mkdir(folder_.c_str(), 0777) != 0 && errno != EEXIST) Fail(folder_, "cannot be created");
  const std::vector<std::string> names = NamesIn(folder_);
  if (std::ranges::find(names, kSettingsName) == names.end()) {
    for (const std::string& name : names) {
      if (StepOfName(name) || IsTemporary(name) || name == kSettingsName) continue;
      if (ProfileReader::IsProfile(folder_)) break;  // another process made it meanwhile
      throw InputError(Printable(folder_), "is a folder of something else",
                       "a new folder, an empty one or a profile", "one with " + Quoted(name));
    }
  }
  RemoveAbandoned(folder_, names);
  if (existing == Existing::kReplace) {
    // Settings go last: whatever is left has them.
    for (const std::string& name : names) {
      const std::string step = folder_ + "/" + name;
      if (StepOfName(name) && unlink(step.c_str()) != 0 && errno != ENOENT) {
        Fail(step, "cannot be removed");
      }
    }
    if (unlink(path.c_str()) != 0 && errno != ENOENT) Fail(path, "cannot be removed");
  }
  if (!ProfileReader::IsProfile(folder_)) {
    Temporary file(path);
    file.Write(text);
    if (file.Create()) {
      SyncFolder(folder_);
      return;
    }
  }
  RequireSame(Printable(path), SettingsJson(ReadSettings(folder_)), asked);
}

std::optional<std::vector<RecordedFile>> ProfileWriter::FilesOf(int64_t step) const {
  const std::string path = folder_ + "/" + StepName(step);
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return std::nullopt;
  try {
    return ReadHead(NpzArchive::Open(path), step, settings_).step.files;
  } catch (const Error&) {  // it is written again
    return std::nullopt;
  }
}

void ProfileWriter::Write(const StepTables& step) const {
  const std::string path = folder_ + "/" + StepName(step.step), place = Printable(path);
  if (step.step < 0 || StepOfName(StepName(step.step)) != step.step) {
    throw InputError(place, "not the number of a step", "0 to 999999999999999999",
                     std::to_string(step.step));
  }
  CheckStep(step, settings_);
  const std::string bytes = EncodeStep(place, step, settings_);
  Temporary file(path);
  file.Write(bytes);
  file.Replace();
}

bool ProfileReader::IsProfile(const std::string& path) {
  struct stat status = {};
  return stat((path + "/" + kSettingsName).c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

ProfileReader ProfileReader::Open(const std::string& folder) {
  ProfileReader profile;
  profile.folder_ = folder;
  while (profile.folder_.size() > 1 && profile.folder_.ends_with('/')) profile.folder_.pop_back();
  profile.settings_ = ReadSettings(profile.folder_);
  for (const std::string& name : NamesIn(profile.folder_)) {
    const std::optional<int64_t> step = StepOfName(name);
    if (!step && name != kSettingsName) continue;
    struct stat status = {};
    const std::string path = profile.folder_ + "/" + name;
    if (stat(path.c_str(), &status) != 0) Fail(path, "cannot be read");
    profile.file_bytes_ += static_cast<uint64_t>(status.st_size);
    if (step) profile.steps_.push_back(*step);
  }
  std::ranges::sort(profile.steps_);
  return profile;
}

StepTables ProfileReader::Load(size_t i) const {
  const auto archive = NpzArchive::Open(folder_ + "/" + StepName(steps_[i]));
  Head head = ReadHead(archive, steps_[i], settings_);
  MakeTables(archive, settings_, head);
  ReadTables(archive, head.step);
  ReadScaled(archive, settings_.scaled.size(), head.step);
  return std::move(head.step);
}

StepTables ProfileReader::LoadHead(size_t i) const {
  const auto archive = NpzArchive::Open(folder_ + "/" + StepName(steps_[i]));
  return ReadHead(archive, steps_[i], settings_).step;
}

uint64_t ContentHash(const std::string& path) {
  constexpr uint64_t kHeadBytes = uint64_t{64} << 10, kSampleBytes = uint64_t{4} << 10;
  constexpr uint64_t kSamples = 64, kWholeBytes = kHeadBytes + kSamples * kSampleBytes;
  const std::shared_ptr<const ReadOnlyFile> file = ReadOnlyFile::Open(path);
  const uint64_t size = file->size();
  std::vector<std::byte> bytes(static_cast<size_t>(std::min(size, kWholeBytes)));
  const std::span<std::byte> all(bytes);
  if (size <= kWholeBytes) {
    file->ReadAt(0, all);
  } else {
    file->ReadAt(0, all.first(kHeadBytes));
    const uint64_t last = size - kSampleBytes - kHeadBytes;  // where the last sample begins
    for (uint64_t i = 0; i < kSamples; ++i) {
      const auto offset = static_cast<uint64_t>(uint128_t{last} * i / (kSamples - 1));
      file->ReadAt(kHeadBytes + offset, all.subspan(kHeadBytes + i * kSampleBytes, kSampleBytes));
    }
  }
  return std::max<uint64_t>(XXH3_64bits_withSeed(bytes.data(), bytes.size(), size), 1);
}

}  // namespace dlsim
