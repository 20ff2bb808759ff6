// SPDX-License-Identifier: Apache-2.0
// The one file that knows XGrammar. Its exceptions end here, and its messages become errors.
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <variant>

#include "engine/core/status.h"
#include "engine/sampling/grammar/grammar.h"
#include "engine/sampling/grammar/number_pattern.h"

namespace sluice {
namespace {

// The first warning of the library since it was cleared, by thread.
std::string& warning() {
  static thread_local std::string text;
  return text;
}

}  // namespace
}  // namespace sluice

// Declared in XGrammar's source alone.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string&, int, int level, const std::string& message);

[[noreturn]] void LogFatalImpl(const std::string& /*file*/,
                               int /*line*/,
                               const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& /*file*/,
                    int /*line*/,
                    int level,
                    const std::string& message) {
  constexpr int kWarning = 2;
  if (level == kWarning && sluice::warning().empty()) sluice::warning() = message;
}

}  // namespace xgrammar

namespace sluice {
namespace {

// Guards the library's readers of JSON and structural tags.
constexpr int kMaxDepth = 200;

std::string one_line(std::string_view message) {
  constexpr size_t kMost = 300;
  std::string line(message.substr(0, kMost));
  std::ranges::replace(line, '\n', ' ');
  return line;
}

// Calls `make`, whatever it throws.
template <typename Make>
auto guarded(ErrorCode code, Make make) -> Expected<decltype(make())> {
  try {
    return make();
  } catch (const std::exception& error) {
    return make_error(code, one_line(error.what()));
  } catch (...) {
    return make_error(code, "the grammar library failed");
  }
}

// Types of a grammar's expressions as the library serializes them.
constexpr int32_t kRuleType = 4;
constexpr int32_t kSequenceType = 5;
constexpr int32_t kRegexType = 12;

// Lets patterns mean what the gate has written (schema_pattern.h), where all of a string's escapes
// stand: the library would take out those that it knows for its own, and has quotes around patterns
// of numbers.
xgrammar::Grammar with_exact_patterns(const xgrammar::Grammar& grammar) {
  nlohmann::json json = nlohmann::json::parse(grammar.SerializeJSON());
  auto data = json.at("grammar_expr_data").get<std::vector<int32_t>>();
  // Each expression is its type, its length, and so many numbers.
  const auto starts = json.at("grammar_expr_indptr").get<std::vector<int32_t>>();
  const auto expression = [&](int32_t id) {
    return &data[static_cast<size_t>(starts[static_cast<size_t>(id)])];
  };
  const auto count = static_cast<int32_t>(starts.size());
  std::set<int32_t> numbers;
  for (int32_t id = 0; id < count; ++id) {
    int32_t* const at = expression(id);
    constexpr int32_t kIsOfString = 1;
    if (at[0] != kRegexType || at[2] != kIsOfString) continue;
    at[2] = 0;
    if (is_number_pattern(std::string(at + 3, at + 2 + at[1]))) numbers.insert(id);
  }
  // An expression is a rule of its own, which one between quotes refers to.
  std::set<int32_t> rules;
  int32_t rule = 0;
  for (const nlohmann::json& one : json.at("rules")) {
    if (numbers.contains(one.at(1).get<int32_t>())) rules.insert(rule);
    ++rule;
  }
  for (int32_t id = 0; id < count; ++id) {
    int32_t* const at = expression(id);
    if (at[0] != kSequenceType || at[1] != 3) continue;
    const int32_t* const middle = expression(at[3]);
    if (middle[0] != kRuleType || !rules.contains(middle[2])) continue;
    at[1] = 1;
    at[2] = at[3];
  }
  json["grammar_expr_data"] = data;
  auto read = xgrammar::Grammar::DeserializeJSON(json.dump());
  if (auto* const exact = std::get_if<xgrammar::Grammar>(&read)) return std::move(*exact);
  throw std::runtime_error("a grammar cannot be read");
}

struct XGrammar final : Grammar {
  XGrammar(xgrammar::CompiledGrammar made, std::shared_ptr<const std::vector<uint32_t>> mask)
      : compiled(std::move(made)), all(std::move(mask)) {}

  [[nodiscard]] std::unique_ptr<GrammarMatcher> match() const override;

  [[nodiscard]] int64_t bytes() const override {
    return static_cast<int64_t>(compiled.MemorySizeBytes());
  }

  xgrammar::CompiledGrammar compiled;
  // Every token but the control tokens that the grammar does not name.
  std::shared_ptr<const std::vector<uint32_t>> all;
};

class XGrammarMatcher final : public GrammarMatcher {
 public:
  explicit XGrammarMatcher(const XGrammar& grammar)
      : matcher_(grammar.compiled), ends_(matcher_.GetStopTokenIds()), all_(grammar.all) {}

  bool accept(TokenId token) override {
    try {
      return !matcher_.IsTerminated() && matcher_.AcceptToken(token);
    } catch (const std::exception&) {
      return false;
    }
  }

  void rollback(int32_t num_tokens) override {
    if (num_tokens > 0) matcher_.Rollback(num_tokens);
  }

  Allowed fill(std::span<uint32_t> row) override {
    if (matcher_.IsTerminated()) return Allowed::kNothing;
    int64_t words = static_cast<int64_t>(row.size());
    DLTensor tensor{.data = row.data(),
                    .device = {.device_type = kDLCPU, .device_id = 0},
                    .ndim = 1,
                    .dtype = xgrammar::GetBitmaskDLType(),
                    .shape = &words,
                    .strides = nullptr,
                    .byte_offset = 0};
    try {
      if (!matcher_.FillNextTokenBitmask(&tensor)) {
        std::ranges::copy(*all_, row.begin());
        return Allowed::kAll;
      }
    } catch (const std::exception&) {
      return Allowed::kNothing;
    }
    for (size_t i = 0; i < row.size(); ++i) row[i] &= (*all_)[i];
    return verdict(row);
  }

  [[nodiscard]] bool is_completed() const override { return matcher_.IsCompleted(); }

 private:
  [[nodiscard]] bool is_end(size_t token) const {
    return std::ranges::find(ends_, static_cast<int>(token)) != ends_.end();
  }

  [[nodiscard]] Allowed verdict(std::span<const uint32_t> row) const {
    bool is_empty = true;
    for (size_t word = 0; word < row.size(); ++word) {
      for (uint32_t bits = row[word]; bits != 0; bits &= bits - 1) {
        is_empty = false;
        if (!is_end(32 * word + static_cast<size_t>(std::countr_zero(bits)))) return Allowed::kSome;
      }
    }
    return is_empty ? Allowed::kNothing : Allowed::kOnlyEnd;
  }

  xgrammar::GrammarMatcher matcher_;
  const std::vector<int>& ends_;
  std::shared_ptr<const std::vector<uint32_t>> all_;
};

std::unique_ptr<GrammarMatcher> XGrammar::match() const {
  return std::make_unique<XGrammarMatcher>(*this);
}

class XGrammarBackend final : public GrammarBackend {
 public:
  XGrammarBackend(const GrammarVocabulary& vocabulary, const GrammarLimits& limits)
      : limits_(limits),
        info_(vocabulary.tokens,
              xgrammar::VocabType::RAW,
              vocabulary.width,
              std::vector<int32_t>(vocabulary.ends)) {
    all_.resize(token_mask_words(vocabulary.width));
    for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
      const std::string& token = vocabulary.tokens[i];
      const bool is_text = !token.empty() && token[0] != kControlByte;
      const bool ends =
          std::ranges::find(vocabulary.ends, static_cast<TokenId>(i)) != vocabulary.ends.end();
      if (is_text || ends) allow(all_, static_cast<TokenId>(i));
    }
  }

  [[nodiscard]] Expected<std::shared_ptr<const Grammar>> compile(
      const GrammarSpec& spec) const override {
    warning().clear();
    SLUICE_TRY(auto compiled, guarded(ErrorCode::kInvalidArgument, [&] {
                 xgrammar::GrammarCompiler compiler(info_, 1, false);
                 return compile_with(compiler, spec);
               }));
    // The library reports what it leaves out in a warning.
    if (!warning().empty()) {
      return make_error(ErrorCode::kUnsupported, one_line(warning()));
    }
    return made(std::move(compiled), spec);
  }

  [[nodiscard]] std::string save(const Grammar& grammar) const override {
    return static_cast<const XGrammar&>(grammar).compiled.SerializeJSON();
  }

  [[nodiscard]] Expected<std::shared_ptr<const Grammar>> load(
      std::string bytes, const GrammarSpec& spec) const override {
    SLUICE_TRY(auto read, guarded(ErrorCode::kDataLoss, [&] {
                 return xgrammar::CompiledGrammar::DeserializeJSON(bytes, info_);
               }));
    auto* const compiled = std::get_if<xgrammar::CompiledGrammar>(&read);
    if (compiled == nullptr) {
      return make_error(ErrorCode::kDataLoss, "a compiled grammar cannot be read");
    }
    return made(std::move(*compiled), spec);
  }

 private:
  static void allow(std::vector<uint32_t>& row, TokenId token) {
    row[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
  }

  [[nodiscard]] xgrammar::CompiledGrammar compile_with(xgrammar::GrammarCompiler& compiler,
                                                       const GrammarSpec& spec) const {
    switch (spec.kind) {
      case GrammarKind::kAnyObject:
        return schema(compiler, R"({"type":"object"})", spec, /*closed=*/false);
      case GrammarKind::kJsonSchema:
        return schema(compiler, spec.text, spec, /*closed=*/true);
      case GrammarKind::kRegex:
        return compiler.CompileRegex(spec.text);
      case GrammarKind::kEbnf:
        return compiler.CompileGrammar(spec.text);
      case GrammarKind::kLark:
        return compiler.CompileLark(spec.text);
      case GrammarKind::kStructuralTag:
        return structural_tag(compiler, spec.text);
      case GrammarKind::kNone:
        break;
    }
    throw std::runtime_error("there is no grammar");
  }

  // `closed`: nothing but what the schema names in objects and arrays.
  [[nodiscard]] xgrammar::CompiledGrammar schema(xgrammar::GrammarCompiler& compiler,
                                                 const std::string& text,
                                                 const GrammarSpec& spec,
                                                 bool closed) const {
    using Separators = std::optional<std::pair<std::string, std::string>>;
    const xgrammar::Grammar grammar = xgrammar::Grammar::FromJSONSchema(
        text,
        spec.allows_whitespace,
        std::nullopt,
        spec.allows_whitespace ? Separators() : Separators({",", ":"}),
        closed,
        spec.allows_whitespace ? std::optional<int>(limits_.max_whitespace) : std::nullopt);
    return compiler.CompileGrammar(has_pattern(text) ? with_exact_patterns(grammar) : grammar);
  }

  [[nodiscard]] xgrammar::CompiledGrammar structural_tag(xgrammar::GrammarCompiler& compiler,
                                                         const std::string& text) const {
    if (!has_pattern(text)) return compiler.CompileStructuralTag(text);
    auto read = xgrammar::Grammar::FromStructuralTag(text, info_);
    auto* const grammar = std::get_if<xgrammar::Grammar>(&read);
    // The library has the message.
    if (grammar == nullptr) return compiler.CompileStructuralTag(text);
    return compiler.CompileGrammar(with_exact_patterns(*grammar));
  }

  static bool has_pattern(const std::string& text) {
    return text.find("\"pattern") != std::string::npos;
  }

  [[nodiscard]] std::shared_ptr<const Grammar> made(xgrammar::CompiledGrammar compiled,
                                                    const GrammarSpec& spec) const {
    std::vector<uint32_t> all = all_;
    for (const TokenId token : spec.control_tokens) allow(all, token);
    return std::make_shared<XGrammar>(
        std::move(compiled), std::make_shared<const std::vector<uint32_t>>(std::move(all)));
  }

  const GrammarLimits limits_;
  xgrammar::TokenizerInfo info_;
  std::vector<uint32_t> all_;
};

}  // namespace

Expected<std::unique_ptr<GrammarBackend>> create_grammar_backend(GrammarVocabulary vocabulary,
                                                                 const GrammarLimits& limits) {
  xgrammar::SetMaxRecursionDepth(kMaxDepth);
  return guarded(ErrorCode::kInternal, [&]() -> std::unique_ptr<GrammarBackend> {
    return std::make_unique<XGrammarBackend>(vocabulary, limits);
  });
}

}  // namespace sluice
