// SPDX-License-Identifier: Apache-2.0
#include "server/load/completion_event.h"

#include <charconv>

namespace sluice::load {
namespace {

// The object whose members are being read.
enum class Place : uint8_t {
  kRoot,
  kChoices,  // the array
  kChoice,
  kMessage,  // "delta" of a stream, "message" of a whole answer
  kUsage,
  kPromptDetails,
  kError,
  kOther
};

constexpr int kMaxDepth = 64;

class Reader {
 public:
  Reader(std::string_view json, CompletionEvent& event) : json_(json), event_(event) {}

  bool read() {
    skip_space();
    if (at_ >= json_.size() || json_[at_] != '{') return false;
    if (!read_object(Place::kRoot, 1)) return false;
    skip_space();
    return at_ == json_.size();
  }

 private:
  void skip_space() {
    while (at_ < json_.size()) {
      const char c = json_[at_];
      if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
      ++at_;
    }
  }

  bool take(char c) {
    skip_space();
    if (at_ >= json_.size() || json_[at_] != c) return false;
    ++at_;
    return true;
  }

  static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  }

  bool read_escape() {
    if (++at_ >= json_.size()) return false;
    const char c = json_[at_];
    if (c != 'u') return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
    for (int i = 0; i < 4; ++i) {
      if (++at_ >= json_.size() || !is_hex(json_[at_])) return false;
    }
    return true;
  }

  // Reads from the opening quote; `out` gets the text between the quotes.
  bool read_string(std::string_view& out) {
    const size_t begin = ++at_;
    for (; at_ < json_.size(); ++at_) {
      const char c = json_[at_];
      if (c == '"') {
        out = json_.substr(begin, at_ - begin);
        ++at_;
        return true;
      }
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c == '\\' && !read_escape()) return false;
    }
    return false;
  }

  size_t skip_digits() {
    const size_t begin = at_;
    while (at_ < json_.size() && json_[at_] >= '0' && json_[at_] <= '9') ++at_;
    return at_ - begin;
  }

  bool read_number() {
    if (json_[at_] == '-') ++at_;
    const bool zero = at_ < json_.size() && json_[at_] == '0';
    const size_t digits = skip_digits();
    if (digits == 0 || (zero && digits > 1)) return false;
    if (at_ < json_.size() && json_[at_] == '.') {
      ++at_;
      if (skip_digits() == 0) return false;
    }
    if (at_ < json_.size() && (json_[at_] == 'e' || json_[at_] == 'E')) {
      ++at_;
      if (at_ < json_.size() && (json_[at_] == '+' || json_[at_] == '-')) ++at_;
      if (skip_digits() == 0) return false;
    }
    return true;
  }

  bool read_word(std::string_view word) {
    if (json_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool read_object(Place place, int depth) {
    if (depth > kMaxDepth) return false;
    ++at_;  // the brace
    if (take('}')) return true;
    while (true) {
      skip_space();
      std::string_view name;
      if (at_ >= json_.size() || json_[at_] != '"' || !read_string(name)) return false;
      if (!take(':') || !read_member(place, name, depth)) return false;
      if (take('}')) return true;
      if (!take(',')) return false;
    }
  }

  bool read_array(Place element, int depth, size_t& count) {
    if (depth > kMaxDepth) return false;
    ++at_;  // the bracket
    count = 0;
    if (take(']')) return true;
    while (true) {
      ++count;
      if (!read_value(element, depth)) return false;
      if (take(']')) return true;
      if (!take(',')) return false;
    }
  }

  // Reads a value whose members, if it has any, are at `place`.
  bool read_value(Place place, int depth) {
    skip_space();
    if (at_ >= json_.size()) return false;
    std::string_view text;
    size_t count = 0;
    switch (json_[at_]) {
      case '{':
        return read_object(place, depth + 1);
      case '[':
        return read_array(
            place == Place::kChoices ? Place::kChoice : Place::kOther, depth + 1, count);
      case '"':
        return read_string(text);
      case 't':
        return read_word("true");
      case 'f':
        return read_word("false");
      case 'n':
        return read_word("null");
      default:
        return read_number();
    }
  }

  static Place place_of(Place parent, std::string_view name) {
    if (parent == Place::kRoot) {
      if (name == "choices") return Place::kChoices;
      if (name == "usage") return Place::kUsage;
      if (name == "error") return Place::kError;
    } else if (parent == Place::kChoice && (name == "delta" || name == "message")) {
      return Place::kMessage;
    } else if (parent == Place::kUsage && name == "prompt_tokens_details") {
      return Place::kPromptDetails;
    }
    return Place::kOther;
  }

  bool read_member(Place place, std::string_view name, int depth) {
    skip_space();
    const size_t begin = at_;
    if (!read_value(place_of(place, name), depth)) return false;
    note(place, name, json_.substr(begin, at_ - begin));
    return true;
  }

  // Tells whether a JSON text is not null, not false and not empty.
  static bool is_filled(std::string_view value) {
    if (value.starts_with('{') || value.starts_with('[')) {
      return value.substr(1, value.size() - 2).find_first_not_of(" \n\t\r") !=
             std::string_view::npos;
    }
    return value != "null" && value != "false" && value != "\"\"";
  }

  static void note_count(std::string_view value, int64_t& count) {
    int64_t parsed = 0;
    const auto [end, error] = std::from_chars(value.begin(), value.end(), parsed);
    if (error == std::errc() && end == value.end() && parsed >= 0) count = parsed;
  }

  void note_text(std::string_view value) {
    if (!value.starts_with('"') || value.size() < 3) return;
    event_.text = value.substr(1, value.size() - 2);
    event_.has_text = true;
  }

  void note(Place place, std::string_view name, std::string_view value) {
    switch (place) {
      case Place::kRoot:
        if (name == "choices") {
          event_.has_choices = value.starts_with('[') && value.find('{') != std::string_view::npos;
        } else if (name == "data") {
          event_.has_vectors = value.starts_with('[') && value.find('{') != std::string_view::npos;
        } else if (name == "error" && is_filled(value)) {
          event_.has_error = true;
          if (event_.error.empty()) event_.error = value;
        }
        break;
      case Place::kChoice:
        if (name == "text") note_text(value);
        if (name == "finish_reason") event_.is_finished = event_.is_finished || is_filled(value);
        break;
      case Place::kMessage:
        if (name == "content") note_text(value);
        if (name == "reasoning_content" || name == "reasoning" || name == "tool_calls") {
          event_.has_text = event_.has_text || is_filled(value);
        }
        break;
      case Place::kUsage:
        if (name == "prompt_tokens") note_count(value, event_.prompt_tokens);
        if (name == "completion_tokens") note_count(value, event_.completion_tokens);
        break;
      case Place::kPromptDetails:
        if (name == "cached_tokens") note_count(value, event_.cached_tokens);
        break;
      case Place::kError:
        if (name == "message" && value.starts_with('"') && value.size() > 2) {
          event_.error = value.substr(1, value.size() - 2);
        }
        break;
      case Place::kChoices:
      case Place::kOther:
        break;
    }
  }

  std::string_view json_;
  CompletionEvent& event_;
  size_t at_ = 0;
};

}  // namespace

bool read_completion_event(std::string_view json, CompletionEvent& event) {
  event = {};
  return Reader(json, event).read();
}

}  // namespace sluice::load
