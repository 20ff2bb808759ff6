// SPDX-License-Identifier: Apache-2.0
// Unicode's tables, as base64 of UTF-8 unless stated otherwise; see unicode_forms.cpp.
#pragma once

#include <string_view>

namespace sluice {

// These have records of a character, its replacement, NUL.
extern const std::string_view kCanonicalDecompositions;
extern const std::string_view kCompatibilityDecompositions;  // if not canonical
extern const std::string_view kLowercase;
// This has records of three characters: first and last of a run, and their class.
extern const std::string_view kCombiningClasses;
// This has records of three characters: a pair, and its composition.
extern const std::string_view kCompositions;
// These have records of two characters: first and last of a run that a normalizer removes.
extern const std::string_view kMarks;         // StripAccents
extern const std::string_view kBertMarks;     // BertNormalizer, strip_accents
extern const std::string_view kBertControls;  // BertNormalizer, clean_text
// Characters of the pre-tokenizer Punctuation, as members of a set in a regular expression.
extern const std::string_view kPunctuationMembers;

}  // namespace sluice
