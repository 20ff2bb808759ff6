// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/quantize/quantize_checkpoint.h"

namespace sluice {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool is_kept(const TensorReport& tensor) { return tensor.scheme.starts_with("kept"); }

double bits_of(int64_t bytes, int64_t num_weights) {
  return num_weights > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(num_weights) : 0;
}

struct Sums {
  int64_t num_tensors = 0;
  int64_t num_weights = 0;
  int64_t bytes = 0;
  TensorError error;
  double largest_error = 0;

  void add(const TensorReport& tensor) {
    ++num_tensors;
    num_weights += tensor.num_weights;
    bytes += tensor.bytes;
    error.squared_error += tensor.error.squared_error;
    error.squared_weights += tensor.error.squared_weights;
    error.num_clipped += tensor.error.num_clipped;
    largest_error = std::max(largest_error, tensor.error.relative());
  }
};

// Replaces numbers in the name by "*": one kind of matrix in all layers.
std::string kind_of(const std::string& name) {
  std::string kind;
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool is_number =
        !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    kind += (begin == 0 ? "" : ".") + (is_number ? "*" : part);
    begin = end + 1;
  }
  return kind;
}

std::string line(const std::string& name, const std::string& scheme, const Sums& sums) {
  const auto weights = static_cast<double>(std::max<int64_t>(sums.num_weights, 1));
  char text[512];
  std::snprintf(text,
                sizeof(text),
                "%-52s %-10s %5lld %9.2f %7.3f %10.6f %10.6f %9.5f%%\n",
                name.substr(0, 52).c_str(),
                scheme.substr(0, 10).c_str(),
                static_cast<long long>(sums.num_tensors),
                static_cast<double>(sums.bytes) / 1e6,
                8.0 * static_cast<double>(sums.bytes) / weights,
                sums.error.relative(),
                sums.largest_error,
                100.0 * static_cast<double>(sums.error.num_clipped) / weights);
  return text;
}

}  // namespace

double TensorReport::bits() const { return bits_of(bytes, num_weights); }

int64_t QuantizeReport::bytes() const {
  int64_t sum = 0;
  for (const TensorReport& tensor : tensors) sum += tensor.bytes;
  return sum;
}

double QuantizeReport::bits() const {
  Sums sums;
  for (const TensorReport& tensor : tensors) sums.add(tensor);
  return bits_of(sums.bytes, sums.num_weights);
}

double QuantizeReport::relative_error() const {
  Sums sums;
  for (const TensorReport& tensor : tensors) {
    if (!is_kept(tensor)) sums.add(tensor);
  }
  return sums.error.relative();
}

std::string QuantizeReport::table() const {
  std::map<std::pair<std::string, std::string>, Sums> kinds;
  Sums quantized;
  Sums all;
  for (const TensorReport& tensor : tensors) {
    all.add(tensor);
    if (!is_kept(tensor)) quantized.add(tensor);
    if (tensor.is_matrix) kinds[{kind_of(tensor.name), tensor.scheme}].add(tensor);
  }
  char head[256];
  std::snprintf(head,
                sizeof(head),
                "%-52s %-10s %5s %9s %7s %10s %10s %10s\n",
                "matrices",
                "scheme",
                "count",
                "MB",
                "bits",
                "error",
                "largest",
                "clipped");
  std::string text = head;
  for (const auto& [key, sums] : kinds) text += line(key.first, key.second, sums);
  text += line("all that is quantized", "", quantized);
  text += line("all tensors", "", all);
  text += "calibration: " + calibration + "\n";
  if (is_verified) text += "read back: every weight is the one that was meant\n";
  if (!comparison) return text;
  char end[256];
  std::snprintf(
      end,
      sizeof(end),
      "KL divergence %.6f, same most likely token %.3f%%, perplexity %.4f (input's %.4f), "
      "%lld tokens\n",
      comparison->divergence,
      100 * comparison->same_top,
      comparison->perplexity,
      comparison->reference_perplexity,
      static_cast<long long>(comparison->num_positions));
  return text + end;
}

std::string QuantizeReport::json() const {
  OrderedJson list = OrderedJson::array();
  for (const TensorReport& tensor : tensors) {
    list.push_back({{"name", tensor.name},
                    {"scheme", tensor.scheme},
                    {"weights", tensor.num_weights},
                    {"bytes", tensor.bytes},
                    {"bits_per_weight", tensor.bits()},
                    {"relative_error", tensor.error.relative()},
                    {"clipped", tensor.error.num_clipped}});
  }
  OrderedJson report = {{"bytes", bytes()},
                 {"bits_per_weight", bits()},
                 {"relative_error", relative_error()},
                 {"verified", is_verified},
                 {"calibration", calibration},
                 {"tensors", std::move(list)}};
  if (comparison) {
    report["evaluation"] = {{"tokens", comparison->num_positions},
                            {"kl_divergence", comparison->divergence},
                            {"same_top", comparison->same_top},
                            {"perplexity", comparison->perplexity},
                            {"input_perplexity", comparison->reference_perplexity}};
  }
  return report.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace sluice
