// SPDX-License-Identifier: Apache-2.0
#include "src/probe/probe_code.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "src/profile/bytes.h"
#include "src/trace/strict_json.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSchema = "dlsim.probe/1";
constexpr size_t kFloatBytes = sizeof(float);
constexpr uint64_t kMaxFollowed = uint64_t{1} << 40;  // so that sums of sizes fit

void PutFloats(std::span<const float> values, std::string& out) {
  std::string memory;
  out.append(FloatBytes(values, memory));
}

std::vector<float> TakeFloats(ByteReader& in, uint64_t count) {
  const std::string_view bytes = in.Take(count * kFloatBytes);
  std::vector<float> values(static_cast<size_t>(count));
  if constexpr (std::endian::native == std::endian::little) {
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  } else {
    ByteReader words(in.place(), bytes);
    for (float& value : values) {
      value = std::bit_cast<float>(static_cast<uint32_t>(words.Word(kFloatBytes)));
    }
  }
  return values;
}

void PutDouble(double value, std::string& out) {
  PutWord(std::bit_cast<uint64_t>(value), sizeof(value), out);
}

double TakeDouble(ByteReader& in) { return std::bit_cast<double>(in.Word(sizeof(double))); }

ProbeTensor TakeTensor(ByteReader& in) {
  ProbeTensor tensor;
  tensor.name = in.String();
  const uint8_t dtype = in.Byte();
  in.Require(dtype <= static_cast<uint8_t>(DType::kBF16), "damaged: no type of a parameter");
  tensor.dtype = static_cast<DType>(dtype);
  tensor.shape.resize(in.Count());
  for (uint64_t& size : tensor.shape) size = in.Varint();
  tensor.stride = in.Varint();
  tensor.run = in.Varint();
  tensor.count = in.Varint();
  const std::optional<uint64_t> all = ElementCount(tensor.shape, 1);
  in.Require(all && tensor.dtype != DType::kF64 && tensor.run > 0 && tensor.count > 0 &&
                 tensor.count <= *all && tensor.stride <= *all && tensor.run <= tensor.count,
             "damaged: elements that no parameter has");
  const uint64_t last = tensor.count - 1;  // what follows cannot overflow: runs do not overlap
  in.Require(last < tensor.run ||
                 (tensor.stride >= tensor.run && last / tensor.run <= *all / tensor.stride &&
                  tensor.IndexOf(last) < *all),
             "damaged: elements that no parameter has");
  return tensor;
}

}  // namespace

std::string EncodeProbeHead(const std::string& place, const ProbeHead& head) {
  Json json;
  json["schema"] = std::string(kSchema);
  json["elements"] = head.elements;
  json["description"] = Json::object();
  for (const auto& [key, value] : head.description) json["description"][key] = value;
  try {
    return json.dump();
  } catch (const nlohmann::json::exception& exception) {
    throw InputError(place, "a description that a probe cannot hold: " + JsonMessage(exception));
  }
}

ProbeHead DecodeProbeHead(const std::string& place, const std::string& text) {
  try {
    CheckStrictJson(place, text);
    const Json json = Json::parse(text);
    const std::string schema = json.at("schema").get<std::string>();
    if (schema != kSchema) {
      throw InputError(place, "unknown schema of a probe", std::string(kSchema), Printable(schema));
    }
    ProbeHead head;
    head.elements = json.at("elements").get<uint64_t>();
    for (const auto& [key, value] : json.at("description").items()) {
      head.description[key] = value.get<std::string>();
    }
    if (EncodeProbeHead(place, head) == text) return head;
  } catch (const nlohmann::json::exception& exception) {
    throw InputError(place, "damaged head: " + JsonMessage(exception));
  }
  throw InputError(place, "damaged: a head that this version does not know");
}

std::string EncodeProbeTensors(const std::vector<ProbeTensor>& tensors) {
  std::string out;
  PutVarint(tensors.size(), out);
  for (const ProbeTensor& tensor : tensors) {
    PutString(tensor.name, out);
    out.push_back(static_cast<char>(tensor.dtype));
    PutVarint(tensor.shape.size(), out);
    for (const uint64_t size : tensor.shape) PutVarint(size, out);
    for (const uint64_t value : {tensor.stride, tensor.run, tensor.count}) PutVarint(value, out);
  }
  return out;
}

std::vector<ProbeTensor> DecodeProbeTensors(const std::string& place, std::string_view bytes) {
  ByteReader in(place, bytes);
  std::vector<ProbeTensor> tensors(in.Count());
  uint64_t followed = 0;
  for (ProbeTensor& tensor : tensors) {
    tensor = TakeTensor(in);
    in.Require(tensor.count <= kMaxFollowed - followed, "damaged: too many elements");
    followed += tensor.count;
  }
  in.RequireEnd();
  return tensors;
}

std::string EncodeProbeValues(const ProbeValues& values) {
  std::string out;
  PutFloats(values.values, out);
  PutVarint(values.states.size(), out);
  for (const ProbeState& state : values.states) {
    PutVarint(state.tensor, out);
    PutVarint(state.updates, out);
    PutVarint(state.values.size(), out);
    for (const auto& [name, elements] : state.values) {
      PutString(name, out);
      PutFloats(elements, out);
    }
  }
  return out;
}

ProbeValues DecodeProbeValues(const std::string& place, std::string_view bytes,
                              const ProbeHead& head) {
  ByteReader in(place, bytes);
  ProbeValues values;
  values.values = TakeFloats(in, head.FollowedCount());
  values.states.resize(in.Count());
  uint64_t least = 0;
  for (ProbeState& state : values.states) {
    const uint64_t tensor = in.Varint();
    in.Require(tensor >= least && tensor < head.tensors.size(), "damaged: a state of no tensor");
    least = tensor + 1;
    state.tensor = static_cast<uint32_t>(tensor);
    state.updates = in.Varint();
    for (size_t left = in.Count(); left > 0; --left) {
      std::string name = in.String();
      state.values[std::move(name)] = TakeFloats(in, head.tensors[state.tensor].count);
    }
  }
  in.RequireEnd();
  return values;
}

std::string EncodeProbeGroups(const ProbeStep& step) {
  std::string out;
  PutVarint(step.groups.size(), out);
  for (const ProbeGroup& group : step.groups) {
    PutString(group.optimizer, out);
    PutVarint(group.values.size(), out);
    for (const auto& [name, value] : group.values) {
      PutString(name, out);
      PutDouble(value, out);
    }
  }
  for (const uint32_t group : step.group_of) {
    PutVarint(group == ProbeStep::kNoGroup ? 0 : uint64_t{group} + 1, out);
  }
  return out;
}

void DecodeProbeGroups(const std::string& place, std::string_view bytes, ProbeStep& step) {
  ByteReader in(place, bytes);
  step.groups.resize(in.Count());
  for (ProbeGroup& group : step.groups) {
    group.optimizer = in.String();
    for (size_t left = in.Count(); left > 0; --left) {
      std::string name = in.String();
      group.values[std::move(name)] = TakeDouble(in);
    }
  }
  for (size_t i = 0; i < step.updated.size(); ++i) {
    const uint64_t group = in.Varint();  // 0 = none
    in.Require(group <= step.groups.size() && (group > 0 || !step.updated[i]),
               "damaged: a parameter of no group");
    step.group_of.push_back(group == 0 ? ProbeStep::kNoGroup : static_cast<uint32_t>(group - 1));
  }
  in.RequireEnd();
}

uint64_t GradientsBytes(const ProbeHead& head) {
  const uint64_t flags = (head.tensors.size() + 7) / 8;
  return kStepNumberBytes + sizeof(double) + flags + head.FollowedCount() * kFloatBytes;
}

void PutGradientsHead(const ProbeStep& step, std::string& out) {
  PutWord(static_cast<uint64_t>(step.step), kStepNumberBytes, out);
  PutDouble(step.clip.value_or(std::numeric_limits<double>::quiet_NaN()), out);
  for (size_t i = 0; i < step.updated.size(); i += 8) {
    unsigned flags = 0;
    const size_t end = std::min<size_t>(i + 8, step.updated.size());
    for (size_t k = i; k < end; ++k) flags |= step.updated[k] ? 1u << (k - i) : 0u;
    out.push_back(static_cast<char>(flags));
  }
}

std::string_view FloatBytes(std::span<const float> values, std::string& memory) {
  if constexpr (std::endian::native == std::endian::little) {
    return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
  }
  for (const float value : values) PutWord(std::bit_cast<uint32_t>(value), kFloatBytes, memory);
  return memory;
}

ProbeStep DecodeGradients(const std::string& place, std::string_view bytes, const ProbeHead& head) {
  ByteReader in(place, bytes);
  ProbeStep step;
  step.step = static_cast<int64_t>(in.Word(kStepNumberBytes));
  const double clip = TakeDouble(in);
  if (!std::isnan(clip)) step.clip = clip;
  step.updated.resize(head.tensors.size());
  uint8_t flags = 0;
  for (size_t i = 0; i < step.updated.size(); ++i) {
    if (i % 8 == 0) flags = in.Byte();
    step.updated[i] = (flags >> i % 8 & 1) != 0;
  }
  step.gradients = TakeFloats(in, head.FollowedCount());
  in.RequireEnd();
  return step;
}

}  // namespace dlsim
