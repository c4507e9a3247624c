// SPDX-License-Identifier: Apache-2.0
// The options and arguments of a command as data, each written once: its name, what stands for its
// value, its help, and a reader of its text, which fills a field. A struct of options declares its
// rows in Visit(OptionRows&). The command line, the help, shell completion and Python's keywords
// come from the rows.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/enum_names.h"
#include "sim/base/parse.h"

namespace dlsim::sim {

inline constexpr const char* kInputGroup = "Input";
inline constexpr const char* kTryGroup = "What to try";
inline constexpr const char* kEmulationGroup = "Emulation";
inline constexpr const char* kComputationGroup = "Computation";
inline constexpr const char* kOutputGroup = "Output";

// What follows the name of an option: a flag takes nothing, or maybe a value after '='; several
// values are given by repeating the option, or are all words that follow as arguments.
enum class Takes : uint8_t { kNothing, kMaybeOne, kOne, kSeveral };

struct OptionRow {
  using Reader = std::function<void(const std::string& text)>;

  std::string name = {};   // "--format" or "-o,--output"; of an argument "TRACE"
  std::string value = {};  // what stands for its value in the help
  std::string help = {};
  Takes takes = Takes::kOne;
  Reader read = {};                     // what a flag reads is true but for "false"
  std::vector<std::string> names = {};  // that the value may be; empty: any text, or a file
  std::string group = "Options";        // of the help; empty: not in the help
  std::string value_if_none = {};       // of kMaybeOne
  std::string one_of = {};              // the options of this group of which one must be given
  std::string excludes = {};            // the name of another option
  bool required = false;
  bool is_output = false;               // the file is written
  bool repeats = false;                 // may be repeated, although the help says one
  std::vector<std::string> given = {};  // what was read

  bool is_argument() const { return !name.starts_with('-'); }
  std::string long_name() const { return name.substr(name.rfind("--") + 2); }  // of an option
  void Read(const std::string& text);
};

// How the text of an option becomes its value; these throw UsageError, which names the option. An
// integer is 0 or more, or 1 or more where it may be missing.
void ReadValue(const std::string& option, const std::string& text, uint64_t& value);
void ReadValue(const std::string& option, const std::string& text, std::optional<uint64_t>& value);
// An empty text is as if the option were not given.
void ReadValue(const std::string& option, const std::string& text, std::optional<int64_t>& value);
void ReadValue(const std::string& option, const std::string& text, std::optional<double>& value);
void ReadValue(const std::string& option, const std::string& text,
               std::optional<std::string>& value);
inline void ReadValue(const std::string&, const std::string& text, std::string& value) {
  value = text;
}
template <NamedEnum E>
void ReadValue(const std::string& option, const std::string& text, E& value) {
  value = ParseNamed<E>(option, text);
}
template <NamedEnum E>
void ReadValue(const std::string& option, const std::string& text, std::optional<E>& value) {
  value = ParseNamed<E>(option, text);
}
template <class T>
void ReadValue(const std::string& option, const std::string& text, std::vector<T>& values) {
  T value{};
  ReadValue(option, text, value);
  values.push_back(std::move(value));
}

// Return the names of number formats, of policies and "all", and of their parameters, as KEY=: what
// ends in '=' is the beginning of a value.
std::vector<std::string> FormatNames();
std::vector<std::string> FormatNamesAndScaled();  // and of those with scales of their own
std::vector<std::string> ScaledFormatNames();     // these alone
std::vector<std::string> PolicyNames();
std::vector<std::string> PolicyNamesAndAll();
std::vector<std::string> ParameterNames();

// Appends rows to those of a command. What a call returns can be completed until the next call.
class OptionRows {
 public:
  using Names = std::vector<std::string>;
  using Reader = OptionRow::Reader;

  // The fields that the rows fill live as long as they.
  explicit OptionRows(std::vector<OptionRow>& rows) : rows_(rows) {}

  // The options that follow are in this group of the help.
  void Group(const char* group) { group_ = group; }

  // The option of this name that was declared before.
  OptionRow& Named(std::string_view name);

  // An argument, such as TRACE.
  template <class T>
  OptionRow& Argument(const std::string& name, T& field, const std::string& help,
                      Names names = {}) {
    return (*this)(name, field, "", help, std::move(names));
  }

  // A flag.
  OptionRow& operator()(const std::string& name, bool& field, const std::string& help);

  // An option with a value, for which `value` stands in the help; where the field is a list, it may
  // be given several times. `names` are those that the value may be; those of an enum are known.
  template <class T>
  OptionRow& operator()(const std::string& name, T& field, const char* value,
                        const std::string& help, Names names = {}) {
    constexpr bool is_list = !std::same_as<T, std::string> && requires { field.push_back({}); };
    if constexpr (requires { NamesOf<T>(); }) names = Texts(NamesOf<T>());
    if constexpr (requires { NamesOf<typename T::value_type>(); }) {
      names = Texts(NamesOf<typename T::value_type>());
    }
    return Read(
        name, [name, &field](const std::string& text) { ReadValue(name, text, field); }, value,
        help, std::move(names), is_list ? Takes::kSeveral : Takes::kOne);
  }

  // A count, whose default value the help tells.
  OptionRow& operator()(const std::string& name, uint64_t& field, const std::string& help);

  // One of several names, and what each stands for.
  template <class T, class Field>
  OptionRow& Choice(const std::string& name, Field& field,
                    const std::vector<std::pair<std::string_view, T>>& choices, const char* value,
                    const std::string& help) {
    std::vector<std::string_view> names;
    for (const auto& choice : choices) names.push_back(choice.first);
    const auto read = [name, names, choices, &field](const std::string& text) {
      field = choices[ParseChoice(name, text, names)].second;
    };
    return Read(name, read, value, help, Texts(names));
  }

  // An option whose text is read in a way of its own, at once.
  OptionRow& Read(const std::string& name, Reader read, const char* value, const std::string& help,
                  Names names = {}, Takes takes = Takes::kOne);

  // A file to write; the help adds that it may be standard output.
  OptionRow& Output(const std::string& name, std::optional<std::string>& field,
                    const std::string& help);

  // Adds --threads, which takes effect at once.
  void Threads();

  // Adds --memory.
  void Memory(uint64_t& bytes);

 private:
  static Names Texts(const std::vector<std::string_view>& names) {
    return {names.begin(), names.end()};
  }

  std::vector<OptionRow>& rows_;
  std::string group_ = "Options";
};

}  // namespace dlsim::sim
