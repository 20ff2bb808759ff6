// SPDX-License-Identifier: Apache-2.0
// Generated data sets: random, prefix_repetition and multi_turn.
#include "server/load/dataset.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "server/load/dataset_impl.h"

namespace sluice::load {

const char* const kPromptWords =
    "the of and to in is that for it as was with be by on not he his but at are this have from or "
    "had an they which one you were all her she there would their we him been has when who will no "
    "more if out so up said what its about than into them can only other time new some could these "
    "two may first then do any like my now over such our man me even most made after also well did "
    "many before must through years where much way down should because long each just state people "
    "those too good world still work life house water place while right great old year see off "
    "small part number end line home hand high school light city group point large town river";

PromptMaker::PromptMaker(const PromptVocabulary& vocabulary) : vocabulary_(vocabulary) {
  std::string_view rest = kPromptWords;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(' '), rest.size());
    words_.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

void PromptMaker::append(Random& random, int32_t count, Turn& turn) const {
  turn.input_len += count;
  if (vocabulary_.ids.empty() && vocabulary_.vocab_size == 0) {
    for (int32_t i = 0; i < count; ++i) {
      if (!turn.text.empty()) turn.text += ' ';
      turn.text += words_[random.next() % words_.size()];
    }
    return;
  }
  const auto num_ids =
      static_cast<uint64_t>(vocabulary_.vocab_size > 0 ? static_cast<size_t>(vocabulary_.vocab_size)
                                                       : vocabulary_.ids.size());
  turn.token_ids.reserve(turn.token_ids.size() + static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    const auto pick = static_cast<int32_t>(random.next() % num_ids);
    turn.token_ids.push_back(
        vocabulary_.vocab_size > 0 ? pick : vocabulary_.ids[static_cast<size_t>(pick)]);
  }
}

int32_t draw_length(Random& random, int32_t length, double ratio) {
  const auto low = static_cast<int64_t>(std::floor(length * (1 - ratio)));
  const auto high = static_cast<int64_t>(std::ceil(length * (1 + ratio)));
  return static_cast<int32_t>(std::max<int64_t>(1, random.between(low, high)));
}

int32_t estimate_tokens(std::string_view text) {
  return static_cast<int32_t>(std::min<size_t>((text.size() + 3) / 4, 1 << 30));
}

Expected<std::string> read_file(const std::string& path) {
  if (path.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "this data set needs --dataset-path");
  }
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return make_error(ErrorCode::kNotFound, path + ": " + std::strerror(errno));
  std::string text;
  char buffer[1 << 16];
  size_t count = 0;
  while ((count = std::fread(buffer, 1, sizeof buffer, file)) > 0) text.append(buffer, count);
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return make_error(ErrorCode::kNotFound, path + ": cannot be read");
  return text;
}

namespace {

class RandomDataset final : public Dataset {
 public:
  explicit RandomDataset(const DatasetOptions& options)
      : options_(options), maker_(options.vocabulary) {}

  [[nodiscard]] size_t size() const override { return options_.num_prompts; }

  [[nodiscard]] Sample sample(size_t index) const override {
    Turn turn;
    Random shared(options_.seed, /*index=*/0);
    maker_.append(shared, options_.prefix_len, turn);
    Random random(options_.seed, index + 1);
    const int32_t length = draw_length(random, options_.input_len, options_.range_ratio);
    turn.output_len = draw_length(random, options_.output_len, options_.range_ratio);
    maker_.append(random, length, turn);
    return {{std::move(turn)}};
  }

 private:
  const DatasetOptions options_;
  const PromptMaker maker_;
};

// A data set with equally many prompts for each of a few prefixes, in random order.
class PrefixRepetitionDataset final : public Dataset {
 public:
  explicit PrefixRepetitionDataset(const DatasetOptions& options)
      : options_(options), maker_(options.vocabulary), order_(options.num_prompts) {
    std::iota(order_.begin(), order_.end(), 0);
    Random random(options_.seed, /*index=*/0);
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.next() % i]);
  }

  [[nodiscard]] size_t size() const override { return order_.size(); }

  [[nodiscard]] Sample sample(size_t index) const override {
    const auto num_prefixes = static_cast<uint64_t>(options_.repetition_num_prefixes);
    Turn turn;
    Random prefix(options_.seed, kPrefixes + order_[index] % num_prefixes);
    maker_.append(prefix, options_.repetition_prefix_len, turn);
    Random suffix(options_.seed, order_[index] + 1);
    maker_.append(suffix, options_.repetition_suffix_len, turn);
    turn.output_len = options_.repetition_output_len;
    return {{std::move(turn)}};
  }

 private:
  static constexpr uint64_t kPrefixes = 1ULL << 40;

  const DatasetOptions options_;
  const PromptMaker maker_;
  std::vector<uint64_t> order_;
};

class MultiTurnDataset final : public Dataset {
 public:
  explicit MultiTurnDataset(const DatasetOptions& options)
      : options_(options), maker_(PromptVocabulary{}) {}

  [[nodiscard]] size_t size() const override { return options_.num_prompts; }

  [[nodiscard]] Sample sample(size_t index) const override {
    Random random(options_.seed, index + 1);
    Sample sample;
    for (int32_t i = 0; i < options_.num_turns; ++i) {
      Turn turn;
      const int32_t length = draw_length(random, options_.input_len, options_.range_ratio);
      turn.output_len = draw_length(random, options_.output_len, options_.range_ratio);
      turn.delay_s = i == 0 ? 0 : options_.turn_delay_s;
      maker_.append(random, length, turn);
      sample.turns.push_back(std::move(turn));
    }
    return sample;
  }

 private:
  const DatasetOptions options_;
  const PromptMaker maker_;
};

}  // namespace

Expected<std::unique_ptr<Dataset>> create_dataset(const DatasetOptions& options) {
  const std::string& name = options.name;
  if (name == "random") return std::make_unique<RandomDataset>(options);
  if (name == "prefix_repetition") return std::make_unique<PrefixRepetitionDataset>(options);
  if (name == "multi_turn" && options.path.empty()) {
    return std::make_unique<MultiTurnDataset>(options);
  }
  if (name == "sharegpt" || name == "multi_turn") return read_conversations(options);
  if (name == "custom") return read_custom(options);
  return read_trace(options);
}

}  // namespace sluice::load
