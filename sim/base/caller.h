// SPDX-License-Identifier: Apache-2.0
// Whoever had the engine work: gets what it writes and says, is told the progress, and may end the
// work. The engine itself knows no standard streams; the command and Python's module each have a
// caller of their own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace dlsim::sim {

class RowSink;
struct StepSource;

// Thrown where the caller ends the work. No std::exception, so that nobody takes it for a failure.
struct Canceled {};

class Caller {
 public:
  virtual ~Caller() = default;

  // Whether it takes what is written to `path` as it takes standard output's "-"; any other path
  // names a file.
  virtual bool Takes(const std::string& path) const { return path == "-"; }

  // Takes bytes for standard output. Throws InputError if they cannot be written.
  virtual void Write(std::string_view bytes) = 0;

  // Takes the object that would be written to such a path as JSON, by having its rows told, and
  // returns true; or returns false, and gets its bytes.
  virtual bool TakeRows(const std::string& path, const std::function<void(RowSink& row)>& tell);

  // Takes a note on the work, or why it failed: a line without its end.
  virtual void Say(std::string_view line) = 0;

  // Says a note, unless it wants none.
  void Note(const std::string& text) {
    if (!quiet) Say("note: " + text);
  }

  // The gradients that it gives itself in place of the file that `path` names, if it does. They
  // live at least as long as the command works.
  virtual std::unique_ptr<StepSource> GivenGradients(const std::string& path) const;

  virtual void ShowProgress(uint64_t /*done*/, uint64_t /*total*/, const std::string& /*line*/) {}
  virtual void EndProgress() {}  // after the last one that was shown

  // Asked about once a step, on the thread that called the engine. Throws Canceled to end it.
  virtual void CheckCanceled() {}

  std::string command = "dlsim";  // that was called, such as "dlsim replay"
  int input = -1;                 // the descriptor that "-" reads, if any
  size_t columns = 0;             // that a report may have; 0: any number
  bool replaces_progress = true;  // progress replaces what was shown of it, and may come often
  bool quiet = false;             // is told no progress, and no notes
};

// Returns who called the engine on this thread. Without a CallerScope nobody listens, and nobody
// takes results.
Caller& CurrentCaller();

// Makes a caller the current one of this thread, as long as it exists.
class CallerScope {
 public:
  explicit CallerScope(Caller& caller);
  ~CallerScope();
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;

 private:
  Caller* before_;
};

// Progress of going through steps, told to the caller: often where it replaces what was shown
// before, else every ten seconds. Nothing for work that ends at once.
class Progress {
 public:
  explicit Progress(uint64_t steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Tells how many steps are done, at each. Throws Canceled if the caller ends the work.
  void Update(uint64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  uint64_t steps_;
  Caller& caller_;
  bool drawn_ = false;
  Clock::time_point start_, next_;
};

}  // namespace dlsim::sim
