// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/sentencepiece_model.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <utility>

#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

constexpr size_t kMaxPieces = size_t{1} << 22;
constexpr size_t kMaxPieceBytes = 256;  // each cut of a piece is looked up

tl::unexpected<Error> bad_model(const std::string& what) {
  return make_error(ErrorCode::kDataLoss, "tokenizer.model: " + what);
}

tl::unexpected<Error> unsupported(const std::string& what) {
  return make_error(ErrorCode::kUnsupported, "tokenizer.model: " + what);
}

// A field of a message: `number` is kVarint's or kFour's value, `bytes` kBytes'.
struct WireField {
  enum class Kind : uint8_t { kVarint = 0, kEight = 1, kBytes = 2, kFour = 5 };

  uint64_t id = 0;
  Kind kind = Kind::kVarint;
  uint64_t number = 0;
  std::string_view bytes;
};

// The fields of a message in the wire format of protocol buffers.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  // Returns the next field; none: the end, or something else than a field (is_bad()).
  std::optional<WireField> next() {
    if (rest_.empty() || is_bad_) return std::nullopt;
    WireField field;
    const uint64_t tag = varint();
    field.id = tag >> 3U;
    field.kind = static_cast<WireField::Kind>(tag & 7U);
    switch (field.kind) {
      case WireField::Kind::kVarint:
        field.number = varint();
        break;
      case WireField::Kind::kEight:
        take(8);
        break;
      case WireField::Kind::kBytes:
        field.bytes = take(varint());
        break;
      case WireField::Kind::kFour:
        field.number = little_endian(take(4));
        break;
      default:  // groups, which no field of the model is
        is_bad_ = true;
    }
    is_bad_ = is_bad_ || field.id == 0;
    return is_bad_ ? std::nullopt : std::optional(field);
  }

  [[nodiscard]] bool is_bad() const { return is_bad_; }

 private:
  uint64_t varint() {
    constexpr unsigned kMaxShift = 63;
    uint64_t value = 0;
    for (unsigned shift = 0; shift <= kMaxShift && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80) return value;
    }
    is_bad_ = true;
    return 0;
  }

  std::string_view take(uint64_t count) {
    if (is_bad_ || count > rest_.size()) {
      is_bad_ = true;
      return {};
    }
    const std::string_view taken = rest_.substr(0, static_cast<size_t>(count));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  static uint64_t little_endian(std::string_view bytes) {
    uint64_t value = 0;
    for (size_t i = bytes.size(); i-- > 0;) value = value << 8U | static_cast<uint8_t>(bytes[i]);
    return value;
  }

  std::string_view rest_;
  bool is_bad_ = false;
};

class ModelReader {
 public:
  Expected<SentencePieceModel> read(std::string_view bytes) {
    constexpr uint64_t kPieces = 1;
    constexpr uint64_t kTrainer = 2;
    constexpr uint64_t kNormalizer = 3;
    WireReader fields(bytes);
    while (const auto field = fields.next()) {
      if (field->kind != WireField::Kind::kBytes) continue;
      if (field->id == kPieces) SLUICE_TRY_VOID(add_piece(field->bytes));
      if (field->id == kTrainer) SLUICE_TRY_VOID(read_trainer(field->bytes));
      if (field->id == kNormalizer) SLUICE_TRY_VOID(read_normalizer(field->bytes));
    }
    if (fields.is_bad() || model_.pieces.empty()) {
      return bad_model("file: found something else, expected a SentencePiece model");
    }
    SLUICE_TRY_VOID(check());
    return std::move(model_);
  }

 private:
  Expected<void> add_piece(std::string_view bytes) {
    const std::string where = "piece " + std::to_string(model_.pieces.size());
    if (model_.pieces.size() == kMaxPieces) return bad_model(where + ": too many pieces");
    SentencePieceModel::Piece piece;
    uint64_t type = static_cast<uint64_t>(TokenType::kNormal);
    WireReader fields(bytes);
    while (const auto field = fields.next()) {
      if (field->id == 1) piece.text = field->bytes;
      if (field->id == 2) piece.score = std::bit_cast<float>(static_cast<uint32_t>(field->number));
      if (field->id == 3) type = field->number;
    }
    if (fields.is_bad()) return bad_model(where + ": found something else, expected a piece");
    if (type < 1 || type > static_cast<uint64_t>(TokenType::kByte)) {
      return bad_model(where + ": type: found " + std::to_string(type) + ", expected 1 to 6");
    }
    piece.type = static_cast<TokenType>(type);
    if (piece.text.empty() || find_invalid_utf8(piece.text, 0) != piece.text.size()) {
      return bad_model(where + ": text: found none or no UTF-8, expected UTF-8");
    }
    if (piece.type == TokenType::kNormal && piece.text.size() > kMaxPieceBytes) {
      return bad_model(where + ": text: found " + std::to_string(piece.text.size()) +
                       " bytes, expected at most " + std::to_string(kMaxPieceBytes));
    }
    if (!std::isfinite(piece.score)) return bad_model(where + ": score: found no finite number");
    if (piece.type == TokenType::kUnknown) {
      if (model_.unknown != kInvalidToken) return bad_model(where + ": it is a second unknown one");
      model_.unknown = static_cast<TokenId>(model_.pieces.size());
    }
    model_.pieces.push_back(std::move(piece));
    return {};
  }

  Expected<void> read_trainer(std::string_view bytes) {
    constexpr uint64_t kModelType = 3;
    constexpr uint64_t kSpaceAsSuffix = 24;
    constexpr uint64_t kByteFallback = 35;
    constexpr uint64_t kBos = 41;
    constexpr uint64_t kEos = 42;
    WireReader fields(bytes);
    while (const auto field = fields.next()) {
      if (field->id == kModelType) {
        constexpr uint64_t kUnigram = 1;
        constexpr uint64_t kBpe = 2;
        if (field->number != kUnigram && field->number != kBpe) {
          return unsupported("model_type: found " + std::to_string(field->number) +
                             ", expected UNIGRAM (1) or BPE (2)");
        }
        model_.is_unigram = field->number == kUnigram;
      }
      if (field->id == kSpaceAsSuffix && field->number != 0) {
        return unsupported("treat_whitespace_as_suffix: found true, expected false");
      }
      if (field->id == kByteFallback) model_.byte_fallback = field->number != 0;
      if (field->id == kBos) bos_ = static_cast<int32_t>(field->number);
      if (field->id == kEos) eos_ = static_cast<int32_t>(field->number);
    }
    return is_sound(fields, "trainer_spec");
  }

  Expected<void> read_normalizer(std::string_view bytes) {
    constexpr uint64_t kCharsmap = 2;
    constexpr uint64_t kDummyPrefix = 3;
    constexpr uint64_t kExtraSpaces = 4;
    constexpr uint64_t kEscapedSpaces = 5;
    WireReader fields(bytes);
    while (const auto field = fields.next()) {
      if (field->id == kCharsmap) model_.precompiled_charsmap = field->bytes;
      if (field->id == kDummyPrefix) model_.has_dummy_prefix = field->number != 0;
      if (field->id == kExtraSpaces) model_.removes_extra_whitespaces = field->number != 0;
      if (field->id == kEscapedSpaces && field->number == 0) {
        return unsupported("escape_whitespaces: found false, expected true");
      }
    }
    return is_sound(fields, "normalizer_spec");
  }

  static Expected<void> is_sound(const WireReader& fields, const std::string& name) {
    if (fields.is_bad()) return bad_model(name + ": found something else, expected this message");
    return {};
  }

  Expected<void> check() {
    if (model_.unknown == kInvalidToken) return bad_model("found no unknown piece, expected one");
    std::unordered_set<std::string_view> texts;
    for (const auto& piece : model_.pieces) {
      if (texts.insert(piece.text).second) continue;
      return bad_model("found two pieces \"" + piece.text + "\", expected one of a text");
    }
    const auto count = static_cast<int64_t>(model_.pieces.size());
    model_.bos = bos_ >= 0 && bos_ < count ? bos_ : kInvalidToken;
    model_.eos = eos_ >= 0 && eos_ < count ? eos_ : kInvalidToken;
    return {};
  }

  SentencePieceModel model_;
  int32_t bos_ = 1;  // the defaults of the file's fields
  int32_t eos_ = 2;
};

}  // namespace

Expected<SentencePieceModel> read_sentencepiece_model(std::string_view bytes) {
  return ModelReader().read(bytes);
}

}  // namespace sluice
