// SPDX-License-Identifier: Apache-2.0
// Unicode's tables, as base64 of UTF-8 where nothing else is said, see unicode_forms.cpp.
#pragma once

#include <string_view>

namespace sluice {

// Records: a character, what it becomes, NUL.
extern const std::string_view kCanonicalDecompositions;
extern const std::string_view kCompatibilityDecompositions;  // where it is not the canonical one
extern const std::string_view kLowercase;
// Records of three characters: first and last of a run, and their class.
extern const std::string_view kCombiningClasses;
// Records of three characters: a pair, and what it becomes.
extern const std::string_view kCompositions;
// Records of two characters: first and last of a run that a normalizer leaves out.
extern const std::string_view kMarks;         // StripAccents
extern const std::string_view kBertMarks;     // BertNormalizer, strip_accents
extern const std::string_view kBertControls;  // BertNormalizer, clean_text
// What the pre-tokenizer Punctuation takes for it, as members of a set in a regular expression.
extern const std::string_view kPunctuationMembers;

}  // namespace sluice
