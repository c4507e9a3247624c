// SPDX-License-Identifier: Apache-2.0
// A list of things that are found by their names, in the order in which these first appeared.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dlsim::sim {

// The first member of `T` is `name`, and nothing changes it.
template <class T>
class NamedList {
 public:
  // Returns the item of this name; if there is none it is added, with `rest` for the members that
  // follow. `guess`: a likely place, looked at first. Holds until the next call.
  template <class... Rest>
  T& Of(const std::string& name, size_t guess, const Rest&... rest) {
    if (guess < items_.size() && items_[guess].name == name) return items_[guess];
    const auto [entry, added] = index_.try_emplace(name, items_.size());
    if (added) items_.push_back(T{name, rest...});
    return items_[entry->second];
  }

  const std::vector<T>& items() const { return items_; }

  // Returns all items, and leaves the list empty.
  std::vector<T> Take() {
    index_.clear();
    return std::exchange(items_, {});
  }

 private:
  std::vector<T> items_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace dlsim::sim
