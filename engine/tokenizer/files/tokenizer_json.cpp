// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/tokenizer/files/gguf_tokenizer.h"
#include "engine/tokenizer/files/pretokenizer_names.h"
#include "engine/tokenizer/models/bpe_tables.h"
#include "engine/tokenizer/pipeline/token_pipeline.h"
#include "engine/tokenizer/text/base64.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSpaceSymbol = "\xE2\x96\x81";

std::string json_text(std::string_view text) { return Json(text).dump(); }

bool is_utf8(std::string_view text) { return find_invalid_utf8(text, 0) == text.size(); }

// Writes vocabularies, with hundreds of thousands of entries, as text, and the rest as a tree.
class Writer {
 public:
  explicit Writer(const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), kind_(tokenizer_kind(vocabulary)) {
    std::unordered_set<std::string_view> seen;
    for (const std::string& name : vocabulary.tokens) {
      is_named_.push_back(!name.empty() && is_utf8(name) && seen.insert(name).second);
    }
  }

  [[nodiscard]] TokenType type_of(size_t id) const {
    return vocabulary_.token_types.empty() ? TokenType::kNormal : vocabulary_.token_types[id];
  }

  [[nodiscard]] bool is_control(size_t id) const {
    return type_of(id) == TokenType::kControl || type_of(id) == TokenType::kUnknown;
  }

  // Returns null where the token does not exist or has no name.
  [[nodiscard]] Json name_of(TokenId id) const {
    const bool has_name = id >= 0 && static_cast<size_t>(id) < is_named_.size() && is_named_[id];
    return has_name ? Json(vocabulary_.tokens[static_cast<size_t>(id)]) : Json();
  }

  [[nodiscard]] std::string vocab() const {
    std::string text = "{";
    for (size_t id = 0; id < is_named_.size(); ++id) {
      if (!is_named_[id]) continue;
      if (text.size() > 1) text += ',';
      text += json_text(vocabulary_.tokens[id]) + ":" + std::to_string(id);
    }
    return text + "}";
  }

  [[nodiscard]] std::string scored_vocab() const {
    // The score of names that must not arise from text: control tokens and bytes. Any other
    // spelling costs less.
    constexpr float kNever = -1e6F;
    std::string text = "[";
    for (size_t id = 0; id < is_named_.size(); ++id) {
      if (id > 0) text += ',';
      const bool forms = is_named_[id] && type_of(id) == TokenType::kNormal;
      // Ids are list positions: a token without a name gets one that no text contains.
      const std::string name =
          is_named_[id] ? vocabulary_.tokens[id] : "\x01unnamed " + std::to_string(id);
      const float score = forms ? vocabulary_.scores[id] : kNever;
      text += "[" + json_text(name) + "," + Json(score).dump() + "]";
    }
    return text + "]";
  }

  // Merges by rank as in the file, without those that can never apply.
  [[nodiscard]] std::string merges() const {
    const TokenTable tokens = index_names(
        vocabulary_.tokens, [&](TokenId id) { return is_named_[static_cast<size_t>(id)]; });
    std::string joined;
    std::string text = "[";
    for (const std::string& merge : vocabulary_.merges) {
      const auto parts = split_merge(merge);
      if (!parts) continue;
      joined.assign(parts->first).append(parts->second);
      const bool applies = tokens.find(parts->first) != kInvalidToken &&
                           tokens.find(parts->second) != kInvalidToken &&
                           tokens.find(joined) != kInvalidToken;
      if (applies) append_merge(text, parts->first, parts->second);
    }
    return text + "]";
  }

  // All ways to make a token of two, best score first.
  [[nodiscard]] std::string scored_merges() const {
    const auto forms = [&](TokenId id) {
      return is_named_[id] && type_of(static_cast<size_t>(id)) == TokenType::kNormal;
    };
    const TokenTable tokens = index_names(vocabulary_.tokens, forms);
    std::vector<TokenId> order;
    for (size_t id = 0; id < is_named_.size(); ++id) {
      if (forms(static_cast<TokenId>(id))) order.push_back(static_cast<TokenId>(id));
    }
    std::ranges::stable_sort(
        order, [&](TokenId a, TokenId b) { return vocabulary_.scores[a] > vocabulary_.scores[b]; });
    std::string text = "[";
    for (const TokenId id : order) {
      const std::string_view name = vocabulary_.tokens[id];
      for (size_t cut = next_utf8_part(name, 0).length; cut < name.size();
           cut += next_utf8_part(name, cut).length) {
        const std::string_view left = name.substr(0, cut);
        const std::string_view right = name.substr(cut);
        const bool both = tokens.find(left) != kInvalidToken && tokens.find(right) != kInvalidToken;
        if (both) append_merge(text, left, right);
      }
    }
    return text + "]";
  }

  [[nodiscard]] Json added_tokens(bool spaces_are_symbols) const {
    Json list = Json::array();
    for (size_t id = 0; id < is_named_.size(); ++id) {
      const bool is_user_defined = type_of(id) == TokenType::kUserDefined;
      if (!is_named_[id] || (!is_control(id) && !is_user_defined)) continue;
      const std::string& name = vocabulary_.tokens[id];
      const bool is_normalized =
          spaces_are_symbols && is_user_defined && name.find(kSpaceSymbol) != std::string::npos;
      list.push_back(Json::object({{"id", id},
                                   {"content", name},
                                   {"single_word", false},
                                   {"lstrip", takes_space_before(id)},
                                   {"rstrip", takes_space_behind(id)},
                                   {"normalized", is_normalized},
                                   {"special", is_control(id)}}));
    }
    return list;
  }

  // The tokens around a text; null: none.
  [[nodiscard]] Json post_processor() const {
    Json around = Json::array();
    Json special = Json::object();
    const auto add = [&](bool wanted, TokenId id) {
      const Json name = name_of(id);
      if (!wanted || name.is_null()) return;
      around.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
      special[name.get<std::string>()] = {
          {"id", name}, {"ids", Json::array({id})}, {"tokens", Json::array({name})}};
    };
    add(vocabulary_.add_bos, vocabulary_.bos);
    around.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    add(vocabulary_.add_eos, vocabulary_.eos);
    if (special.empty()) return {};
    Json pair = around;
    pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 0}}}});
    return Json::object({{"type", "TemplateProcessing"},
                         {"single", around},
                         {"pair", pair},
                         {"special_tokens", special}});
  }

 private:
  static void append_merge(std::string& text, std::string_view left, std::string_view right) {
    if (text.size() > 1) text += ',';
    text += "[" + json_text(left) + "," + json_text(right) + "]";
  }

  // Follows create_unigram_tokenizer().
  [[nodiscard]] bool takes_space_before(size_t id) const {
    return kind_ == TokenizerKind::kUnigram && vocabulary_.tokens[id] == "<mask>";
  }

  // Follows create_sentencepiece_tokenizer().
  [[nodiscard]] bool takes_space_behind(size_t id) const {
    const std::string& name = vocabulary_.tokens[id];
    return kind_ == TokenizerKind::kScoredBpe && vocabulary_.pre == "phi-3" && is_control(id) &&
           name != "<unk>" && name != "<s>" && name != "<|endoftext|>";
  }

  const Vocabulary& vocabulary_;
  std::optional<TokenizerKind> kind_;
  std::vector<bool> is_named_;
};

Json sequence(const char* key, Json steps) {
  return Json::object({{"type", "Sequence"}, {key, std::move(steps)}});
}

Json replace(Json pattern, const char* content) {
  return Json::object({{"type", "Replace"}, {"pattern", std::move(pattern)}, {"content", content}});
}

// `model` is text; the rest is a tree. Null keys are left to the reader's defaults.
std::string file_text(const Writer& writer,
                      bool spaces_are_symbols,
                      const Json& normalizer,
                      const Json& pre_tokenizer,
                      const Json& decoder,
                      const std::string& model) {
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":)" +
         writer.added_tokens(spaces_are_symbols).dump() + R"(,"normalizer":)" + normalizer.dump() +
         R"(,"pre_tokenizer":)" + pre_tokenizer.dump() + R"(,"post_processor":)" +
         writer.post_processor().dump() + R"(,"decoder":)" + decoder.dump() + R"(,"model":)" +
         model + "}";
}

std::string bpe_model(const Writer& writer,
                      const std::string& merges,
                      Json unknown,
                      bool fuses_unknown,
                      bool has_bytes,
                      bool whole_words_first) {
  Json head = Json::object({{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", std::move(unknown)},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", fuses_unknown},
                            {"byte_fallback", has_bytes},
                            {"ignore_merges", whole_words_first}});
  std::string text = head.dump();
  text.pop_back();
  return text + R"(,"vocab":)" + writer.vocab() + R"(,"merges":)" + merges + "}";
}

Expected<std::string> byte_bpe_json(const Vocabulary& vocabulary) {
  SLUICE_TRY(const auto named, pretokenizer_by_name(vocabulary.pre));
  const Writer writer(vocabulary);
  Json stages = split_stages<Json>(named);
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", false}};
  stages.push_back(bytes);
  return file_text(writer,
                   /*spaces_are_symbols=*/false,
                   named.nfc ? Json::object({{"type", "NFC"}}) : Json(),
                   sequence("pretokenizers", std::move(stages)),
                   bytes,
                   bpe_model(writer, writer.merges(), {}, false, false, named.whole_words_first));
}

// Steps: a space in front, and every space as its symbol.
Json space_steps(const Vocabulary& vocabulary) {
  Json steps = Json::array();
  if (vocabulary.add_space_prefix) {
    steps.push_back({{"type", "Prepend"}, {"prepend", kSpaceSymbol}});
  }
  steps.push_back(replace({{"String", " "}}, kSpaceSymbol));
  return steps;
}

Json space_decoder(const Vocabulary& vocabulary) {
  Json steps = Json::array({replace({{"String", kSpaceSymbol}}, " "),
                            Json::object({{"type", "ByteFallback"}}),
                            Json::object({{"type", "Fuse"}})});
  if (vocabulary.add_space_prefix) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return sequence("decoders", std::move(steps));
}

bool has_byte_tokens(const Vocabulary& vocabulary) {
  return std::ranges::any_of(vocabulary.tokens,
                             [](const std::string& name) { return byte_of_name(name) >= 0; });
}

std::string character_bpe_json(const Vocabulary& vocabulary) {
  const Writer writer(vocabulary);
  const bool is_scored = tokenizer_kind(vocabulary) == TokenizerKind::kScoredBpe;
  return file_text(writer,
                   /*spaces_are_symbols=*/is_scored,
                   sequence("normalizers", space_steps(vocabulary)),
                   {},
                   space_decoder(vocabulary),
                   bpe_model(writer,
                             is_scored ? writer.scored_merges() : writer.merges(),
                             writer.name_of(vocabulary.unknown),
                             !is_scored,
                             has_byte_tokens(vocabulary),
                             false));
}

std::string unigram_json(const Vocabulary& vocabulary) {
  const Writer writer(vocabulary);
  Json steps = Json::array();
  if (!vocabulary.precompiled_charsmap.empty()) {
    steps.push_back({{"type", "Precompiled"},
                     {"precompiled_charsmap", encode_base64(vocabulary.precompiled_charsmap)}});
  }
  if (vocabulary.remove_extra_whitespaces) {
    steps.push_back({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
    steps.push_back(replace({{"Regex", std::string(kUnigramSpaces)}}, " "));
  }
  for (Json& step : space_steps(vocabulary)) steps.push_back(std::move(step));
  const Json unknown = vocabulary.unknown < 0 ? Json() : Json(vocabulary.unknown);
  const std::string model = R"({"type":"Unigram","unk_id":)" + unknown.dump() +
                            R"(,"byte_fallback":)" +
                            (has_byte_tokens(vocabulary) ? "true" : "false") + R"(,"vocab":)" +
                            writer.scored_vocab() + "}";
  return file_text(writer,
                   /*spaces_are_symbols=*/true,
                   sequence("normalizers", std::move(steps)),
                   {},
                   space_decoder(vocabulary),
                   model);
}

}  // namespace

Expected<std::string> tokenizer_json(const Vocabulary& vocabulary) {
  // The tokenizer's own reader reports any error.
  SLUICE_TRY(const auto checked, create_tokenizer(vocabulary));
  const std::optional<TokenizerKind> kind = tokenizer_kind(vocabulary);
  if (kind == TokenizerKind::kWordPiece) {
    return make_error(ErrorCode::kUnsupported,
                      vocabulary.file + ": a WordPiece vocabulary is not written as tokenizer.json");
  }
  if (kind == TokenizerKind::kUnigram) return unigram_json(vocabulary);
  if (kind == TokenizerKind::kByteBpe) return byte_bpe_json(vocabulary);
  return character_bpe_json(vocabulary);
}

std::string tokenizer_config_json(const Vocabulary& vocabulary, const std::string& chat_template) {
  const Writer writer(vocabulary);
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"add_bos_token", vocabulary.add_bos},
                 {"add_eos_token", vocabulary.add_eos},
                 {"clean_up_tokenization_spaces", false}};
  for (const auto& [key, id] : {std::pair("bos_token", vocabulary.bos),
                                std::pair("eos_token", vocabulary.eos),
                                std::pair("unk_token", vocabulary.unknown),
                                std::pair("pad_token", vocabulary.padding)}) {
    if (Json name = writer.name_of(id); !name.is_null()) config[key] = std::move(name);
  }
  if (!chat_template.empty()) config["chat_template"] = chat_template;
  return config.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace sluice
