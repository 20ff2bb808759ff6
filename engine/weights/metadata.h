// SPDX-License-Identifier: Apache-2.0
// What a checkpoint says about its model, under GGUF's key names without the architecture prefix
// ("block_count"), whatever the checkpoint's own spelling is; every message uses the latter.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

using MetadataValue =
    std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<double>>;

class Metadata {
 public:
  explicit Metadata(std::string file) : file_(std::move(file)) {}

  // `place`: the field as the file spells it, for messages.
  void set(std::string_view key, std::string place, MetadataValue value);

  [[nodiscard]] bool has(std::string_view key) const { return entries_.contains(key); }

  // kDataLoss: absent or of another type. Whole numbers pass as floats. An array with one number
  // for each of "block_count" layers, all equal, passes as that number.
  [[nodiscard]] Expected<uint64_t> get_uint(std::string_view key) const;
  [[nodiscard]] Expected<double> get_float(std::string_view key) const;
  [[nodiscard]] Expected<std::string> get_string(std::string_view key) const;
  [[nodiscard]] Expected<std::vector<double>> get_numbers(std::string_view key) const;
  // The fallback where the key is absent.
  [[nodiscard]] Expected<uint64_t> get_uint_or(std::string_view key, uint64_t fallback) const;
  [[nodiscard]] Expected<double> get_float_or(std::string_view key, double fallback) const;
  [[nodiscard]] Expected<bool> get_bool_or(std::string_view key, bool fallback) const;
  // From 1 to `max`.
  [[nodiscard]] Expected<int32_t> get_count(std::string_view key, uint64_t max) const;
  [[nodiscard]] Expected<int32_t> get_count_or(std::string_view key,
                                               uint64_t max,
                                               int32_t fallback) const;
  // Finite and above zero, but for a zero that `zero_counts_as` says, with a warning.
  [[nodiscard]] Expected<double> get_positive_or(std::string_view key,
                                                 double fallback,
                                                 double zero_counts_as) const;
  // Finite and above zero.
  [[nodiscard]] Expected<double> get_positive_or(std::string_view key, double fallback) const;

  // "FILE: PLACE: found FOUND, expected EXPECTED" (kDataLoss).
  [[nodiscard]] tl::unexpected<Error> wrong(std::string_view key,
                                            const std::string& found,
                                            const std::string& expected) const;

 private:
  struct Entry {
    std::string place;
    MetadataValue value;
  };

  [[nodiscard]] const Entry* find(std::string_view key) const;
  // The number that an array has for every layer; none: there is no such array.
  [[nodiscard]] std::optional<double> number_of_all_layers(const Entry& entry) const;
  [[nodiscard]] tl::unexpected<Error> wrong_type(std::string_view key,
                                                 const std::string& expected) const;

  std::string file_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace sluice
