// SPDX-License-Identifier: Apache-2.0
// The folder of a profile, and the rows of numbers that a step is in it.
#include "dlsim/profile.h"

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
#include <cmath>
#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "src/base/check.h"
#include "src/base/file.h"
#include "src/table/exact_sum.h"
#include "src/trace/npz.h"
#include "src/trace/strict_json.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kSchema = "dlsim.profile/2", kStepSchema = "dlsim.profile-step/2";
constexpr const char* kSettingsName = "profile.json";
constexpr uint64_t kMostSettingsBytes = uint64_t{1} << 25;
constexpr size_t kMostMantissas = 64, kMostParts = 1 << 20;

// ---- Files of the folder

std::string StepName(int64_t step) {
  const std::string digits = std::to_string(step);
  constexpr size_t kDigits = 10;  // at least
  return "step-" + std::string(kDigits - std::min(kDigits, digits.size()), '0') + digits + ".npz";
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

[[noreturn]] void Fail(const std::string& path, const char* what, int error = errno) {
  throw InputError(Printable(path), std::string(what) + " (" + std::strerror(error) + ")");
}

std::vector<std::string> FilesIn(const std::string& folder) {
  std::error_code failed;
  std::vector<std::string> names = NamesIn(folder, failed);
  if (failed) Fail(folder, "cannot be read", failed.value());
  return names;
}

std::string WithoutSlash(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return folder;
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
    if (!WriteBytes(descriptor_, bytes)) Fail(target_, "cannot be written");
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
    const int descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor < 0) continue;
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
    close(descriptor);
  }
}

// Keeps a file's name where the machine fails next.
void SyncFolder(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  close(descriptor);
}

// ---- Settings

// The JSON of both files is made as one of nlohmann's types: ordered to write it, sorted to compare
// it with what was read.
template <class AnyJson>
AnyJson SettingsJson(const ProfileSettings& settings) {
  AnyJson json;
  json["schema"] = std::string(kSchema);
  json["scaled_formats"] = AnyJson::array();
  for (const NamedScaledFormat& format : settings.scaled) {
    json["scaled_formats"].push_back(format.name);
  }
  json["mantissas"] = settings.mantissas;
  json["tensors"] = settings.tensors;
  json["accumulation"] = NameOf(settings.accumulation);
  json["accumulate_steps"] = settings.accumulate_steps;
  json["description"] = settings.description;
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
  const std::string text = Dump(kSettingsName, SettingsJson<Json>(settings));
  return Hex(XXH3_64bits(text.data(), text.size()));
}

// Reads JSON with what a defect means: `read` may throw nlohmann's exceptions.
template <class Read>
auto ReadJson(const std::string& place, const std::string& text, std::string_view schema,
              const Read& read) {
  const nlohmann::json json = ParseStrictJson(place, text);
  try {
    const std::string got = json.at("schema").get<std::string>();
    if (got != schema) throw InputError(place, "unknown schema", Quoted(schema), Quoted(got));
    return read(json);
  } catch (const nlohmann::json::exception& exception) {
    throw InputError(place, "damaged: " + JsonMessage(exception));
  }
}

[[noreturn]] void RefuseValue(const std::string& place, const std::string& key,
                              const nlohmann::json& got, const std::string& expected = {}) {
  throw InputError(place, "damaged: '" + Printable(key) + "' has a wrong value", expected,
                   Printable(got.dump()));
}

// Throws for the first value that is not as what was read of it would be written: numbers of
// another size become others as they are read, and so do names that are not known.
void RequireWritten(const std::string& place, const nlohmann::json& json,
                    const nlohmann::json& written) {
  for (const auto& [key, value] : json.items()) {
    const auto found = written.find(key);
    const std::string expected = found == written.end() ? "" : found->dump();
    if (expected != value.dump()) RefuseValue(place, key, value);
  }
}

// Throws nlohmann's exception for what is no integer, as nlohmann itself does not.
int64_t IntegerIn(const nlohmann::json& value) {
  return value.get_ref<const nlohmann::json::number_integer_t&>();
}

template <class Integer>
std::vector<Integer> IntegersIn(const nlohmann::json& values) {
  std::vector<Integer> integers;
  for (const nlohmann::json& value : values) {
    integers.push_back(static_cast<Integer>(IntegerIn(value)));
  }
  return integers;
}

// Of a name that is none: RequireWritten finds it.
template <NamedEnum E>
E NameIn(const nlohmann::json& json, const char* key) {
  return ValueNamed<E>(json.at(key).get<std::string>()).value_or(E{});
}

ProfileSettings ReadSettings(const std::string& folder) {
  const std::string path = folder + "/" + kSettingsName, place = Printable(path);
  const auto read = [&](const nlohmann::json& json) {
    ProfileSettings settings;
    for (const nlohmann::json& name : json.at("scaled_formats")) {
      try {
        settings.scaled.push_back(ParseScaledFormat(name.get<std::string>()));
      } catch (const Error& error) {
        throw InputError(place, std::string("damaged: ") + error.what());
      }
    }
    settings.mantissas = json.at("mantissas").get<std::vector<float>>();
    settings.tensors = json.at("tensors").get<std::string>();
    settings.accumulation = NameIn<Accumulation>(json, "accumulation");
    settings.accumulate_steps = IntegerIn(json.at("accumulate_steps"));
    settings.description = json.at("description").get<std::map<std::string, std::string>>();
    RequireWritten(place, json, SettingsJson<nlohmann::json>(settings));
    const std::vector<float>& mantissas = settings.mantissas;
    if (std::ranges::any_of(mantissas, [](float m) { return !(m > 1 && m < 2); }) ||
        std::ranges::adjacent_find(mantissas, std::greater_equal()) != mantissas.end() ||
        mantissas.size() > kMostMantissas) {
      RefuseValue(place, "mantissas", json.at("mantissas"),
                  "ascending float32 numbers between 1 and 2");
    }
    if (settings.accumulate_steps < 1) {
      RefuseValue(place, "accumulate_steps", json.at("accumulate_steps"), "1 or more");
    }
    return settings;
  };
  return ReadJson(place, ReadTextFile(path, kMostSettingsBytes), kSchema, read);
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

static_assert(std::endian::native == std::endian::little);

// A column of an array of rows: its name and type for numpy, and where its numbers lie in a row.
struct Column {
  const char* name;
  const char* type;  // of a number
  size_t bytes;      // of a number
  std::ptrdiff_t offset;
  size_t count;   // of its numbers
  size_t stride;  // from one of them to the next
  bool is_list;   // also if it has one
};

template <class T>
constexpr const char* TypeName() {
  if constexpr (std::floating_point<T>) return sizeof(T) == 4 ? "<f4" : "<f8";
  if constexpr (std::signed_integral<T>) return sizeof(T) == 2 ? "<i2" : "<i4";
  return sizeof(T) == 4 ? "<u4" : "<u8";
}

template <class Row>
std::ptrdiff_t OffsetIn(const Row& row, const void* field) {
  return static_cast<const std::byte*>(field) - reinterpret_cast<const std::byte*>(&row);
}

template <class Row, class T>
Column Of(const Row& row, const char* name, const T& field) {
  return {name, TypeName<T>(), sizeof(T), OffsetIn(row, &field), 1, sizeof(T), false};
}

template <class Row, size_t kCount>
Column Of(const Row& row, const char* name, const std::array<uint64_t, kCount>& field) {
  constexpr size_t kBytes = sizeof(uint64_t);
  return {name, "<u8", kBytes, OffsetIn(row, &field), kCount, kBytes, true};
}

// Sums of 128 bits are in two columns of words; the high ones are mostly zero and lie together, so
// that they take little room.
enum class Word : uint8_t { kLow, kHigh };

template <class Row>
Column Of(const Row& row, const char* name, Word word, const uint128_t& first, size_t count = 0) {
  constexpr size_t kBytes = sizeof(uint64_t);
  const std::ptrdiff_t offset = OffsetIn(row, &first) + (word == Word::kHigh ? kBytes : 0);
  return {name, "<u8", kBytes, offset, std::max<size_t>(count, 1), sizeof(uint128_t), count > 0};
}

// A table; its lists have rows of their own.
struct TableRow {
  uint32_t tensor = 0;  // index
  int32_t part = 0;     // index; -1: the sum over the parts
  float mantissa = 1;   // by which values were multiplied
  TensorTable of = {};
};

std::vector<Column> Columns(const TableRow& row) {
  return {Of(row, "tensor", row.tensor),      Of(row, "part", row.part),
          Of(row, "mantissa", row.mantissa),  Of(row, "elements", row.of.elements),
          Of(row, "zeros", row.of.zeros),     Of(row, "nan", row.of.nan),
          Of(row, "inf", row.of.inf),         Of(row, "absmax", row.of.absmax),
          Of(row, "largest", row.of.largest), Of(row, "sum_of_squares", row.of.sum_of_squares)};
}

// One of TensorTable::values.
struct ValueRow {
  uint32_t table = 0;  // index
  float value = 0;
};

std::vector<Column> Columns(const ValueRow& row) {
  return {Of(row, "table", row.table), Of(row, "value", row.value)};
}

// One of TensorTable::channels, whose key is that of the least magnitude that it counts.
struct ChannelRow {
  uint32_t table = 0;  // index
  float magnitude = 0;
  uint64_t channels = 0;

  static constexpr int kKeyShift = 21;
};

std::vector<Column> Columns(const ChannelRow& row) {
  return {Of(row, "table", row.table), Of(row, "magnitude", row.magnitude),
          Of(row, "channels", row.channels)};
}

// One of TensorTable::binades. The errors at the last quantum follow from other columns.
struct BinadeRow {
  uint32_t table = 0;    // index
  int16_t exponent = 0;  // of the binade
  Binade of = {};
};

std::vector<Column> Columns(const BinadeRow& row) {
  constexpr size_t kTails = Binade::kTails, kErrors = Binade::kQuanta - 1;
  const Binade& of = row.of;
  return {Of(row, "table", row.table),
          Of(row, "exponent", row.exponent),
          Of(row, "count", of.count),
          Of(row, "powers", of.powers),
          Of(row, "significands", of.significands),
          Of(row, "rounding_up", of.rounding_up),
          Of(row, "tail_sums", of.tail_sums),
          Of(row, "squares", Word::kLow, of.squares),
          Of(row, "tail_squares", Word::kLow, of.tail_squares[0], kTails),
          Of(row, "errors", Word::kLow, of.errors[0], kErrors),
          Of(row, "squares_high", Word::kHigh, of.squares),
          Of(row, "tail_squares_high", Word::kHigh, of.tail_squares[0], kTails),
          Of(row, "errors_high", Word::kHigh, of.errors[0], kErrors)};
}

// Distances to 2^24, the only multiple of the last quantum that is near.
uint128_t LastErrors(const Binade& binade) {
  return binade.squares + (uint128_t{binade.count} << 48) - (uint128_t{binade.significands} << 25);
}

// What a tensor loses in a scaled format.
struct ScaledRow {
  uint32_t format = 0;  // index in the settings
  uint32_t tensor = 0;  // index
  uint32_t axis = 0;    // 0: blocks along rows
  ScaledStats of = {};
};

std::vector<Column> Columns(const ScaledRow& row) {
  std::vector<Column> columns = {Of(row, "format", row.format), Of(row, "tensor", row.tensor),
                                 Of(row, "axis", row.axis)};
  ForEachCounter([&](auto counter) {
    if constexpr (counter.kIsMember) {
      columns.push_back(Of(row, counter.kRow.name, row.of.stats.*counter.kRow.of));
    }
  });
  columns.insert(columns.end(),
                 {Of(row, "mean_channel_harm", row.of.mean_channel_harm),
                  Of(row, "worst_channel_harm", row.of.worst_channel_harm),
                  Of(row, "channels", row.of.channels), Of(row, "min_scale", row.of.min_scale),
                  Of(row, "max_scale", row.of.max_scale)});
  return columns;
}

// numpy's text of the type of a row.
std::string RowType(const std::vector<Column>& columns) {
  std::string type;
  for (const Column& column : columns) {
    type += std::string(type.empty() ? "[('" : ", ('") + column.name + "', '" + column.type + "'" +
            (column.is_list ? ", (" + std::to_string(column.count) + ",))" : ")");
  }
  return type + "]";
}

// Calls visit(place in the row, bytes) for each number of a row, in the order of the file.
template <class Byte, class Visit>
void ForEachNumber(const std::vector<Column>& columns, Byte* row, const Visit& visit) {
  for (const Column& column : columns) {
    for (size_t i = 0; i < column.count; ++i) {
      visit(row + column.offset + i * column.stride, column.bytes);
    }
  }
}

template <class Row>
NpzBytes PackRows(const std::string& name, const std::vector<Row>& rows) {
  const std::vector<Column> columns = Columns(Row());
  const std::array<uint64_t, 1> shape = {rows.size()};
  NpzBytes member = {name, MakeNpyHeader(RowType(columns), shape)};
  for (const Row& row : rows) {
    ForEachNumber(columns, reinterpret_cast<const char*>(&row),
                  [&](const char* number, size_t bytes) { member.contents.append(number, bytes); });
  }
  return member;
}

// Returns the elements of an array of a step, whose type numpy calls `type`.
std::string ReadArray(const std::shared_ptr<NpzArchive>& archive, const std::string& name,
                      const std::string& type, size_t element_bytes) {
  const auto found = std::ranges::find(archive->members(), name, &NpzMember::name);
  if (found == archive->members().end()) {
    throw InputError(archive->place(), "array " + Quoted(name) + " is missing");
  }
  return ReadNpyList(SourceOf(archive, *found), type, element_bytes);
}

template <class Row>
std::vector<Row> ReadRows(const std::shared_ptr<NpzArchive>& archive, const std::string& name) {
  const std::vector<Column> columns = Columns(Row());
  size_t row_bytes = 0;
  for (const Column& column : columns) row_bytes += column.count * column.bytes;
  const std::string data = ReadArray(archive, name, RowType(columns), row_bytes);
  std::vector<Row> rows(data.size() / row_bytes);
  const char* from = data.data();
  for (Row& row : rows) {
    ForEachNumber(columns, reinterpret_cast<char*>(&row), [&](char* number, size_t bytes) {
      std::memcpy(number, from, bytes);
      from += bytes;
    });
  }
  return rows;
}

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

template <class AnyJson>
AnyJson HeadJson(const StepTables& step, const ProfileSettings& settings) {
  AnyJson json;
  json["schema"] = std::string(kStepSchema);
  json["settings"] = SettingsKey(settings);
  json["step"] = step.step;
  json["parts"] = step.parts.size();
  json["micro_steps"] = step.micro_steps;
  json["sums"] = !step.sums.empty();
  json["gradients"] = step.gradients;
  json["tensors"] = AnyJson::array();
  for (const TensorRef& tensor : step.tensors) {
    json["tensors"].push_back({{"name", tensor->name},
                               {"role", NameOf(tensor->role)},
                               {"dtype", NameOf(tensor->dtype)},
                               {"shape", tensor->shape}});
  }
  json["files"] = AnyJson::array();
  for (const RecordedFile& file : step.files) {
    json["files"].push_back(
        {{"name", file.name},
         {"bytes", file.bytes},
         {"content", file.content == 0 ? AnyJson() : AnyJson(Hex(file.content))}});
  }
  json["metadata"] = step.metadata;
  return json;
}

constexpr const char* kBytesType = "|u1";

std::string EncodeStep(const std::string& place, const StepTables& step,
                       const ProfileSettings& settings) {
  const std::string head = Dump(place, HeadJson<Json>(step, settings));
  std::vector<TableRow> tables;
  std::vector<ValueRow> values;
  std::vector<ChannelRow> channels;
  std::vector<BinadeRow> binades;
  ForEachTable(step, [&](const TensorTable& table, size_t tensor, int32_t part, float mantissa) {
    const auto index = static_cast<uint32_t>(tables.size());
    tables.push_back({static_cast<uint32_t>(tensor), part, mantissa, table});
    for (const float value : table.values) values.push_back({index, value});
    for (const auto& [key, count] : table.channels) {
      channels.push_back({index, std::bit_cast<float>(key << ChannelRow::kKeyShift), count});
    }
    for (const Binade& binade : table.binades) {
      DLSIM_CHECK(binade.errors.back() == LastErrors(binade));
      binades.push_back({index, static_cast<int16_t>(binade.exponent), binade});
    }
  });
  const std::array<uint64_t, 1> shape = {head.size()};
  std::vector<NpzBytes> members = {{"header", MakeNpyHeader(kBytesType, shape) + head},
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

// Returns a step with as many parts and sums as it will have, without tables.
StepTables ReadHead(const std::shared_ptr<NpzArchive>& archive, int64_t number,
                    const ProfileSettings& settings) {
  const std::string place = archive->place() + ": header";
  const auto read = [&](const nlohmann::json& json) {
    const std::string key = json.at("settings").get<std::string>();
    if (key != SettingsKey(settings)) {
      throw InputError(archive->place(), "made with other settings than those of profile.json",
                       SettingsKey(settings), Quoted(key));
    }
    const auto require = [&](bool good, const char* value, const std::string& expected) {
      if (!good) RefuseValue(place, value, json.at(value), expected);
    };
    StepTables step;
    step.step = IntegerIn(json.at("step"));
    const auto parts = static_cast<size_t>(IntegerIn(json.at("parts")));
    require(parts >= 1 && parts <= kMostParts, "parts", "1 to " + std::to_string(kMostParts));
    step.parts.resize(parts);
    step.micro_steps = IntegersIn<int64_t>(json.at("micro_steps"));
    for (const nlohmann::json& entry : json.at("tensors")) {
      step.tensors.push_back(TensorInfo{entry.at("name").get<std::string>(),
                                        NameIn<Role>(entry, "role"), NameIn<DType>(entry, "dtype"),
                                        IntegersIn<uint64_t>(entry.at("shape"))});
    }
    step.gradients = static_cast<size_t>(IntegerIn(json.at("gradients")));
    require(step.gradients <= step.tensors.size(), "gradients",
            "at most " + std::to_string(step.tensors.size()));
    if (json.at("sums").get<bool>()) step.sums.resize(step.gradients);
    for (const nlohmann::json& entry : json.at("files")) {
      const nlohmann::json& content = entry.at("content");
      const std::string hex = content.is_null() ? "" : content.get<std::string>();
      step.files.push_back({entry.at("name").get<std::string>(),
                            static_cast<uint64_t>(IntegerIn(entry.at("bytes"))),
                            std::strtoull(hex.c_str(), nullptr, 16)});
    }
    step.metadata = json.at("metadata").get<std::map<std::string, std::string>>();
    RequireWritten(place, json, HeadJson<nlohmann::json>(step, settings));
    require(step.step == number, "step", std::to_string(number));
    require(step.micro_steps.size() == parts || parts == 1, "micro_steps",
            std::to_string(parts) + " numbers");
    std::set<std::string> names;
    for (size_t t = 0; t < step.tensors.size(); ++t) {
      const TensorInfo& tensor = *step.tensors[t];
      const char* problem = nullptr;
      if (!names.insert(tensor.name).second) problem = "damaged: two tensors of one name";
      if (tensor.shape.size() > kMaxRank) problem = "damaged: too many dimensions";
      // Gradients come first.
      if (IsGradient(tensor.role) != (t < step.gradients))
        problem = "damaged: tensors out of order";
      if (problem != nullptr) throw InputError(place, problem, {}, Quoted(tensor.name));
    }
    return step;
  };
  return ReadJson(place, ReadArray(archive, "header", kBytesType, 1), kStepSchema, read);
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

void ReadTables(const std::shared_ptr<NpzArchive>& archive, const ProfileSettings& settings,
                StepTables& step) {
  const std::string place = archive->place() + ": tables";
  std::vector<TableRow> rows = ReadRows<TableRow>(archive, "tables");
  // As many as the file has, so that damage cannot ask for more memory than there is.
  const size_t of_gradients = settings.mantissas.size() * step.gradients;
  const uint128_t expected =
      uint128_t{step.parts.size()} * (step.tensors.size() + of_gradients) + step.sums.size();
  if (rows.size() != expected) {
    throw InputError(place, "wrong number of rows", std::to_string(static_cast<uint64_t>(expected)),
                     std::to_string(rows.size()));
  }
  for (std::vector<TensorTable>& part : step.parts) part.resize(step.tensors.size());
  for (const float mantissa : settings.mantissas) {
    step.by_mantissa[mantissa].assign(step.parts.size(), std::vector<TensorTable>(step.gradients));
  }
  std::vector<TensorTable*> tables;
  ForEachTable(step, [&](TensorTable& table, size_t tensor, int32_t part, float mantissa) {
    TableRow& row = rows[tables.size()];
    if (row.tensor != tensor || row.part != part || row.mantissa != mantissa) {
      throw InputError(place, "row " + std::to_string(tables.size()) + " is of another table");
    }
    table = std::move(row.of);
    tables.push_back(&table);
  });
  Distribute<BinadeRow>(archive, "binades", tables.size(), [&](const BinadeRow& row) {
    Binade& binade = tables[row.table]->binades.emplace_back(row.of);
    binade.exponent = row.exponent;
    binade.errors.back() = LastErrors(binade);
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
        place + ": row " + std::to_string(i++) + " (" + Printable(step.tensors[tensor]->name) + ")",
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
    const TensorStats& stats = row.of.stats;
    const uint128_t others = uint128_t{stats.zeros} + stats.nan + stats.inf;
    const bool counts =
        others <= stats.elements &&
        // A value that overflows as its block is scaled may count as two of these.
        std::max({stats.underflow, stats.subnormal, stats.overflow}) <= stats.elements - others &&
        stats.nonfinite_outputs <= stats.elements;
    const bool sums = stats.sum_of_squares >= 0 && stats.error_sum_of_squares >= 0 &&
                      stats.underflow_sum_of_squares >= 0 && row.of.mean_channel_harm >= 0 &&
                      row.of.worst_channel_harm >= 0 && stats.absmax >= 0;
    if (row.format != format || row.tensor != t || row.axis != axis || !counts || !sums) {
      throw InputError(place, "row " + std::to_string(i) + " is impossible or of another tensor");
    }
    step.scaled[format][t].by_axis[axis] = row.of;
  }
}

}  // namespace

ProfileWriter::ProfileWriter(std::string folder, const ProfileSettings& settings, Existing existing)
    : folder_(WithoutSlash(std::move(folder))), settings_(settings) {
  std::ranges::sort(settings_.mantissas);
  const std::string path = folder_ + "/" + kSettingsName;
  const Json asked = SettingsJson<Json>(settings_);
  const std::string text = Dump(Printable(path), asked, 2) + "\n";
  if (mkdir(folder_.c_str(), 0777) != 0 && errno != EEXIST) Fail(folder_, "cannot be created");
  const std::vector<std::string> names = FilesIn(folder_);
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
  RequireSame(Printable(path), SettingsJson<Json>(ReadSettings(folder_)), asked);
}

std::optional<std::vector<RecordedFile>> ProfileWriter::FilesOf(int64_t step) const {
  const std::string path = folder_ + "/" + StepName(step);
  std::error_code failed;
  if (!fs::exists(path, failed)) return std::nullopt;
  try {
    return ReadHead(NpzArchive::Open(path), step, settings_).files;
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
  std::error_code failed;
  return fs::is_regular_file(path + "/" + kSettingsName, failed);
}

ProfileReader ProfileReader::Open(const std::string& folder) {
  ProfileReader profile;
  profile.folder_ = WithoutSlash(folder);
  profile.settings_ = ReadSettings(profile.folder_);
  for (const std::string& name : FilesIn(profile.folder_)) {
    const std::optional<int64_t> step = StepOfName(name);
    if (!step && name != kSettingsName) continue;
    const std::string path = profile.folder_ + "/" + name;
    std::error_code failed;
    profile.file_bytes_ += fs::file_size(path, failed);
    if (failed) Fail(path, "cannot be read", failed.value());
    if (step) profile.steps_.push_back(*step);
  }
  std::ranges::sort(profile.steps_);
  return profile;
}

StepTables ProfileReader::Load(size_t i) const {
  const auto archive = NpzArchive::Open(folder_ + "/" + StepName(steps_[i]));
  StepTables step = ReadHead(archive, steps_[i], settings_);
  ReadTables(archive, settings_, step);
  ReadScaled(archive, settings_.scaled.size(), step);
  return step;
}

StepTables ProfileReader::LoadHead(size_t i) const {
  const auto archive = NpzArchive::Open(folder_ + "/" + StepName(steps_[i]));
  StepTables step = ReadHead(archive, steps_[i], settings_);
  step.parts.clear();
  step.sums.clear();
  return step;
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
