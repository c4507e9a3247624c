// SPDX-License-Identifier: Apache-2.0
// The semantics of dlsim/codec.h, compiled per SIMD target: the functions must be parsed where
// Highway has switched the instruction set on.
#if defined(DLSIM_CODEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_CODEC_INL_H_
#undef DLSIM_CODEC_INL_H_
#else
#define DLSIM_CODEC_INL_H_
#endif

#include "dlsim/codec.h"
#include "src/codec/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {
namespace lanewise {

#define DLSIM_LANE_FUNCTION HWY_INLINE
#include "dlsim/codec.inc"
#undef DLSIM_LANE_FUNCTION

}  // namespace lanewise
}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
