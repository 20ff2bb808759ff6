// SPDX-License-Identifier: Apache-2.0
#include "server/cli/word_wrap.h"

#include <cwchar>
#include <utility>

namespace sluice {
namespace {

constexpr std::string_view kFence = "```";

// Bytes of the character that begins so; of what begins none: 1.
size_t length_of(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte >= 0xF0) return 4;
  if (byte >= 0xE0) return 3;
  return byte >= 0xC0 ? 2 : 1;
}

size_t columns_of(std::string_view character) {
  std::mbstate_t state{};
  wchar_t wide = 0;
  const size_t length = std::mbrtowc(&wide, character.data(), character.size(), &state);
  if (length == 0 || length > character.size()) return 1;
  const int columns = ::wcwidth(wide);
  return columns < 0 ? 1 : static_cast<size_t>(columns);
}

}  // namespace

WordWrap::WordWrap(size_t width, std::function<void(std::string_view)> show)
    : width_(width), show_(std::move(show)) {}

void WordWrap::add(std::string_view piece) {
  if (width_ == 0) return show_(piece);
  part_ += piece;
  size_t at = 0;
  while (at < part_.size() && at + length_of(part_[at]) <= part_.size()) {
    const size_t length = length_of(part_[at]);
    take(std::string_view(part_).substr(at, length));
    at += length;
  }
  part_.erase(0, at);
}

void WordWrap::finish() {
  end_word();
  if (!spaces_.empty()) show_(spaces_);
  if (!part_.empty()) show_(part_);
  spaces_.clear();
  part_.clear();
}

void WordWrap::take(std::string_view character) {
  if (character == "\n") return end_line();
  if (line_start_.size() < kFence.size()) line_start_ += character;
  if (is_code_ || line_start_ == kFence) {
    end_word();
    show_(character);
    return;
  }
  if (character == " ") {
    end_word();
    spaces_ += character;
    return;
  }
  const size_t columns = columns_of(character);
  const bool is_ideograph = columns == 2;  // between two of them a line may end
  if (is_ideograph || word_columns_ + columns > width_) end_word();
  word_ += character;
  word_columns_ += columns;
  if (is_ideograph) end_word();
}

void WordWrap::end_word() {
  if (word_.empty()) return;
  if (column_ > 0 && column_ + spaces_.size() + word_columns_ > width_) {
    show_("\n");  // in place of the spaces
    column_ = 0;
    spaces_.clear();
  }
  show_(spaces_ + word_);
  column_ += spaces_.size() + word_columns_;
  spaces_.clear();
  word_.clear();
  word_columns_ = 0;
}

void WordWrap::end_line() {
  end_word();
  show_(spaces_ + "\n");
  spaces_.clear();
  column_ = 0;
  if (line_start_ == kFence) is_code_ = !is_code_;
  line_start_.clear();
}

}  // namespace sluice
