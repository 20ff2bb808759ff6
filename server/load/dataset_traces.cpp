// SPDX-License-Identifier: Apache-2.0
// Traces: times and lengths of requests, without their text. Formats: Mooncake (JSON lines;
// milliseconds; a hash means a block of 512 tokens, equal at each occurrence), Azure LLM
// inference (CSV; date and time) and BurstGPT (CSV; seconds). Prompts have the traced lengths.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "server/load/dataset_impl.h"

namespace sluice::load {
namespace {

constexpr int32_t kBlockTokens = 512;  // tokens of a Mooncake hash
constexpr int64_t kMaxTokens = 1 << 24;

struct TraceRow {
  double at = 0;  // seconds, from any zero
  int32_t input_len = 0;
  int32_t output_len = 0;
  std::vector<uint64_t> hashes;
  size_t line = 0;  // number in the file
};

class TraceDataset final : public Dataset {
 public:
  TraceDataset(std::vector<TraceRow> rows, const DatasetOptions& options)
      : rows_(std::move(rows)), options_(options), maker_(options.vocabulary) {
    std::sort(rows_.begin(), rows_.end(), [](const TraceRow& a, const TraceRow& b) {
      return std::tie(a.at, a.line) < std::tie(b.at, b.line);
    });
    if (rows_.size() > options.num_prompts) rows_.resize(options.num_prompts);
  }

  [[nodiscard]] size_t size() const override { return rows_.size(); }

  [[nodiscard]] Sample sample(size_t index) const override {
    const TraceRow& row = rows_[index];
    Turn turn;
    turn.output_len = row.output_len;
    int32_t missing = row.input_len;
    for (const uint64_t hash : row.hashes) {
      if (missing == 0) break;
      // The last block of a prompt may be cut; its tokens are still the block's beginning.
      const int32_t count = std::min(missing, kBlockTokens);
      Random block(options_.seed ^ 0x626c6f636bULL, hash);
      maker_.append(block, count, turn);
      missing -= count;
    }
    Random random(options_.seed, index + 1);
    maker_.append(random, missing, turn);
    return {{std::move(turn)}};
  }

  [[nodiscard]] std::vector<double> arrivals() const override {
    std::vector<double> times;
    for (const TraceRow& row : rows_) {
      times.push_back((row.at - rows_.front().at) / options_.trace_speedup);
    }
    return times;
  }

 private:
  std::vector<TraceRow> rows_;
  const DatasetOptions options_;
  const PromptMaker maker_;
};

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const size_t comma = std::min(line.find(','), line.size());
    cells.push_back(line.substr(0, comma));
    if (comma == line.size()) return cells;
    line.remove_prefix(comma + 1);
  }
}

std::optional<double> to_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  if (error != std::errc() || end != text.end() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<int32_t> to_length(std::string_view text) {
  const auto value = to_number(text);
  if (!value || *value < 0 || *value > kMaxTokens) return std::nullopt;
  return static_cast<int32_t>(*value);
}

// Returns days since 1970-01-01 of a proleptic Gregorian date (H. Hinnant's algorithm).
int64_t days_of(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const int64_t era = (year >= 0 ? year : year - 399) / 400;
  const int64_t year_of_era = year - era * 400;
  const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + day_of_era - 719468;
}

// Parses "2023-11-16 18:17:03.9799600", and ignores text after the fraction (a zone).
std::optional<double> to_time(std::string_view text) {
  const std::string copy(text.substr(0, 40));
  int year = 0;
  int month = 0;
  int day = 0;
  int hour = 0;
  int minute = 0;
  double second = 0;
  if (std::sscanf(copy.c_str(),
                  "%4d-%2d-%2d%*c%2d:%2d:%lf",
                  &year,
                  &month,
                  &day,
                  &hour,
                  &minute,
                  &second) != 6) {
    return std::nullopt;
  }
  if (month < 1 || month > 12 || !std::isfinite(second)) return std::nullopt;
  return static_cast<double>(days_of(year, month, day)) * 86400 + hour * 3600 + minute * 60 +
         second;
}

std::optional<TraceRow> read_mooncake(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto number = [&json](const char* name) -> std::optional<double> {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_number()) return std::nullopt;
    return found->get<double>();
  };
  const auto at = number("timestamp");
  const auto input = number("input_length");
  const auto output = number("output_length");
  if (!at || !input || !output || *input < 0 || *input > kMaxTokens || *output < 0 ||
      *output > kMaxTokens) {
    return std::nullopt;
  }
  TraceRow row{*at / 1e3, static_cast<int32_t>(*input), static_cast<int32_t>(*output), {}, 0};
  if (const auto hashes = json.find("hash_ids"); hashes != json.end()) {
    if (!hashes->is_array()) return std::nullopt;
    for (const auto& hash : *hashes) {
      if (!hash.is_number_integer()) return std::nullopt;
      row.hashes.push_back(hash.get<uint64_t>());
    }
  }
  return row;
}

// Columns, found by their names in the first line; the names differ between the formats' versions.
struct Columns {
  size_t time = SIZE_MAX;
  size_t input = SIZE_MAX;
  size_t output = SIZE_MAX;

  [[nodiscard]] bool complete() const {
    return time != SIZE_MAX && input != SIZE_MAX && output != SIZE_MAX;
  }
};

Columns find_columns(std::string_view line) {
  Columns columns;
  const auto cells = split(line);
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i] == "TIMESTAMP" || cells[i] == "Timestamp") columns.time = i;
    if (cells[i] == "ContextTokens" || cells[i] == "Request tokens") columns.input = i;
    if (cells[i] == "GeneratedTokens" || cells[i] == "Response tokens") columns.output = i;
  }
  return columns;
}

std::optional<TraceRow> read_csv(std::string_view line, const Columns& columns, bool is_azure) {
  const auto cells = split(line);
  if (std::max({columns.time, columns.input, columns.output}) >= cells.size()) return std::nullopt;
  const auto at = is_azure ? to_time(cells[columns.time]) : to_number(cells[columns.time]);
  const auto input = to_length(cells[columns.input]);
  const auto output = to_length(cells[columns.output]);
  if (!at || !input || !output) return std::nullopt;
  return TraceRow{*at, *input, *output, {}, 0};
}

}  // namespace

Expected<std::unique_ptr<Dataset>> read_trace(const DatasetOptions& options) {
  SLUICE_TRY(const std::string text, read_file(options.path));
  const bool is_csv = options.name != "mooncake";
  Columns columns;
  std::vector<TraceRow> rows;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string place = options.path + ":" + std::to_string(number);
    if (is_csv && !columns.complete()) {
      columns = find_columns(line);
      if (columns.complete()) continue;
      return make_error(ErrorCode::kDataLoss,
                        place + ": needs the column names of an " + options.name + " trace");
    }
    auto row = is_csv ? read_csv(line, columns, options.name == "azure") : read_mooncake(line);
    if (!row) {
      return make_error(ErrorCode::kDataLoss,
                        place + ": is no line of a " + options.name + " trace");
    }
    // Failed requests of BurstGPT have no answer, so they cannot be sent again.
    if (row->output_len < 1 || row->input_len < 1) continue;
    if (options.has_output_len) row->output_len = options.output_len;
    row->line = number;
    rows.push_back(std::move(*row));
  }
  if (rows.empty()) return make_error(ErrorCode::kDataLoss, options.path + " has no request");
  return std::make_unique<TraceDataset>(std::move(rows), options);
}

}  // namespace sluice::load
