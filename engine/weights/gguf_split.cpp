// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/gguf_split.h"

#include <charconv>
#include <cstdio>
#include <unordered_set>

#include "engine/weights/gguf_parse.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxParts = 1024;
constexpr size_t kDigits = 5;

tl::unexpected<Error> wrong(const GgufFile& file,
                            std::string_view field,
                            const std::string& found,
                            const std::string& expected) {
  return make_error(
      ErrorCode::kDataLoss,
      file.path() + ": " + std::string(field) + ": found " + found + ", expected " + expected);
}

std::string five_digits(uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof text, "%05llu", static_cast<unsigned long long>(number));
  return text;
}

// Takes five digits off the end of `text`.
std::optional<uint64_t> take_five_digits(std::string_view& text) {
  if (text.size() < kDigits) return std::nullopt;
  const std::string_view digits = text.substr(text.size() - kDigits);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + kDigits, value);
  if (error != std::errc() || end != digits.data() + kDigits) return std::nullopt;
  text.remove_suffix(kDigits);
  return value;
}

bool take_end(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

}  // namespace

std::string GgufPartName::path_of(uint64_t other) const {
  return prefix + "-" + five_digits(other) + "-of-" + five_digits(count) + ".gguf";
}

std::optional<GgufPartName> parse_gguf_part_name(std::string_view path) {
  std::string_view rest = path;
  if (!take_end(rest, ".gguf")) return std::nullopt;
  const auto count = take_five_digits(rest);
  if (!count || !take_end(rest, "-of-")) return std::nullopt;
  const auto part = take_five_digits(rest);
  if (!part || !take_end(rest, "-") || *part == 0 || *part > *count) return std::nullopt;
  return GgufPartName{.prefix = std::string(rest), .part = *part, .count = *count};
}

Expected<std::vector<std::unique_ptr<GgufFile>>> open_gguf_parts(const std::string& path) {
  std::vector<std::unique_ptr<GgufFile>> parts;
  SLUICE_TRY(auto file, GgufFile::open(path));
  SLUICE_TRY(const uint64_t count, file->get_uint_or("split.count", 1));
  if (count <= 1) {
    parts.push_back(std::move(file));
    return parts;
  }
  const auto name = parse_gguf_part_name(path);
  if (count > kMaxParts || !name || name->count != count) {
    const size_t slash = path.rfind('/');
    return wrong(
        *file,
        "metadata \"split.count\"",
        std::to_string(count) + " in a file named " +
            in_quotes(std::string_view(path).substr(slash == std::string::npos ? 0 : slash + 1)),
        count > kMaxParts ? "at most " + std::to_string(kMaxParts)
                          : "a name that ends with -00001-of-" + five_digits(count) + ".gguf");
  }
  for (uint64_t part = 1; part <= count; ++part) {
    if (part == name->part) {
      parts.push_back(std::move(file));
      continue;
    }
    SLUICE_TRY(auto other, GgufFile::open(name->path_of(part)));
    parts.push_back(std::move(other));
  }
  SLUICE_TRY_VOID(check_gguf_parts(parts));
  return parts;
}

Expected<void> check_gguf_parts(std::span<const std::unique_ptr<GgufFile>> parts) {
  uint64_t num_tensors = 0;
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < parts.size(); ++i) {
    const GgufFile& file = *parts[i];
    SLUICE_TRY(const uint64_t number, file.get_uint("split.no"));
    if (number != i) {
      return wrong(file, "metadata \"split.no\"", std::to_string(number), std::to_string(i));
    }
    SLUICE_TRY(const uint64_t count, file.get_uint("split.count"));
    if (count != parts.size()) {
      return wrong(
          file, "metadata \"split.count\"", std::to_string(count), std::to_string(parts.size()));
    }
    num_tensors += file.tensors().size();
    for (const GgufTensor& tensor : file.tensors()) {
      if (!names.insert(tensor.name).second) {
        return wrong(file,
                     "tensor " + in_quotes(tensor.name) + " name",
                     "a duplicate of another part's",
                     "a name used once");
      }
    }
  }
  for (const auto& file : parts) {
    SLUICE_TRY(const uint64_t count, file->get_uint("split.tensors.count"));
    if (count != num_tensors) {
      return wrong(*file,
                   "metadata \"split.tensors.count\"",
                   std::to_string(count),
                   "the " + std::to_string(num_tensors) + " that the parts hold");
    }
  }
  return {};
}

}  // namespace sluice
