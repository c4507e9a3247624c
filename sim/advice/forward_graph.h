// SPDX-License-Identifier: Apache-2.0
// What the operations of a recorded forward pass give to one another, and in which type under
// autocast: what else changes if parts of the model are kept in float32.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace dlsim::sim {

// A part of a model that can be kept in float32: a module, or the operations of a name that its own
// forward calls, `<module>/<function>`.
struct Unit {
  std::string name;
  std::string source;  // the line of the model that calls it; empty if not known

  friend bool operator<(const Unit& a, const Unit& b) { return a.name < b.name; }
};

// What is kept in float32: names or globs (fnmatch) of units. A module's parts are kept with it.
class KeptUnits {
 public:
  void Add(const std::string& name);

  // Whether a module, or one that holds it, is kept, or the function that its own forward calls.
  bool Has(std::string_view module, std::string_view function) const;

 private:
  std::set<std::string, std::less<>> names_;
  std::vector<std::string> globs_;
};

// Whether a tensor, as the recorder derives it, is right only if all that it was computed of in the
// same forward has 32 bits: rounding has changed it before.
bool NeedsAllOfItsChain(std::string_view name);

class ForwardGraph {
 public:
  // Reads what the recorder has written under kForwardGraphKey (docs/traces.md); nothing from an
  // empty text. Throws InputError for a damaged one.
  static std::optional<ForwardGraph> Parse(std::string_view text);

  // Which tensors autocast holds in 16 bits, or copies in 16 bits for an operation, if `kept` stays
  // in float32. By name without its role: "fc" and "block/mul".
  std::set<std::string> NarrowNames(const KeptUnits& kept) const;

  // Whether a name or glob is that of some part that has run; and the name of a part.
  bool HasUnit(const std::string& pattern) const;
  std::string AnyUnit() const;

  // Whether the graph has the tensor.
  bool Has(const std::string& name) const { return Find(name) != nullptr; }

  // Returns what is to be kept as well so that a tensor, which `kept` leaves in 16 bits, is not;
  // empty if nothing helps: its values came in 16 bits.
  std::vector<Unit> UnitsFor(const std::string& name, const KeptUnits& kept) const;

  // Returns the unit that makes a tensor, whatever its type; nothing if the graph lacks it.
  std::vector<Unit> MakerOf(const std::string& name) const;

  // Returns the unit of a module, or nothing if no operation of it has run: all of it if no module
  // in it has run, else what its own forward rounds.
  std::vector<Unit> UnitsOfModule(const std::string& module) const;

  // Returns what makes the last 16-bit result of all, which the loss is made of; and whether it is
  // kept.
  std::vector<Unit> LastUnits() const;
  bool KeepsLast(const KeptUnits& kept) const;

  // Whether a module's own forward has operations that are given copies in 16 bits, all of them
  // kept.
  bool KeepsInputsOf(const std::string& module, const KeptUnits& kept) const;

  // Returns the same parts under fewer names: a module in place of all its units.
  std::vector<Unit> Simplified(const std::vector<Unit>& units) const;

  // Returns the share of the multiplications of the forward pass that are kept.
  double ShareOf(const KeptUnits& kept) const;

 private:
  struct Node {
    char kind = 'p';  // n: 16 bits, w: 32, p: the widest input's, f: the first's, i: it in place
    bool rounds = false;      // it is given copies in 16 bits
    std::vector<int> inputs;  // places of nodes, or one of the two below
    std::string name;         // as recorded, without role; empty if it was not
    std::string module, function, source;
    double products = 0;
  };
  static constexpr int kFloat32 = -1, kSixteenBits = -2;

  struct Types {
    std::vector<bool> narrow, copied;  // by node
  };

  static bool IsKept(const Node& node, const KeptUnits& kept) {
    return kept.Has(node.module, node.function);
  }
  Types TypesWith(const KeptUnits& kept) const;
  const Node* Find(const std::string& name) const;
  const Node* Last() const;
  bool HasParts(const std::string& module) const;
  Unit UnitOf(const Node& node) const;
  std::vector<Unit> OwnChain(size_t place, const Types& types) const;

  std::vector<Node> nodes_;
};

}  // namespace dlsim::sim
