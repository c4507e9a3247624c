// SPDX-License-Identifier: Apache-2.0
// A list of things that are found by their names, in the order in which these first appeared.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/trace.h"

namespace dlsim::sim {

inline const std::string& TextOf(const std::string& name) { return name; }
inline const std::string& TextOf(const TensorRef& tensor) { return tensor->name; }

// The first member of `T` is `name`, a string or a tensor that has it, and nothing changes it. Less
// than 2^32 items. Names are held once: the index takes some ten bytes for each.
template <class T>
class NamedList {
 public:
  using Name = decltype(T::name);

  // Makes room for this many items.
  void Reserve(size_t count) {
    items_.reserve(count);
    if (2 * count > index_.size()) MakeIndex(2 * count);
  }

  // Returns the item of this name; if there is none it is added, with `rest` for the members that
  // follow. `guess`: a likely place, looked at first. Holds until the next call.
  template <class... Rest>
  T& Of(const Name& name, size_t guess, const Rest&... rest) {
    return items_[PlaceOf(name, guess, rest...)];
  }

  // Returns its place among items() instead, which it keeps.
  template <class... Rest>
  size_t PlaceOf(const Name& name, size_t guess, const Rest&... rest) {
    const std::string& text = TextOf(name);
    if (guess < items_.size() && TextOf(items_[guess].name) == text) return guess;
    constexpr size_t kFewest = 16;
    if (2 * (items_.size() + 1) > index_.size()) MakeIndex(std::max(kFewest, 2 * index_.size()));
    uint32_t& entry = EntryOf(text);
    if (entry == kNone) {
      entry = static_cast<uint32_t>(items_.size());
      items_.push_back(T{name, rest...});
    }
    return entry;
  }

  T& operator[](size_t place) { return items_[place]; }
  const std::vector<T>& items() const { return items_; }

  // Returns all items, and leaves the list empty.
  std::vector<T> Take() {
    index_.clear();
    return std::exchange(items_, {});
  }

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  // Returns the entry of a name; kNone is where a new one belongs.
  uint32_t& EntryOf(const std::string& name) {
    size_t i = std::hash<std::string>()(name) % index_.size();
    while (index_[i] != kNone && TextOf(items_[index_[i]].name) != name)
      i = (i + 1) % index_.size();
    return index_[i];
  }

  void MakeIndex(size_t entries) {
    index_.assign(entries, kNone);
    for (size_t i = 0; i < items_.size(); ++i) {
      EntryOf(TextOf(items_[i].name)) = static_cast<uint32_t>(i);
    }
  }

  std::vector<T> items_;
  std::vector<uint32_t> index_;  // places of items, at or after the hash of the name; half empty
};

}  // namespace dlsim::sim
