// SPDX-License-Identifier: Apache-2.0
// The standard streams of a process as the engine's caller.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/base/caller.h"

namespace dlsim::sim {

// Progress and what is said go to standard error. Progress is one line, redrawn on a terminal.
class StandardCaller final : public Caller {
 public:
  void Write(const std::string& path, std::string_view bytes) override;
  void Say(std::string_view line) override;
  int InputDescriptor() const override;
  size_t Columns() const override;
  bool ReplacesProgress() const override;
  void ShowProgress(uint64_t done, uint64_t total, const std::string& line) override;
  void EndProgress() override;
  bool OwnsProcess() const override { return true; }
};

}  // namespace dlsim::sim
