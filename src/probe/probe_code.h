// SPDX-License-Identifier: Apache-2.0
// What a probe holds as the payloads of its chunks. Decoding throws InputError of `place`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/probe.h"

namespace dlsim {

// HEAD: all but the tensors. Throws InputError for text that is not UTF-8.
std::string EncodeProbeHead(const std::string& place, const ProbeHead& head);
ProbeHead DecodeProbeHead(const std::string& place, const std::string& text);

// ELEM
std::string EncodeProbeTensors(const std::vector<ProbeTensor>& tensors);
std::vector<ProbeTensor> DecodeProbeTensors(const std::string& place, std::string_view bytes);

// VALS
std::string EncodeProbeValues(const ProbeValues& values);
ProbeValues DecodeProbeValues(const std::string& place, std::string_view bytes,
                              const ProbeHead& head);

// GRPS: groups and group_of of a step.
std::string EncodeProbeGroups(const ProbeStep& step);
void DecodeProbeGroups(const std::string& place, std::string_view bytes, ProbeStep& step);

// GRAD, which has the same size in all steps of a file, and begins with the number of the step.
inline constexpr size_t kStepNumberBytes = 8;
uint64_t GradientsBytes(const ProbeHead& head);
void PutGradientsHead(const ProbeStep& step, std::string& out);  // all before the gradients

// Returns values as a file holds them: their own memory, or `memory` where that is big-endian.
std::string_view FloatBytes(std::span<const float> values, std::string& memory);

// Returns all of the step but what GRPS holds.
ProbeStep DecodeGradients(const std::string& place, std::string_view bytes, const ProbeHead& head);

}  // namespace dlsim
