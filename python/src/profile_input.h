// SPDX-License-Identifier: Apache-2.0
// What profiles are made from in Python: arrays, or values with their counts.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "dlsim/profile.h"

namespace dlsim::python {

namespace nb = nanobind;

using HostArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
// Dense memory by its address: the CUDA device that has it (-1 = the host), address, element type,
// shape.
using Memory = std::tuple<int, uintptr_t, std::string, std::vector<uint64_t>>;
// Name, role ("grad" or "act_grad"), values.
using NamedArray = std::tuple<std::string, std::string, std::variant<HostArray, Memory>>;
using Metadata = std::map<std::string, std::string>;
// Number of the micro-step (-1 = none), loss scale that the values carry, metadata, tensors.
using Part = std::tuple<int64_t, double, Metadata, std::vector<NamedArray>>;

// Returns a loss scale that values may carry, as a reader of traces takes it: they are multiplied
// by its reciprocal. Throws UsageError.
float GradScaleOf(double given);

// Returns a part of a step; refers to the arrays' values. Throws UsageError for bad ones.
Recording RecordingOf(const Part& part);

// Returns the device that has tensors of the recording; -1 if the host has all. Throws UsageError
// if several have some.
int DeviceOf(const Recording& recording);

}  // namespace dlsim::python
