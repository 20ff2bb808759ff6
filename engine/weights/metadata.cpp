// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/metadata.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "engine/core/log.h"

namespace sluice {
namespace {

std::string text_of(const MetadataValue& value) {
  if (const auto* number = std::get_if<uint64_t>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<double>(&value)) {
    char text[40];
    std::snprintf(text, sizeof text, "%.9g", *number);
    return text;
  }
  if (const auto* text = std::get_if<std::string>(&value)) return "\"" + text->substr(0, 60) + "\"";
  const auto& numbers = std::get<std::vector<double>>(value);
  const bool are_equal =
      std::ranges::adjacent_find(numbers, std::not_equal_to<>()) == numbers.end();
  return "an array of " + std::to_string(numbers.size()) + (are_equal ? "" : " different numbers");
}

}  // namespace

void Metadata::set(std::string_view key, std::string place, MetadataValue value) {
  entries_.insert_or_assign(std::string(key), Entry{std::move(place), std::move(value)});
}

void Metadata::erase_all(std::string_view start) {
  std::erase_if(entries_, [start](const auto& entry) { return entry.first.starts_with(start); });
}

void Metadata::shorten_lists(uint64_t from, uint64_t to) {
  for (auto& [key, entry] : entries_) {
    auto* const list = std::get_if<std::vector<double>>(&entry.value);
    if (list != nullptr && list->size() == from) list->resize(static_cast<size_t>(to));
  }
}

const Metadata::Entry* Metadata::find(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

tl::unexpected<Error> Metadata::wrong(std::string_view key,
                                      const std::string& found,
                                      const std::string& expected) const {
  const Entry* entry = find(key);
  return make_error(ErrorCode::kDataLoss,
                    file_ + ": " + (entry != nullptr ? entry->place : std::string(key)) +
                        ": found " + found + ", expected " + expected);
}

tl::unexpected<Error> Metadata::wrong_type(std::string_view key,
                                           const std::string& expected) const {
  const Entry* entry = find(key);
  return wrong(key, entry != nullptr ? text_of(entry->value) : "nothing", expected);
}

std::optional<double> Metadata::number_of_all_layers(const Entry& entry) const {
  const auto* numbers = std::get_if<std::vector<double>>(&entry.value);
  const Entry* layers = find("block_count");
  const auto* count = layers == nullptr ? nullptr : std::get_if<uint64_t>(&layers->value);
  if (numbers == nullptr || count == nullptr || numbers->empty() || numbers->size() != *count) {
    return std::nullopt;
  }
  const double first = numbers->front();
  const bool are_equal = std::ranges::all_of(*numbers, [&](double n) { return n == first; });
  return are_equal ? std::optional(first) : std::nullopt;
}

Expected<uint64_t> Metadata::get_uint(std::string_view key) const {
  if (const Entry* entry = find(key); entry != nullptr) {
    if (const auto* value = std::get_if<uint64_t>(&entry->value)) return *value;
    constexpr double kExact = 9007199254740992;  // 2^53
    const std::optional<double> all = number_of_all_layers(*entry);
    if (all && *all >= 0 && *all <= kExact && *all == std::floor(*all)) {
      return static_cast<uint64_t>(*all);
    }
  }
  return wrong_type(key, "a whole number");
}

Expected<double> Metadata::get_float(std::string_view key) const {
  if (const Entry* entry = find(key); entry != nullptr) {
    if (const auto* value = std::get_if<double>(&entry->value)) return *value;
    if (const auto* value = std::get_if<uint64_t>(&entry->value)) {
      return static_cast<double>(*value);
    }
    if (const auto* value = std::get_if<int64_t>(&entry->value)) return static_cast<double>(*value);
    if (const std::optional<double> all = number_of_all_layers(*entry)) return *all;
  }
  return wrong_type(key, "a number");
}

Expected<std::string> Metadata::get_string(std::string_view key) const {
  if (const Entry* entry = find(key); entry != nullptr) {
    if (const auto* value = std::get_if<std::string>(&entry->value)) return *value;
  }
  return wrong_type(key, "a string");
}

Expected<std::vector<double>> Metadata::get_numbers(std::string_view key) const {
  if (const Entry* entry = find(key); entry != nullptr) {
    if (const auto* value = std::get_if<std::vector<double>>(&entry->value)) return *value;
  }
  return wrong_type(key, "an array of numbers");
}

Expected<uint64_t> Metadata::get_uint_or(std::string_view key, uint64_t fallback) const {
  if (!has(key)) return fallback;
  return get_uint(key);
}

Expected<double> Metadata::get_float_or(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  return get_float(key);
}

Expected<bool> Metadata::get_bool_or(std::string_view key, bool fallback) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return fallback;
  if (const auto* value = std::get_if<bool>(&entry->value)) return *value;
  return wrong_type(key, "true or false");
}

Expected<int32_t> Metadata::get_count(std::string_view key, uint64_t max) const {
  SLUICE_TRY(const uint64_t value, get_uint(key));
  if (value == 0 || value > max) {
    return wrong(key, std::to_string(value), "1 to " + std::to_string(max));
  }
  return static_cast<int32_t>(value);
}

Expected<int32_t> Metadata::get_count_or(std::string_view key,
                                         uint64_t max,
                                         int32_t fallback) const {
  if (!has(key)) return fallback;
  return get_count(key, max);
}

Expected<double> Metadata::get_positive_or(std::string_view key,
                                           double fallback,
                                           double zero_counts_as) const {
  if (!has(key)) return fallback;
  const Expected<double> value = get_float(key);
  if (!value || *value != 0) return get_positive_or(key, fallback);
  warn_of_file(file_, find(key)->place, "0", text_of(zero_counts_as));
  return zero_counts_as;
}

Expected<double> Metadata::get_positive_or(std::string_view key, double fallback) const {
  SLUICE_TRY(const double value, get_float_or(key, fallback));
  if (!(value > 0) || !std::isfinite(value)) return wrong_type(key, "a positive number");
  return value;
}

}  // namespace sluice
