// SPDX-License-Identifier: Apache-2.0
#include "sim/profile/rank_message.h"

#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

// Ranks are processes of one program on machines of one kind: integers travel as they are.
template <class T>
void Put(T value, std::string& message) {
  message.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <class T>
T Take(std::string_view& message) {
  T value{};
  std::memcpy(&value, message.data(), sizeof(value));
  message.remove_prefix(sizeof(value));
  return value;
}

constexpr char kStep = 'S', kFailure = 'F';

}  // namespace

std::string StepMessage(const EncodedStep& step) {
  std::string message(1, kStep);
  Put(step.step, message);
  Put(uint64_t{step.tensors.size()}, message);
  return message + step.tensors + step.bytes;
}

std::string FailureMessage(const std::exception_ptr& failure) {
  const Failure description = FailureOf(failure);
  std::string message(1, kFailure);
  Put(int32_t{description.exit_code}, message);
  return message + description.text;
}

EncodedStep StepOfMessage(const std::string& message) {
  std::string_view rest = message;
  if (Take<char>(rest) == kFailure) {
    const int32_t exit_code = Take<int32_t>(rest);
    throw Error(static_cast<ErrorKind>(exit_code), {}, rest);
  }
  EncodedStep step;
  step.step = Take<int64_t>(rest);
  const size_t tensors = Take<uint64_t>(rest);
  step.tensors = rest.substr(0, tensors);
  step.bytes = rest.substr(tensors);
  return step;
}

Failure FailureOf(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return {static_cast<int>(error.kind()), error.what()};
  } catch (const std::bad_alloc&) {
    return {static_cast<int>(ErrorKind::kInternal), "out of memory"};
  } catch (const std::exception& error) {
    return {static_cast<int>(ErrorKind::kInternal), error.what()};
  }
}

}  // namespace dlsim::sim
