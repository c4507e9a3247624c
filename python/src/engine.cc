// SPDX-License-Identifier: Apache-2.0
// The commands of dlsim as calls: arguments in, results out, without standard streams. And the
// whole command, for the process of the package's dlsim.
#include <locale.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "python/src/bindings.h"
#include "python/src/step_parts.h"
#include "sim/app/commands.h"
#include "sim/base/caller.h"
#include "sim/base/rows.h"
#include "src/base/float_environment.h"
#include "src/base/threads.h"

namespace dlsim::python {
namespace {

constexpr const char* kStepPath = "<step>";
constexpr int kInternalError = 70;

std::string BytesOf(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// The words of a command as main has them. Bytes of Python, since paths need not be UTF-8.
class CommandLine {
 public:
  explicit CommandLine(const std::vector<nb::bytes>& arguments) {
    for (const nb::bytes& argument : arguments) words_.push_back(BytesOf(argument));
    for (std::string& word : words_) argv_.push_back(word.data());
    argv_.push_back(nullptr);
  }
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  int argc() const { return static_cast<int>(words_.size()); }
  char** argv() { return argv_.data(); }

 private:
  std::vector<std::string> words_ = {"dlsim"};
  std::vector<char*> argv_;
};

nb::object TextOf(std::string_view bytes) {
  return nb::steal(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

// Makes objects of dlsim.results of rows, while the GIL is held: Records, Tables of them, and
// Python's own values. All NaN are one object, so that equal results compare as equal.
class ObjectSink final : public sim::RowSink {
 public:
  nb::object TakeObject() { return std::move(made_); }

  void Take(const Place& place, const Cell& cell, bool missing) override {
    if (missing && (place.how & sim::kLeftOutIfEmpty) != 0) return;
    Add(KeyOf(place),
        missing ? nb::none() : std::visit([&](const auto& value) { return Made(value); }, cell));
  }

  bool Open(const Place& place, bool is_object, bool missing, const void* type) override {
    if (missing) {
      Take(place, {}, true);
    } else {
      const nb::object& kind = is_object ? record_ : type == kObjects ? table_ : list_;
      open_.emplace_back(KeyOf(place), kind());
    }
    return !missing;
  }

  void Close(bool) override {
    const auto [key, value] = std::move(open_.back());
    open_.pop_back();
    Add(key, value);
  }

 private:
  static nb::object KeyOf(const Place& place) {
    if (place.name == nullptr) return {};
    PyObject* name = TextOf(place.name).release().ptr();
    PyUnicode_InternInPlace(&name);
    return nb::steal(name);
  }

  nb::object Made(std::string_view text) const { return TextOf(text); }
  nb::object Made(bool flag) const { return nb::bool_(flag); }
  nb::object Made(double number) const { return std::isnan(number) ? nan_ : nb::float_(number); }
  nb::object Made(float number) const { return Made(double{number}); }
  nb::object Made(int64_t number) const { return nb::int_(number); }
  nb::object Made(uint64_t number) const { return nb::int_(number); }

  void Add(const nb::object& key, const nb::object& value) {
    if (open_.empty()) {
      made_ = value;
    } else if (PyObject* const owner = open_.back().second.ptr();
               (key.is_valid() ? PyDict_SetItem(owner, key.ptr(), value.ptr())
                               : PyList_Append(owner, value.ptr())) != 0) {
      throw nb::python_error();
    }
  }

  nb::module_ results_ = nb::module_::import_("dlsim.results");
  nb::object record_ = results_.attr("Record"), table_ = results_.attr("Table"),
             list_ = nb::borrow(reinterpret_cast<PyObject*>(&PyList_Type));
  nb::object nan_ = nb::module_::import_("math").attr("nan");
  std::vector<std::pair<nb::object, nb::object>> open_;  // objects and lists, and where they go
  nb::object made_;
};

// Keeps what the engine gives until Python takes it. All but the constructor and what returns
// Python's objects is called without the GIL.
class PythonCaller final : public sim::Caller {
 public:
  // `result_path` stands for a result that is taken as an object. `on_progress` is called with the
  // work done, all work, and a text; or it is None.
  PythonCaller(const std::string& result_path, nb::object on_progress, StepParts* step)
      : result_path_(result_path), on_progress_(std::move(on_progress)), step_(step) {}

  bool Takes(const std::string& path) const override { return path == "-" || path == result_path_; }
  void Write(std::string_view bytes) override { printed_.append(bytes); }
  bool TakeRows(const std::string& path,
                const std::function<void(sim::RowSink& row)>& tell) override;
  void Say(std::string_view line) override { said_.emplace_back(line); }
  std::unique_ptr<sim::StepSource> GivenGradients(const std::string& path) const override {
    return step_ != nullptr && path == kStepPath ? step_->TakeSource() : nullptr;
  }
  void ShowProgress(uint64_t done, uint64_t total, const std::string& line) override {
    const nb::gil_scoped_acquire held;
    if (on_progress_.is_none()) return;
    try {
      on_progress_(done, total, line);
    } catch (nb::python_error&) {
      End(std::current_exception());
    }
  }
  void CheckCanceled() override;

  // Returns exit code, text for standard output, lines for standard error, and the result or None;
  // raises what ended the work.
  nb::tuple Results(int exit_code) const;

 private:
  using Clock = std::chrono::steady_clock;

  [[noreturn]] void End(std::exception_ptr why) {
    ended_by_ = std::move(why);
    throw sim::Canceled();
  }

  const std::string& result_path_;
  nb::object on_progress_, result_ = nb::none();
  StepParts* step_;
  std::string printed_;
  std::vector<std::string> said_;
  std::exception_ptr ended_by_;
  Clock::time_point next_check_ = Clock::now();
};

// Ctrl-C is looked for at most so often: to get the GIL may take long where another thread has it.
void PythonCaller::CheckCanceled() {
  const Clock::time_point now = Clock::now();
  if (now < next_check_) return;
  next_check_ = now + std::chrono::milliseconds(20);
  const nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) End(std::make_exception_ptr(nb::python_error()));
}

bool PythonCaller::TakeRows(const std::string& path,
                            const std::function<void(sim::RowSink& row)>& tell) {
  if (path != result_path_) return false;
  const nb::gil_scoped_acquire held;
  try {
    ObjectSink sink;
    sink.Object(nullptr, "", tell);
    result_ = sink.TakeObject();
  } catch (nb::python_error&) {
    End(std::current_exception());
  }
  return true;
}

nb::tuple PythonCaller::Results(int exit_code) const {
  if (ended_by_) std::rethrow_exception(ended_by_);
  nb::list lines;
  for (const std::string& line : said_) lines.append(TextOf(line));
  return nb::make_tuple(exit_code, TextOf(printed_), lines, result_);
}

// What a process of its own would start with: numbers without the user's decimal comma, arithmetic
// that keeps subnormals, threads as OpenMP has them. It is given back at the end.
class OwnSettings {
 public:
  OwnSettings() : threads_(WantedThreads()), locale_(uselocale(Plain())) {}
  ~OwnSettings() {
    SetWantedThreads(threads_);
    uselocale(locale_);
  }
  OwnSettings(const OwnSettings&) = delete;
  OwnSettings& operator=(const OwnSettings&) = delete;

 private:
  static locale_t Plain() {
    static const locale_t plain = newlocale(LC_ALL_MASK, "C", locale_t{});
    return plain;
  }

  int threads_;
  locale_t locale_;
  DefaultFloatEnvironment environment_;
};

nb::tuple Call(const std::string& name, const std::vector<nb::bytes>& arguments,
               const std::vector<std::pair<std::string, nb::bytes>>& options,
               const std::string& result_path, const nb::object& on_progress, StepParts* step) {
  std::vector<std::string> words;
  for (const nb::bytes& argument : arguments) words.push_back(BytesOf(argument));
  std::vector<std::pair<std::string, std::string>> given;
  for (const auto& [option, text] : options) given.push_back({option, BytesOf(text)});
  PythonCaller caller(result_path, on_progress, step);
  int exit_code = kInternalError;
  {
    const nb::gil_scoped_release released;
    const OwnSettings settings;
    const sim::CallerScope scope(caller);
    try {
      exit_code = sim::CallCommand(name, words, given);
    } catch (const sim::Canceled&) {
    }
  }
  return caller.Results(exit_code);
}

// Python ignores SIGPIPE, and raises KeyboardInterrupt for SIGINT unless that is ignored.
void TakeSignalsFromPython() {
  signal(SIGPIPE, SIG_DFL);
  struct sigaction before = {};
  sigaction(SIGINT, nullptr, &before);
  if (before.sa_handler != SIG_IGN) signal(SIGINT, SIG_DFL);
}

int RunAsProcess(const std::vector<nb::bytes>& arguments) {
  CommandLine line(arguments);
  TakeSignalsFromPython();
  const nb::gil_scoped_release released;
  const OwnSettings settings;
  return sim::CommandMain(line.argc(), line.argv());
}

}  // namespace

void BindEngine(nb::module_& module) {
  module.attr("STEP_PATH") = kStepPath;
  module.def(
      "call", Call, nb::arg("name"), nb::arg("arguments"), nb::arg("options"),
      nb::arg("result_path") = "", nb::arg("on_progress") = nb::none(),
      nb::arg("step") = nb::none(),
      nb::sig("def call(name: str, arguments: Sequence[bytes], options: Sequence[tuple[str, "
              "bytes]], result_path: str = '', on_progress: object | None = None, "
              "step: HeldStep | None = None) -> tuple[int, str, list[str], Any]"),
      "Runs a command; returns its exit code, text, lines of notes and errors, and as a "
      "dlsim.results.Record what it writes as JSON to `result_path`. STEP_PATH names the gradients "
      "of `step`.");
  module.def("options", sim::OptionModel, "JSON of the options of all commands.");
  module.def("command_main", RunAsProcess, nb::arg("arguments"),
             nb::sig("def command_main(arguments: Sequence[bytes]) -> int"),
             "Runs the command as a process of its own does: on standard streams, with handlers of "
             "signals; returns its exit code.");
}

}  // namespace dlsim::python
