// SPDX-License-Identifier: Apache-2.0
// The options of a command, each written once: its name, the field that it fills, what stands for
// its value, and its help. A struct of options has them in Visit(OptionRows&). The help, shell
// completion, `dlsim --dump-options` (Python's keywords) and the values in results come from it.
// CLI11, which takes six seconds to compile, is behind it: only what implements it includes that.
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
#include "sim/app/option_values.h"
#include "sim/base/suggest.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace dlsim::sim {

inline constexpr const char* kInputGroup = "Input";
inline constexpr const char* kTryGroup = "What to try";
inline constexpr const char* kEmulationGroup = "Emulation";
inline constexpr const char* kComputationGroup = "Computation";
inline constexpr const char* kOutputGroup = "Output";

// How the text of an option becomes its value; these throw UsageError, which names the option. An
// integer is 0 or more, or 1 or more where it may be missing.
void ReadValue(const std::string& option, const std::string& text, uint64_t& value);
void ReadValue(const std::string& option, const std::string& text, std::optional<uint64_t>& value);
// An empty text is no number, as if the option were not given.
void ReadValue(const std::string& option, const std::string& text, std::optional<int64_t>& value);
void ReadValue(const std::string& option, const std::string& text, std::optional<double>& value);
template <NamedEnum E>
void ReadValue(const std::string& option, const std::string& text, E& value) {
  value = ParseNamed<E>(option, text);
}
template <NamedEnum E>
void ReadValue(const std::string& option, const std::string& text, std::optional<E>& value) {
  value = ParseNamed<E>(option, text);
}
template <NamedEnum E>
void ReadValue(const std::string& option, const std::string& text, std::vector<E>& values) {
  values.push_back(ParseNamed<E>(option, text));
}

template <class T>
concept TextField = std::same_as<T, std::string> || std::same_as<T, std::optional<std::string>> ||
    std::same_as<T, std::vector<std::string>>;

// An option that was declared.
class OptionRow {
 public:
  explicit OptionRow(CLI::Option& option) : option_(option) {}

  OptionRow& Required();
  OptionRow& Excludes(const std::string& name);
  // Where it is given several times, all values are taken, as of a list; the help says one.
  OptionRow& TakeAll();

 private:
  CLI::Option& option_;
};

class OptionRows {
 public:
  // Reads the text of one value.
  using Reader = std::function<void(const std::string& text)>;

  // Declares the options of the command, whose fields live as long as it.
  explicit OptionRows(CLI::App& command) : command_(command) {}

  // The options that follow are in this group of the help.
  void Group(const char* group);

  // Options of which one must be given, as a group.
  OptionRows OneOf(const std::string& group);

  // The option of this name that was declared before.
  OptionRow Named(const std::string& name);

  // An argument, such as TRACE.
  template <TextField T>
  OptionRow Argument(const std::string& name, T& field, const std::string& help,
                     std::vector<std::string> offered = {});

  // A flag.
  OptionRow operator()(const std::string& name, bool& field, const std::string& help);

  // A flag that takes a value after '='; without one it is what stands in braces after the name.
  OptionRow OptionalValue(const std::string& name_and_value, std::string& field, const char* value,
                          const std::string& help);

  // An option with a value, for which `value` stands in the help; where the field is a list, it may
  // be given several times. `offered` are names that the value may be; those of an enum are known.
  template <class T>
  OptionRow operator()(const std::string& name, T& field, const char* value,
                       const std::string& help, std::vector<std::string> offered = {}) {
    if constexpr (TextField<T>) {
      return Text(name, field, value, help, std::move(offered));
    } else {
      const auto read = [name, &field](const std::string& text) { ReadValue(name, text, field); };
      if constexpr (requires { NamesOf<T>(); }) offered = Texts(NamesOf<T>());
      if constexpr (requires { NamesOf<typename T::value_type>(); }) {
        offered = Texts(NamesOf<typename T::value_type>());
      }
      if constexpr (requires { field.push_back({}); }) {
        return ReadEach(name, read, value, help, std::move(offered));
      }
      return Read(name, read, value, help, std::move(offered));
    }
  }

  // A count, whose default value the help tells.
  OptionRow operator()(const std::string& name, uint64_t& field, const std::string& help);

  // One of several names, and what each stands for.
  template <class T, class Field>
  OptionRow Choice(const std::string& name, Field& field,
                   const std::vector<std::pair<std::string_view, T>>& choices, const char* value,
                   const std::string& help) {
    std::vector<std::string_view> names;
    for (const auto& choice : choices) names.push_back(choice.first);
    const auto read = [name, names, choices, &field](const std::string& text) {
      field = choices[ParseChoice(name, text, names)].second;
    };
    return Read(name, read, value, help, Texts(names));
  }

  // An option whose text is read in a way of its own, at once; and one that may be repeated.
  OptionRow Read(const std::string& name, const Reader& read, const char* value,
                 const std::string& help, std::vector<std::string> offered = {});
  OptionRow ReadEach(const std::string& name, const Reader& read, const char* value,
                     const std::string& help, std::vector<std::string> offered = {});

  // A file to write; the help adds that it may be standard output.
  OptionRow Output(const std::string& name, std::optional<std::string>& field,
                   const std::string& help) {
    return (*this)(name, field, "FILE", help + "; - is standard output");
  }

  // Adds --threads, which takes effect at once.
  void Threads();

  // Adds --memory.
  void Memory(uint64_t& bytes);

 private:
  static std::vector<std::string> Texts(const std::vector<std::string_view>& names) {
    return {names.begin(), names.end()};
  }
  template <TextField T>
  OptionRow Text(const std::string& name, T& field, const char* value, const std::string& help,
                 std::vector<std::string> offered);

  CLI::App& command_;
};

}  // namespace dlsim::sim
