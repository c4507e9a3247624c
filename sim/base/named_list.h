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

namespace dlsim::sim {

// The first member of `T` is `name`, and nothing changes it. Less than 2^32 items. Names are held
// once: the index takes some ten bytes for each.
template <class T>
class NamedList {
 public:
  // Returns the item of this name; if there is none it is added, with `rest` for the members that
  // follow. `guess`: a likely place, looked at first. Holds until the next call.
  template <class... Rest>
  T& Of(const std::string& name, size_t guess, const Rest&... rest) {
    return items_[PlaceOf(name, guess, rest...)];
  }

  // Returns its place among items() instead, which it keeps.
  template <class... Rest>
  size_t PlaceOf(const std::string& name, size_t guess, const Rest&... rest) {
    if (guess < items_.size() && items_[guess].name == name) return guess;
    if (2 * (items_.size() + 1) > index_.size()) Grow();
    uint32_t& entry = EntryOf(name);
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
    while (index_[i] != kNone && items_[index_[i]].name != name) i = (i + 1) % index_.size();
    return index_[i];
  }

  void Grow() {
    constexpr size_t kFewest = 16;
    index_.assign(std::max(kFewest, 2 * index_.size()), kNone);
    for (size_t i = 0; i < items_.size(); ++i) EntryOf(items_[i].name) = static_cast<uint32_t>(i);
  }

  std::vector<T> items_;
  std::vector<uint32_t> index_;  // places of items, at or after the hash of the name; half empty
};

}  // namespace dlsim::sim
