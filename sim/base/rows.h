// SPDX-License-Identifier: Apache-2.0
// Figures of results. Each is named once, in a row: its name, its value and what it means. JSON,
// CSV, the figures that --expect takes and the tables of docs/keys.md come from the rows.
//
// A type of results has a function that tells its rows, next to what writes it. Where a value is
// missing, those of a default one are told, without values:
//   void Rows(const LayerLoss& layer, RowSink& row) {
//     row("name", layer.name, "of the module");
//     row.Group(layer.harm);  // the rows of a part, among the others
//   }
//   bool IsNone(const HarmOverSteps& harm);  // optional: whether it is missing
//   auto ShownAs(const SafeScales& scales);  // instead of rows: what is written in its place
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/sim/loss_scaler.h"
#include "sim/base/files.h"

namespace dlsim::sim {

// How a value is written: an empty text or list as null, or left out as one that is missing is; at
// the beginning of a line of JSON, and with kOnLines also each object of a list.
inline constexpr int kNullIfEmpty = 1, kLeftOutIfEmpty = 2, kOnLine = 4, kOnLines = 12;

class RowSink;

// Tells the rows of an object when it is written; empty: the object is missing.
using TellRows = std::function<void(RowSink& row)>;

template <class T>
concept HasRows = requires(const T& of, RowSink& row) {
  Rows(of, row);
};
template <class T>
concept IsText = std::convertible_to<const T&, std::string_view>;
template <class T>
concept IsNamed = std::ranges::range<const T> && requires(const T& of) {
  { std::get<0>(*of.begin()) } -> std::convertible_to<const std::string&>;
};
template <class T>
concept MayBeMissing =
    !IsText<T> && (std::is_pointer_v<T> || requires(const T& of) { of.has_value(); });

template <class T>
inline constexpr char kTypeTag = 0;

// Receives the rows of a result, in order.
class RowSink {
 public:
  // Where a value is; without a name in lists.
  struct Place {
    const char* name = nullptr;
    const char* meaning = "";
    int how = 0;
  };
  // A number or a text; if it is missing, it says which of them it would be.
  using Cell = std::variant<bool, int64_t, uint64_t, float, double, std::string_view>;

  // A row.
  template <class T>
  void operator()(const char* name, const T& value, const char* meaning = "", int how = 0) {
    Tell({name, meaning, how | how_if_missing_}, value, missing_);
  }

  // A row with an object whose rows `tell` tells.
  template <class Tell>
  void Object(const char* name, const char* meaning, const Tell& tell, int how = 0) {
    TellObject({name, meaning, how | how_if_missing_}, missing_, nullptr, tell);
  }

  // The same of a value that may be missing: tell(value, row) tells its rows.
  template <class T, class Tell>
  void ObjectIf(const T& value, const char* name, const char* meaning, const Tell& tell,
                int how = 0) {
    WithValue(value, missing_, [&](const auto& held, bool none) {
      TellObject({name, meaning, how | how_if_missing_}, none, nullptr,
                 [&](RowSink& row) { tell(held, row); });
    });
  }

  // A row with a list of objects, of each of which tell(item, row) tells the rows.
  template <class Items, class Tell>
  void List(const char* name, const char* meaning, const Items& items, const Tell& tell,
            int how = 0) {
    const bool as_none = (how & (kNullIfEmpty | kLeftOutIfEmpty)) != 0 && std::ranges::empty(items);
    const Place place = {name, meaning, how | how_if_missing_};
    if (!Open(place, false, missing_ || as_none, kObjects)) return;
    const auto take = [&](const auto& item, bool missing) {
      WithValue(item, missing, [&](const auto& value, bool none) {
        TellObject({}, none, nullptr, [&](RowSink& row) { tell(value, row); });
      });
    };
    if (missing_ || as_none) {
      take(std::remove_cvref_t<std::ranges::range_reference_t<const Items>>(), true);
    } else {
      for (const auto& item : items) take(item, false);
    }
    Close(false);
  }

  // A row with a list whose items are made one after another: each(take) passes them on.
  template <class Item, class Each>
  void Stream(const char* name, const char* meaning, const Each& each, int how = 0) {
    if (!Open({name, meaning, how | how_if_missing_}, false, missing_, ListOf<Item>())) return;
    if (missing_) {
      Tell({}, Item(), true);
    } else {
      each([&](const Item& item) { Tell({}, item, false); });
    }
    Close(false);
  }

  // The rows of a part, among those of the owner; left out or null if it is missing.
  template <class T>
  void Group(const T& part, int how_if_missing = 0) {
    WithValue(part, missing_, [&](const auto& value, bool missing) {
      const auto outer = std::pair(missing_, how_if_missing_);
      missing_ = missing;
      if (missing) how_if_missing_ |= how_if_missing;
      if constexpr (HasRows<std::remove_cvref_t<decltype(value)>>) {
        Rows(value, *this);
      } else {
        for (const NamedValue& field : value) (*this)(field.name.c_str(), field.value);
      }
      std::tie(missing_, how_if_missing_) = outer;
    });
  }

  // An item of a list, or the whole.
  template <class T>
  void Tell(const Place& place, const T& given, bool missing) {
    WithValue(given, missing, [&]<class Value>(const Value& value, bool none) {
      if constexpr (requires { value.empty(); }) {
        none = none || ((place.how & (kNullIfEmpty | kLeftOutIfEmpty)) != 0 && value.empty());
      }
      if constexpr (std::same_as<Value, bool> || std::floating_point<Value>) {
        Take(place, value, none);
      } else if constexpr (std::integral<Value>) {
        Take(place,
             static_cast<std::conditional_t<std::is_signed_v<Value>, int64_t, uint64_t>>(value),
             none);
      } else if constexpr (NamedEnum<Value>) {
        Tell(place, NameOf(value), none);
      } else if constexpr (IsText<Value>) {
        Take(place, std::string_view(value), none);
      } else if constexpr (std::same_as<Value, TellRows>) {
        none = none || !value;
        TellObject(place, none, nullptr, [&](RowSink& row) {
          if (!none) value(row);
        });
      } else if constexpr (HasRows<Value>) {
        TellObject(place, none, &kTypeTag<Value>, [&](RowSink& row) { Rows(value, row); });
      } else if constexpr (IsNamed<Value> || std::same_as<Value, std::vector<NamedValue>>) {
        TellObject(place, none, nullptr, [&](RowSink& row) {
          for (const auto& [name, item] : value) row(name.c_str(), item);
        });
      } else if constexpr (requires { std::variant_size<Value>::value; }) {
        std::visit([&](const auto& held) { Tell(place, held, none); }, value);
      } else if (Open(place, false, none, TypeOfList<Value>())) {
        if constexpr (requires { std::tuple_size<Value>::value; }) {
          std::apply([&](const auto&... item) { (Tell({}, item, none), ...); }, value);
        } else if (none) {
          Tell({}, std::remove_cvref_t<std::ranges::range_reference_t<const Value>>(), true);
        } else {
          for (const auto& item : value) Tell({}, item, false);
        }
        Close(false);
      }
    });
  }

 protected:
  ~RowSink() = default;

  // Tells the names and meanings alone.
  template <class Rows>
  void TellMissing(const Rows& tell, const void* type) {
    TellObject({}, true, type, tell);
  }

  virtual void Take(const Place& place, const Cell& cell, bool missing) = 0;
  // Returns whether its rows or items are wanted. `type` is the same for objects of one type, and
  // kObjects of a list of objects.
  virtual bool Open(const Place& place, bool is_object, bool missing, const void* type) = 0;
  virtual void Close(bool is_object) = 0;

  static constexpr const void* kObjects = &kTypeTag<RowSink>;

 private:
  // The type of a list with such items.
  template <class Item>
  static constexpr const void* ListOf() {
    if constexpr (MayBeMissing<Item>) {
      return ListOf<std::remove_cvref_t<decltype(*std::declval<Item>())>>();
    } else if constexpr (requires { std::variant_size<Item>::value; }) {
      return ListOf<std::variant_alternative_t<0, Item>>();
    } else {
      return HasRows<Item> || std::same_as<Item, TellRows> ? kObjects : nullptr;
    }
  }

  template <class List>
  static constexpr const void* TypeOfList() {
    if constexpr (std::ranges::range<const List>) {
      return ListOf<std::remove_cvref_t<std::ranges::range_reference_t<const List>>>();
    } else {
      return nullptr;
    }
  }

  template <class Rows>
  void TellObject(const Place& place, bool missing, const void* type, const Rows& tell) {
    if (!Open(place, true, missing, type)) return;
    const auto outer =
        std::pair(std::exchange(missing_, missing), std::exchange(how_if_missing_, 0));
    tell(*this);
    std::tie(missing_, how_if_missing_) = outer;
    Close(true);
  }

  // Calls take(value, missing) with what is written of a value.
  template <class T, class Take>
  static void WithValue(const T& value, bool missing, const Take& take) {
    if constexpr (requires { ShownAs(value); }) {
      WithValue(ShownAs(value), missing, take);
    } else if constexpr (MayBeMissing<T>) {
      using Held = std::remove_cvref_t<decltype(*value)>;
      if (value) return WithValue(*value, missing, take);
      static const Held none{};
      WithValue(none, true, take);
    } else {
      if constexpr (requires { IsNone(value); }) missing = missing || IsNone(value);
      take(value, missing);
    }
  }

  bool missing_ = false;    // what is told has no values
  int how_if_missing_ = 0;  // of groups that are missing
};

// Tells the rows of what lives until then.
template <HasRows T>
TellRows RowsOf(const T& of) {
  return [&of](RowSink& row) { Rows(of, row); };
}

// Returns the text of what is told, without the end of its last line.
std::string JsonTold(const TellRows& tell);
template <class T>
std::string JsonText(const T& value) {
  return JsonTold([&](RowSink& sink) {
    if constexpr (std::invocable<const T&, RowSink&>) {
      sink.Object({}, {}, value);
    } else {
      sink.Tell({}, value, false);
    }
  });
}

// Writes a document line by line, and the end of the last line; or gives its rows to a caller that
// takes them. Returns whether that was so.
bool WriteJson(const TellRows& tell, OutputFile& out);

template <HasRows T>
bool WriteJson(const T& document, OutputFile& out) {
  return WriteJson([&](RowSink& row) { Rows(document, row); }, out);
}

// CSV: the rows that are numbers or texts, with commas between; their names, or values.
std::string CsvNames(const TellRows& tell);
std::string CsvValues(const TellRows& tell);

// Returns the text as a field, in quotes where RFC 4180 asks for them. Hidden characters, line ends
// among them, are written as \xHH. A text that a spreadsheet would take for a formula gets an
// apostrophe in front.
std::string CsvField(const std::string& text);

// The rows by name, with the JSON of their values.
std::vector<std::pair<std::string, std::string>> TextsOf(const TellRows& tell);
template <HasRows T>
std::vector<std::pair<std::string, std::string>> TextsOf(const T& of) {
  return TextsOf([&](RowSink& row) { Rows(of, row); });
}

// What --expect takes: the rows that are numbers; PART.NAME of those of a part.
struct Figure {
  std::string name;
  std::optional<double> value;
};
std::vector<Figure> FiguresOf(const TellRows& tell);

// The keys of one type of objects, and what they mean.
struct KeyTable {
  std::string path;  // where the first of them are: runs[].steps[]
  const void* type;
  std::vector<std::pair<std::string, std::string>> keys = {};
};

// Adds the tables of an object and of those in it, but for types that have one.
void AddKeys(const std::string& path, const TellRows& tell, std::vector<KeyTable>& tables,
             const void* type = nullptr);
template <HasRows T>
void AddKeys(const std::string& path, std::vector<KeyTable>& tables) {
  AddKeys(
      path, [](RowSink& row) { Rows(T(), row); }, tables, &kTypeTag<T>);
}

}  // namespace dlsim::sim
