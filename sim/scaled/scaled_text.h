// SPDX-License-Identifier: Apache-2.0
// What is said of scaled formats, in words and in JSON.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/advice.h"
#include "sim/base/rows.h"
#include "sim/scaled/scaled_replay.h"

namespace dlsim::sim {

Verdict VerdictOn(const ScaledAdvice& format);

// Returns what the gradients of activations lose, over the steps that have any.
HarmOverSteps BackwardHarm(const ScaledAdvice& format);

// Returns the sentence on a format.
std::string ScaledSentence(const ScaledAdvice& format);

// Returns the sentence on what was looked at where no other formats were asked for.
std::string ScaledBasis(const ScaledAdvice& format);

// Returns a table of the formats, and of each the `top` tensors that lose most; empty without any.
std::string FormatScaledDetails(std::span<const ScaledAdvice> formats, size_t top);

// Returns the figures that may be expected of a format: mean and worst harm of both passes, null
// where nothing of a pass was recorded, steps that fail, and clipped elements.
std::vector<Figure> ScaledFigures(const ScaledAdvice& format);

// What `verdict.formats[].scaled` holds; `format` lives until it is told.
TellRows RowsOf(const ScaledAdvice& format);

// The columns of a CSV file of scaled formats, and the rows of a tensor: one for each axis.
std::string ScaledCsvHeader();
std::string ScaledCsvRows(const ObservedScaled& found);

void AddScaledKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
