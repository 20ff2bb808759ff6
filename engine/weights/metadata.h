// SPDX-License-Identifier: Apache-2.0
// A checkpoint's description of its model, under GGUF's key names without the architecture prefix
// ("block_count"), whatever the checkpoint's own spelling; messages use the latter.
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

  // Forgets every key that begins so.
  void erase_all(std::string_view start);

  [[nodiscard]] bool has(std::string_view key) const { return entries_.contains(key); }

  // Cuts every list of `from` numbers to its first `to`, which are fewer.
  void shorten_lists(uint64_t from, uint64_t to);

  // kDataLoss: absent or of another type. Integers are accepted as floats. An array with equal
  // numbers for each of "block_count" layers is accepted as that number.
  [[nodiscard]] Expected<uint64_t> get_uint(std::string_view key) const;
  [[nodiscard]] Expected<double> get_float(std::string_view key) const;
  [[nodiscard]] Expected<std::string> get_string(std::string_view key) const;
  [[nodiscard]] Expected<std::vector<double>> get_numbers(std::string_view key) const;
  // These return the fallback where the key is absent.
  [[nodiscard]] Expected<uint64_t> get_uint_or(std::string_view key, uint64_t fallback) const;
  [[nodiscard]] Expected<double> get_float_or(std::string_view key, double fallback) const;
  [[nodiscard]] Expected<bool> get_bool_or(std::string_view key, bool fallback) const;
  // Returns a value in [1, max].
  [[nodiscard]] Expected<int32_t> get_count(std::string_view key, uint64_t max) const;
  [[nodiscard]] Expected<int32_t> get_count_or(std::string_view key,
                                               uint64_t max,
                                               int32_t fallback) const;
  // Returns a finite value above zero; a zero is read as `zero_counts_as`, with a warning.
  [[nodiscard]] Expected<double> get_positive_or(std::string_view key,
                                                 double fallback,
                                                 double zero_counts_as) const;
  // Returns a finite value above zero.
  [[nodiscard]] Expected<double> get_positive_or(std::string_view key, double fallback) const;

  // Makes the error "FILE: PLACE: found FOUND, expected EXPECTED" (kDataLoss).
  [[nodiscard]] tl::unexpected<Error> wrong(std::string_view key,
                                            const std::string& found,
                                            const std::string& expected) const;

 private:
  struct Entry {
    std::string place;
    MetadataValue value;
  };

  [[nodiscard]] const Entry* find(std::string_view key) const;
  // The equal number of all layers in an array; none: there is no such array.
  [[nodiscard]] std::optional<double> number_of_all_layers(const Entry& entry) const;
  [[nodiscard]] tl::unexpected<Error> wrong_type(std::string_view key,
                                                 const std::string& expected) const;

  std::string file_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace sluice
