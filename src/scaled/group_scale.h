// SPDX-License-Identifier: Apache-2.0
// The scale of a group of elements, from its largest magnitude.
#pragma once

#include <cstdint>
#include <span>

#include "dlsim/codec.h"
#include "dlsim/scaled_format.h"

namespace dlsim {

struct GroupScale {
  uint32_t code = 0;  // see ScaledCodes::scales
  float encode = 1;   // multiplies values before they are rounded
  float decode = 1;   // multiplies elements
};

// What the groups of a tensor have in common.
class GroupScales {
 public:
  // `largest`: magnitude in the tensor, or in whatever shares the scale of Sharing::kTensor.
  GroupScales(const ScaledFormat& format, const Format& element, float largest);

  // Returns the scale of a group with this largest magnitude.
  GroupScale Of(float largest) const;

  // Returns the scale of a code.
  GroupScale OfCode(uint32_t code) const;

  // The same for many; `largest` are float32 bits.
  void OfEach(std::span<const uint32_t> largest, std::span<GroupScale> scales) const;
  void OfCodes(std::span<const uint32_t> codes, std::span<GroupScale> scales) const;

  float tensor_scale() const { return tensor_decode_; }
  void set_tensor_scale(float decode) { tensor_decode_ = decode; }

 private:
  uint32_t E8m0Code(float largest) const;
  GroupScale OfE8m0(uint32_t code) const;

  ScaledFormat format_;
  float max_;                                    // of the elements
  int highest_exponent_;                         // of max_
  uint32_t half_of_last_bit_;                    // of the elements, in float32 bits
  float encode_of_zero_;                         // of code 0 in E8M0
  float tensor_encode_ = 1, tensor_decode_ = 1;  // of ScaleType::kFp8
  CodecSpec of_scales_;                          // the same
};

// A float32 scale with its reciprocal.
GroupScale Float32Scale(float scale);

}  // namespace dlsim
