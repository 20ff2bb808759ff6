// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/sentencepiece_files.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/files/sentencepiece_model.h"
#include "engine/tokenizer/text/base64.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using Piece = SentencePieceModel::Piece;

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kSpaceSymbol = "\xE2\x96\x81";

constexpr SentencePieceKind kKinds[] = {
    {"LlamaTokenizer", "llama", true, true},
    {"LlamaTokenizer", "mistral", true, true},
    {"LlamaTokenizer", "mixtral", true, true},
    {"LLaMATokenizer", "", true, true},
    {"InternLMTokenizer", "internlm", true, false},
    {"InternLM2Tokenizer", "internlm2", true, false},
    {"BaichuanTokenizer", "baichuan", true, false},
    {"BaiChuanTokenizer", "", true, false},
    {"YiTokenizer", "Yi", true, false},
    {"OrionTokenizer", "orion", true, false},
    {"Ernie4_5_Tokenizer", "ernie4_5", false, false},
    {"Ernie4_5_Tokenizer", "ernie4_5_moe", false, false},
    {"Ernie4_5Tokenizer", "", false, false},
};

Json replace(Json pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", std::move(pattern)}, {"content", content}};
}

// Returns an expression that matches this text.
std::string escaped(std::string_view text) {
  std::string expression;
  for (const char c : text) {
    const bool is_word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_ascii(c) && !is_word) expression += '\\';
    expression += c;
  }
  return expression;
}

class SentencePieceJson {
 public:
  SentencePieceJson(SentencePieceModel model,
                    const SentencePieceKind& kind,
                    const SentencePieceOptions& options)
      : model_(std::move(model)), kind_(kind), options_(options) {}

  Expected<Json> write() {
    SLUICE_TRY_VOID(take_added_tokens());
    mark_special();
    SLUICE_TRY(has_prefix_,
               json_bool_or(options_.config, "add_prefix_space", kConfig, model_.has_dummy_prefix));
    if (kind_.has_legacy) {
      SLUICE_TRY(is_legacy_, json_bool_or(options_.config, "legacy", kConfig, true));
    }
    SLUICE_TRY(Json model, model_.is_unigram ? unigram() : bpe());
    Json json = {{"model", std::move(model)},
                 {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers()}}},
                 {"decoder", {{"type", "Sequence"}, {"decoders", decoders()}}}};
    if (Json stages = pretokenizers(); !stages.empty()) {
      json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", std::move(stages)}};
    }
    for (auto& [id, token] : added_) json["added_tokens"].push_back(std::move(token));
    SLUICE_TRY(json["post_processor"], post_processor());
    return json;
  }

 private:
  Expected<void> take_added_tokens();
  void mark_special();
  [[nodiscard]] std::string role_text(std::string_view role) const;
  [[nodiscard]] TokenId role_token(std::string_view role, TokenId usual) const;
  [[nodiscard]] Expected<Json> bpe() const;
  [[nodiscard]] Expected<Json> merges() const;
  [[nodiscard]] Expected<Json> unigram() const;
  [[nodiscard]] Json normalizers() const;
  [[nodiscard]] Json pretokenizers() const;
  [[nodiscard]] Json decoders() const;
  [[nodiscard]] Expected<Json> post_processor() const;
  // User-defined pieces that are no added tokens: no merge crosses their borders.
  [[nodiscard]] std::vector<std::string_view> whole_pieces() const;

  SentencePieceModel model_;
  const SentencePieceKind& kind_;
  const SentencePieceOptions& options_;
  std::map<int64_t, Json> added_;                   // by id
  std::unordered_map<std::string, TokenId> texts_;  // of pieces and added tokens
  bool has_prefix_ = false;
  bool is_legacy_ = true;
};

// Takes control pieces and the tokens of files beside the model. One with the id of a piece of
// another text gives it its text, as InternLM's for pieces kept for later use, unless another piece
// has that text.
Expected<void> SentencePieceJson::take_added_tokens() {
  const auto count = static_cast<int64_t>(model_.pieces.size());
  for (int64_t id = 0; id < count; ++id) {
    const Piece& piece = model_.pieces[static_cast<size_t>(id)];
    if (piece.type != TokenType::kControl && piece.type != TokenType::kUnknown) continue;
    added_[id] = {{"content", piece.text}, {"special", true}};
  }
  std::unordered_set<int64_t> listed;
  for (const Json& token : options_.added_tokens) {
    const std::optional<int64_t> id = json_whole_number(token["id"]);
    if (!id || *id < 0 || *id >= kMaxTokenIds) {
      return json_error(kConfig, "a token id of added tokens is out of range");
    }
    listed.insert(*id);
  }
  for (int64_t id = 0; id < count; ++id) {
    if (!listed.contains(id)) {
      texts_[model_.pieces[static_cast<size_t>(id)].text] = static_cast<TokenId>(id);
    }
  }
  for (const Json& token : options_.added_tokens) {
    const int64_t id = *json_whole_number(token["id"]);
    const auto& text = token["content"].get_ref<const std::string&>();
    const bool is_new = texts_.emplace(text, static_cast<TokenId>(id)).second;
    if (id < count && is_new) model_.pieces[static_cast<size_t>(id)].text = text;
    if (is_new) added_[id] = token;
  }
  for (auto& [id, token] : added_) {
    token["id"] = id;
    token["normalized"] = false;
  }
  return {};
}

std::string SentencePieceJson::role_text(std::string_view role) const {
  for (const Json* place : {&options_.renamed, &options_.config}) {
    const Json* found = json_field(*place, role);
    if (found != nullptr && found->is_object()) found = json_field(*found, "content");
    if (found != nullptr && found->is_string()) return found->get<std::string>();
  }
  return {};
}

TokenId SentencePieceJson::role_token(std::string_view role, TokenId usual) const {
  const auto found = texts_.find(role_text(role));
  return found == texts_.end() ? usual : found->second;
}

// Tokens with a role are special, whatever lists them.
void SentencePieceJson::mark_special() {
  const auto mark = [this](const std::string& text) {
    const auto found = texts_.find(text);
    if (found == texts_.end()) return;
    Json& token = added_[found->second];
    if (token.is_null()) token = {{"content", text}, {"id", found->second}, {"normalized", false}};
    token["special"] = true;
  };
  for (const char* role : {"bos_token",
                           "eos_token",
                           "unk_token",
                           "sep_token",
                           "pad_token",
                           "cls_token",
                           "mask_token"}) {
    mark(role_text(role));
  }
  for (const Json* place : {&options_.renamed, &options_.config}) {
    const Json* const more = json_field(*place, "additional_special_tokens");
    if (more == nullptr || !more->is_array()) continue;
    for (const Json& token : *more) {
      const Json* const content = token.is_string() ? &token : json_field(token, "content");
      if (content != nullptr && content->is_string()) mark(content->get<std::string>());
    }
  }
}

std::vector<std::string_view> SentencePieceJson::whole_pieces() const {
  std::vector<std::string_view> texts;
  for (size_t id = 0; id < model_.pieces.size(); ++id) {
    const Piece& piece = model_.pieces[id];
    if (piece.type == TokenType::kUserDefined && !added_.contains(static_cast<int64_t>(id))) {
      texts.push_back(piece.text);
    }
  }
  std::ranges::stable_sort(texts, std::ranges::greater(), &std::string_view::size);
  return texts;
}

// The pairs of normal pieces that are a third together, the best score first.
Expected<Json> SentencePieceJson::merges() const {
  std::unordered_set<std::string_view> normal;
  std::vector<const Piece*> order;
  for (size_t id = 0; id < model_.pieces.size(); ++id) {
    const Piece& piece = model_.pieces[id];
    if (piece.type != TokenType::kNormal || added_.contains(static_cast<int64_t>(id))) continue;
    normal.insert(piece.text);
    order.push_back(&piece);
  }
  std::ranges::stable_sort(order, std::ranges::greater(), &Piece::score);
  // Published models have about two a piece.
  const size_t most = 4 * order.size() + (size_t{1} << 19);
  Json merges = Json::array();
  for (const Piece* piece : order) {
    const std::string_view text = piece->text;
    for (size_t cut = next_utf8_part(text, 0).length; cut < text.size();
         cut += next_utf8_part(text, cut).length) {
      if (!normal.contains(text.substr(0, cut)) || !normal.contains(text.substr(cut))) continue;
      merges.push_back({text.substr(0, cut), text.substr(cut)});
    }
    if (merges.size() > most) {
      return json_error("tokenizer.model", "its pieces are made of each other in too many ways");
    }
  }
  return merges;
}

Expected<Json> SentencePieceJson::bpe() const {
  SLUICE_TRY(Json pairs, merges());
  Json vocab = Json::object();
  for (size_t id = 0; id < model_.pieces.size(); ++id) vocab[model_.pieces[id].text] = id;
  return Json{{"type", "BPE"},
              {"unk_token", model_.pieces[static_cast<size_t>(model_.unknown)].text},
              {"fuse_unk", true},
              {"byte_fallback", model_.byte_fallback},
              {"ignore_merges", !whole_pieces().empty()},
              {"vocab", std::move(vocab)},
              {"merges", std::move(pairs)}};
}

Expected<Json> SentencePieceJson::unigram() const {
  // A byte's piece does not arise from its name, nor an unused one: most other segmentations are
  // better.
  constexpr float kNever = -1e6F;
  Json vocab = Json::array();
  for (const Piece& piece : model_.pieces) {
    const bool is_hidden = piece.type == TokenType::kByte || piece.type == TokenType::kUnused;
    vocab.push_back({piece.text, is_hidden ? kNever : piece.score});
  }
  return Json{{"type", "Unigram"},
              {"unk_id", model_.unknown},
              {"byte_fallback", model_.byte_fallback},
              {"vocab", std::move(vocab)}};
}

Json SentencePieceJson::normalizers() const {
  Json steps = Json::array();
  if (!model_.precompiled_charsmap.empty()) {
    steps.push_back({{"type", "Precompiled"},
                     {"precompiled_charsmap", encode_base64(model_.precompiled_charsmap)},
                     {"by_grapheme", false}});
  }
  if (model_.removes_extra_whitespaces) {
    // A symbol at the end counts as a space, one at the beginning does not.
    steps.push_back(replace({{"Regex", R"(\A +|[ \x{2581}]+\z)"}}, ""));
    steps.push_back(replace({{"Regex", " {2,}"}}, " "));
  }
  if (has_prefix_ && is_legacy_) {
    steps.push_back({{"type", "Prepend"}, {"prepend", kSpaceSymbol}});
  }
  steps.push_back(replace({{"String", " "}}, kSpaceSymbol));
  return steps;
}

Json SentencePieceJson::pretokenizers() const {
  Json stages = Json::array();
  if (has_prefix_ && !is_legacy_) {
    stages.push_back({{"type", "Metaspace"},
                      {"replacement", kSpaceSymbol},
                      {"prepend_scheme", "first"},
                      {"split", false}});
  }
  std::string expression;
  for (const std::string_view text : whole_pieces()) {
    expression += (expression.empty() ? "" : "|") + escaped(text);
  }
  if (!expression.empty()) {
    stages.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", std::move(expression)}}},
                      {"behavior", "Isolated"}});
  }
  return stages;
}

Json SentencePieceJson::decoders() const {
  Json steps = Json::array({replace({{"String", kSpaceSymbol}}, " ")});
  if (model_.byte_fallback) steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (has_prefix_) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return steps;
}

// What encloses a text, and each of a pair.
Expected<Json> SentencePieceJson::post_processor() const {
  SLUICE_TRY(const bool adds_bos,
             json_bool_or(options_.config, "add_bos_token", kConfig, kind_.adds_bos));
  SLUICE_TRY(const bool adds_eos, json_bool_or(options_.config, "add_eos_token", kConfig, false));
  Json special = Json::object();
  const auto enclose = [&](Json& list, bool is_added, std::string_view role, TokenId usual) {
    const TokenId id = role_token(role, usual);
    if (!is_added || id == kInvalidToken) return;
    const std::string name(role);
    list.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
    special[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
  };
  const auto append = [&](Json& list, const char* text) {
    enclose(list, adds_bos, "bos_token", model_.bos);
    list.push_back({{"Sequence", {{"id", text}, {"type_id", 0}}}});
    enclose(list, adds_eos, "eos_token", model_.eos);
  };
  Json single = Json::array();
  append(single, "A");
  Json pair = single;
  append(pair, "B");
  return Json{{"type", "TemplateProcessing"},
              {"single", std::move(single)},
              {"pair", std::move(pair)},
              {"special_tokens", std::move(special)}};
}

}  // namespace

const SentencePieceKind* find_sentencepiece_kind(std::string_view name,
                                                 std::string_view model_type) {
  const auto* const found = std::ranges::find_if(kKinds, [&](const SentencePieceKind& kind) {
    return name.empty() ? !model_type.empty() && kind.model_type == model_type : kind.name == name;
  });
  return found == std::end(kKinds) ? nullptr : found;
}

Expected<Json> sentencepiece_as_json(std::string_view bytes,
                                     const SentencePieceKind& kind,
                                     const SentencePieceOptions& options) {
  SLUICE_TRY(SentencePieceModel model, read_sentencepiece_model(bytes));
  return SentencePieceJson(std::move(model), kind, options).write();
}

}  // namespace sluice
