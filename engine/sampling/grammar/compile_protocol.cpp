// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/compile_protocol.h"

#include "engine/sampling/grammar/frames.h"

namespace sluice {
namespace {

tl::unexpected<Error> cut_frame() {
  return make_error(ErrorCode::kDataLoss, "a message between processes is cut");
}

tl::unexpected<Error> unknown_value() {
  return make_error(ErrorCode::kDataLoss, "a message between processes has an unknown value");
}

template <typename Enum>
bool is_one_of(int64_t value, Enum last) {
  return value >= 0 && value <= static_cast<int64_t>(last);
}

}  // namespace

std::string encode_setup(const CompileSetup& setup) {
  FieldWriter out;
  out.add(setup.limits.wall_s);
  out.add(setup.limits.cpu_s);
  out.add(setup.limits.memory_bytes);
  out.add(setup.limits.result_bytes);
  out.add(setup.limits.small_ms);
  out.add(setup.limits.small_bytes);
  out.add(setup.grammar.max_whitespace);
  out.add(setup.vocabulary.width);
  out.add(static_cast<int64_t>(setup.vocabulary.ends.size()));
  for (const TokenId id : setup.vocabulary.ends) out.add(id);
  out.add(static_cast<int64_t>(setup.vocabulary.tokens.size()));
  for (const std::string& token : setup.vocabulary.tokens) out.add(std::string_view(token));
  return out.bytes();
}

Expected<CompileSetup> decode_setup(std::string_view bytes) {
  FieldReader in(bytes);
  CompileSetup setup;
  setup.limits.wall_s = static_cast<int32_t>(in.integer());
  setup.limits.cpu_s = static_cast<int32_t>(in.integer());
  setup.limits.memory_bytes = in.integer();
  setup.limits.result_bytes = in.integer();
  setup.limits.small_ms = static_cast<int32_t>(in.integer());
  setup.limits.small_bytes = in.integer();
  setup.grammar.max_whitespace = static_cast<int32_t>(in.integer());
  setup.vocabulary.width = static_cast<int32_t>(in.integer());
  for (int64_t left = in.integer(); left > 0 && in.is_complete(); --left) {
    setup.vocabulary.ends.push_back(static_cast<TokenId>(in.integer()));
  }
  for (int64_t left = in.integer(); left > 0 && in.is_complete(); --left) {
    setup.vocabulary.tokens.emplace_back(in.text());
  }
  if (!in.is_complete()) return cut_frame();
  return setup;
}

std::string encode_spec(const GrammarSpec& spec) {
  FieldWriter out;
  out.add(static_cast<int64_t>(spec.kind));
  out.add(spec.allows_whitespace ? 1 : 0);
  out.add(static_cast<int64_t>(spec.control_tokens.size()));
  for (const TokenId id : spec.control_tokens) out.add(id);
  out.add(std::string_view(spec.text));
  return out.bytes();
}

Expected<GrammarSpec> decode_spec(std::string_view bytes) {
  FieldReader in(bytes);
  GrammarSpec spec;
  const int64_t kind = in.integer();
  spec.allows_whitespace = in.integer() != 0;
  for (int64_t left = in.integer(); left > 0 && in.is_complete(); --left) {
    spec.control_tokens.push_back(static_cast<TokenId>(in.integer()));
  }
  spec.text = in.text();
  if (!in.is_complete()) return cut_frame();
  if (!is_one_of(kind, GrammarKind::kStructuralTag)) return unknown_value();
  spec.kind = static_cast<GrammarKind>(kind);
  return spec;
}

std::string encode_reply(const Expected<std::string>& result) {
  FieldWriter out;
  out.add(result ? 1 : 0);
  out.add(result ? 0 : static_cast<int64_t>(result.error().code));
  out.add(std::string_view(result ? *result : result.error().message));
  return out.bytes();
}

Expected<std::string> decode_reply(std::string_view bytes) {
  FieldReader in(bytes);
  const bool is_made = in.integer() != 0;
  const int64_t code = in.integer();
  std::string text(in.text());
  if (!in.is_complete()) return cut_frame();
  if (is_made) return text;
  if (!is_one_of(code, ErrorCode::kInternal)) return unknown_value();
  return make_error(static_cast<ErrorCode>(code), std::move(text));
}

}  // namespace sluice
