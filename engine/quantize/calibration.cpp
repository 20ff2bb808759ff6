// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/calibration.h"

#include "engine/quantize/input_products.h"
#include "engine/quantize/text_windows.h"
#include "engine/run/offline_model.h"

namespace sluice {
namespace {

constexpr int64_t kMaxTokens = 16384;

// Sums over one input, squares in double; a window's products are added as floats.
struct InputSums {
  int64_t num_rows = 0;
  std::vector<double> squares;
  std::vector<float> products;
};

class Collector final : public InputTap {
 public:
  explicit Collector(const CalibrationOptions& options) : options_(options) {}

  void see(std::span<const std::string> stems, const TappedRows& rows) override {
    InputSums& sums = sums_[stems.front()];
    const auto k = static_cast<size_t>(rows.k);
    if (sums.num_rows == 0) {
      sums.squares.resize(k);
      stems_[stems.front()] = {stems.begin(), stems.end()};
      if (options_.products) product_bytes_ += rows.k * int64_t{rows.k} * int64_t{sizeof(float)};
      if (has_room()) sums.products.resize(options_.products ? k * k : 0);
    }
    sums.num_rows += rows.num_rows;
    for (int32_t r = 0; r < rows.num_rows; ++r) {
      const float* row = rows.data + r * rows.stride;
      for (size_t i = 0; i < k; ++i) sums.squares[i] += double{row[i]} * double{row[i]};
    }
    if (!sums.products.empty()) add_products(rows, sums.products.data());
  }

  [[nodiscard]] bool has_room() const { return product_bytes_ <= options_.max_product_bytes; }

  [[nodiscard]] int64_t product_bytes() const { return product_bytes_; }

  Calibration take() {
    Calibration result;
    for (auto& [first, sums] : sums_) {
      auto statistics = std::make_shared<InputStatistics>();
      statistics->num_rows = sums.num_rows;
      const double share = 1.0 / static_cast<double>(sums.num_rows);
      for (const double square : sums.squares) {
        statistics->mean_squares.push_back(static_cast<float>(square * share));
      }
      statistics->products = std::move(sums.products);
      mirror_products(rows_of(*statistics), static_cast<float>(share), statistics->products);
      for (const std::string& stem : stems_[first]) result[stem] = statistics;
    }
    return result;
  }

 private:
  static int64_t rows_of(const InputStatistics& statistics) {
    return static_cast<int64_t>(statistics.mean_squares.size());
  }

  const CalibrationOptions& options_;
  int64_t product_bytes_ = 0;
  std::map<std::string, InputSums> sums_;                  // by the first stem of an input
  std::map<std::string, std::vector<std::string>> stems_;  // all stems, by the first one
};

}  // namespace

Expected<Calibration> calibrate(const std::string& path,
                                const std::string& text,
                                const CalibrationOptions& options) {
  Collector collector(options);
  SLUICE_TRY(
      const auto model,
      OfflineModel::open(path, kTextWindow, {.threads = options.threads, .tap = &collector}));
  SLUICE_TRY(const auto windows, text_windows(model->checkpoint(), text, kMaxTokens));
  std::vector<float> logits;
  for (const std::vector<TokenId>& tokens : windows) {
    model->forward(tokens, logits);
    if (collector.has_room()) continue;
    return make_error(ErrorCode::kResourceExhausted,
                      path + ": products of inputs: found " +
                          std::to_string(collector.product_bytes()) + " bytes or more, expected " +
                          std::to_string(options.max_product_bytes) + " at most");
  }
  return collector.take();
}

}  // namespace sluice
