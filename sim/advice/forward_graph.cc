// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/forward_graph.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <ranges>

#include "dlsim/error.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {

bool NeedsAllOfItsChain(std::string_view name) {
  return IsOfDivisors(name) || IsOfDifferences(name) || IsOfAngles(name);
}

namespace {

constexpr std::string_view kRoot = "(root)";

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (const auto part : std::views::split(text, separator)) {
    parts.emplace_back(part.begin(), part.end());
  }
  return parts;
}

template <class Number>
bool ParseInto(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string NameOfModule(const std::string& module) {
  return module.empty() ? std::string(kRoot) : module;
}

bool Matches(const std::string& pattern, const std::string& name) {
  // A glob of modules is none of the operations in them.
  if ((pattern.find('/') == pattern.npos) != (name.find('/') == name.npos)) return false;
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool IsInside(std::string_view name, std::string_view module) {
  return module.empty() ||
         (name.size() > module.size() && name.starts_with(module) && name[module.size()] == '.');
}

// What the recorder computes of a tensor to see whether an operation can take it.
bool IsDerived(std::string_view name) {
  return IsOfMaskedRows(name) || !RefusingOperation(name).empty() || NeedsAllOfItsChain(name);
}

}  // namespace

std::optional<ForwardGraph> ForwardGraph::Parse(std::string_view text) {
  if (text.empty()) return std::nullopt;
  ForwardGraph graph;
  for (const std::string_view line : Split(text, '\n')) {
    const std::vector<std::string_view> columns = Split(line, '\t');
    const auto column = [&](size_t i) { return i < columns.size() ? columns[i] : ""; };
    Node node;
    const std::string_view kind = column(0);
    bool good = kind.size() == 1 && std::string_view("nwpfiNWPFI").find(kind[0]) != kind.npos;
    if (good) {
      node.rounds = kind[0] < 'a';
      node.kind = static_cast<char>(kind[0] | 0x20);
    }
    for (const std::string_view input : Split(column(1), ',')) {
      if (input.empty()) continue;
      int place = 0;
      good = good && ParseInto(input, place) && place >= kSixteenBits &&
             place < static_cast<int>(graph.nodes_.size());
      node.inputs.push_back(place);
    }
    node.name = column(2);
    node.module = column(3);
    node.function = column(4);
    node.source = column(5);
    good = good && (column(6).empty() || ParseInto(column(6), node.products));
    if (!good) {
      throw InputError("forward_graph", "damaged", "operations as docs/traces.md has them",
                       "line " + std::to_string(graph.nodes_.size() + 1));
    }
    graph.nodes_.push_back(std::move(node));
  }
  return graph;
}

void KeptUnits::Add(const std::string& name) {
  names_.insert(name);
  if (name.find_first_of("*?[") != name.npos) globs_.push_back(name);
}

bool KeptUnits::Has(std::string_view module, std::string_view function) const {
  const std::string unit = NameOfModule(std::string(module)) + "/" + std::string(function);
  if (names_.contains(unit) || names_.contains(kRoot)) return true;
  const auto matches = [&](const std::string& name) {
    return std::ranges::any_of(globs_,
                               [&](const std::string& glob) { return Matches(glob, name); });
  };
  if (!globs_.empty() && matches(unit)) return true;
  for (size_t end = module.size(); end != 0 && end != module.npos;
       end = module.rfind('.', end - 1)) {
    const std::string_view one = module.substr(0, end);
    if (names_.contains(one) || (!globs_.empty() && matches(std::string(one)))) return true;
  }
  return false;
}

ForwardGraph::Types ForwardGraph::TypesWith(const KeptUnits& kept) const {
  Types types;
  types.narrow.resize(nodes_.size());
  types.copied.resize(nodes_.size());
  const auto narrow = [&](int place) {
    return place >= 0 ? static_cast<bool>(types.narrow[static_cast<size_t>(place)])
                      : place == kSixteenBits;
  };
  std::vector<bool> is_kept;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    is_kept.push_back(IsKept(node, kept));
    if (is_kept[i] || node.kind == 'w') continue;
    if (node.kind == 'n') {
      types.narrow[i] = true;
    } else if (!node.inputs.empty()) {
      types.narrow[i] =
          node.kind != 'p' ? narrow(node.inputs.front()) : std::ranges::all_of(node.inputs, narrow);
    }
  }
  for (size_t i = nodes_.size(); i-- > 0;) {
    const Node& node = nodes_[i];
    // What was not recorded by a name of its own hands values on, as a concatenation does.
    const bool hands_on = node.name.empty() && types.copied[i];
    if (!(node.rounds && !is_kept[i]) && !hands_on) continue;
    for (const int input : node.inputs) {
      if (input >= 0) types.copied[static_cast<size_t>(input)] = true;
    }
  }
  return types;
}

const ForwardGraph::Node* ForwardGraph::Find(const std::string& name) const {
  const auto found = std::ranges::find(nodes_, name, &Node::name);
  return found == nodes_.end() || name.empty() ? nullptr : &*found;
}

bool ForwardGraph::HasUnit(const std::string& pattern) const {
  KeptUnits kept;
  kept.Add(pattern);
  return std::ranges::any_of(nodes_, [&](const Node& node) { return IsKept(node, kept); });
}

std::string ForwardGraph::AnyUnit() const {
  const auto found = std::ranges::find_if(nodes_, [](const Node& node) { return node.rounds; });
  return found == nodes_.end() ? std::string(kRoot) : UnitOf(*found).name;
}

std::set<std::string> ForwardGraph::NarrowNames(const KeptUnits& kept) const {
  const Types types = TypesWith(kept);
  std::set<std::string> names;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].name.empty() && (types.narrow[i] || types.copied[i])) {
      names.insert(nodes_[i].name);
    }
  }
  return names;
}

bool ForwardGraph::HasParts(const std::string& module) const {
  return std::ranges::any_of(nodes_, [&](const Node& node) {
    return IsInside(node.module, module) && node.module != module;
  });
}

Unit ForwardGraph::UnitOf(const Node& node) const {
  if (!node.module.empty() && !HasParts(node.module)) return {node.module, node.source};
  std::string function = node.function;
  if (function.empty() && !node.name.empty()) {
    function = WithoutCall(node.name.substr(node.name.rfind('/') + 1));
  }
  return {NameOfModule(node.module) + "/" + (function.empty() ? "*" : function), node.source};
}

// What the forward of the module that made a node computes in 16 bits up to there.
std::vector<Unit> ForwardGraph::OwnChain(size_t place, const Types& types) const {
  std::vector<Unit> units;
  std::vector<int> open = {static_cast<int>(place)};
  std::set<int> seen;
  while (!open.empty()) {
    const int next = open.back();
    open.pop_back();
    if (next == kSixteenBits) return {};
    if (next < 0 || !seen.insert(next).second) continue;
    const Node& node = nodes_[static_cast<size_t>(next)];
    if (!types.narrow[static_cast<size_t>(next)] || node.module != nodes_[place].module) continue;
    units.push_back(UnitOf(node));
    open.insert(open.end(), node.inputs.begin(), node.inputs.end());
  }
  return units;
}

std::vector<Unit> ForwardGraph::UnitsFor(const std::string& name, const KeptUnits& kept) const {
  const Node* const found = Find(name);
  if (found == nullptr) return {};
  const Types types = TypesWith(kept);
  size_t place = static_cast<size_t>(found - nodes_.data());
  if (IsDerived(name)) {
    if (found->inputs.empty() || found->inputs.front() < 0) return {};
    return OwnChain(static_cast<size_t>(found->inputs.front()), types);
  }
  // What is changed in place has the type that it was made with.
  while (nodes_[place].kind == 'i') {
    if (nodes_[place].inputs.empty() || nodes_[place].inputs.front() < 0) return {};
    place = static_cast<size_t>(nodes_[place].inputs.front());
  }
  if (types.narrow[place]) return {UnitOf(nodes_[place])};
  // Operations that are given a copy, by themselves or through what hands values on.
  std::vector<Unit> units;
  std::set<int> handed = {static_cast<int>(place)};
  for (size_t i = place + 1; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    const bool given =
        std::ranges::any_of(node.inputs, [&](int input) { return handed.contains(input); });
    if (!given || IsKept(node, kept)) continue;
    if (node.rounds) units.push_back(UnitOf(node));
    if (node.name.empty()) handed.insert(static_cast<int>(i));
  }
  return units;
}

std::vector<Unit> ForwardGraph::MakerOf(const std::string& name) const {
  const Node* const found = Find(name);
  return found == nullptr ? std::vector<Unit>() : std::vector{UnitOf(*found)};
}

std::vector<Unit> ForwardGraph::UnitsOfModule(const std::string& module) const {
  const std::string own = module == kRoot ? "" : module;
  if (!own.empty() && !HasParts(own)) {
    const auto first = std::ranges::find(nodes_, own, &Node::module);
    return {{own, first == nodes_.end() ? "" : first->source}};
  }
  std::vector<Unit> units;
  for (const Node& node : nodes_) {
    if (node.module == own && node.rounds) units.push_back(UnitOf(node));
  }
  return units;
}

const ForwardGraph::Node* ForwardGraph::Last() const {
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (nodes_[i].kind == 'n' && nodes_[i].rounds) return &nodes_[i];
  }
  return nullptr;
}

std::vector<Unit> ForwardGraph::LastUnits() const {
  const Node* const last = Last();
  return last == nullptr ? std::vector<Unit>() : std::vector{UnitOf(*last)};
}

bool ForwardGraph::KeepsLast(const KeptUnits& kept) const {
  const Node* const last = Last();
  return last != nullptr && IsKept(*last, kept);
}

bool ForwardGraph::KeepsInputsOf(const std::string& module, const KeptUnits& kept) const {
  const std::string own = module == kRoot ? "" : module;
  size_t all = 0, open = 0;
  for (const Node& node : nodes_) {
    if (node.module != own || !node.rounds) continue;
    ++all;
    open += !IsKept(node, kept);
  }
  return all > 0 && open == 0;
}

std::vector<Unit> ForwardGraph::Simplified(const std::vector<Unit>& units) const {
  std::map<std::string, std::string> kept;  // sources by name
  KeptUnits all;
  for (const Unit& unit : units) {
    kept.emplace(unit.name, unit.source);
    all.Add(unit.name);
  }
  // A module all of whose products are kept, of several that are, stands for them: the outermost.
  std::set<std::string> modules;
  for (const Node& node : nodes_) {
    for (std::string one = node.module; one.find('.') != one.npos;) {
      one.resize(one.rfind('.'));
      modules.insert(one);
    }
  }
  for (const std::string& module : modules) {
    size_t parts = 0, open = 0;
    for (const Node& node : nodes_) {
      if (!node.rounds || (node.module != module && !IsInside(node.module, module))) continue;
      ++parts;
      open += !IsKept(node, all);
    }
    const auto is_part = [&](const auto& unit) {
      return IsInside(unit.first, module) || unit.first.starts_with(module + "/");
    };
    if (parts < 2 || open > 0 || std::ranges::none_of(kept, is_part)) continue;
    std::erase_if(kept, is_part);
    kept.emplace(module, "");
  }
  std::vector<Unit> simple;
  for (const auto& [name, source] : kept) simple.push_back({name, source});
  return simple;
}

double ForwardGraph::ShareOf(const KeptUnits& kept) const {
  double all = 0, of_kept = 0;
  for (const Node& node : nodes_) {
    all += node.products;
    if (node.products > 0 && IsKept(node, kept)) of_kept += node.products;
  }
  return all > 0 ? of_kept / all : 0;
}

}  // namespace dlsim::sim
