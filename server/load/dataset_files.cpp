// SPDX-License-Identifier: Apache-2.0
// Data sets from files: ShareGPT (one request of each conversation, or all of its turns) and JSON
// lines of {"prompt", "output_tokens"}.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/load/dataset_impl.h"

namespace sluice::load {
namespace {

// vLLM's bounds for a ShareGPT request: shorter and longer ones are left out.
constexpr int32_t kMinTokens = 4;
constexpr int32_t kMaxPromptTokens = 1024;
constexpr int32_t kMaxTotalTokens = 2048;
constexpr int32_t kDefaultOutputLen = 256;  // for a line without a length

class ListDataset final : public Dataset {
 public:
  // The list repeats if it has fewer samples than prompts.
  ListDataset(std::vector<Sample> samples, const DatasetOptions& options)
      : samples_(std::move(samples)), num_prompts_(options.num_prompts) {
    Random random(options.seed, /*index=*/0);
    for (size_t i = samples_.size(); i > 1; --i) {
      std::swap(samples_[i - 1], samples_[random.next() % i]);
    }
  }

  [[nodiscard]] size_t size() const override { return num_prompts_; }

  [[nodiscard]] Sample sample(size_t index) const override {
    return samples_[index % samples_.size()];
  }

 private:
  std::vector<Sample> samples_;
  size_t num_prompts_;
};

Expected<std::unique_ptr<Dataset>> make_list(std::vector<Sample> samples,
                                             const DatasetOptions& options) {
  if (samples.empty()) {
    return make_error(ErrorCode::kDataLoss, options.path + " has no usable prompt");
  }
  return std::make_unique<ListDataset>(std::move(samples), options);
}

const std::string* text_of(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string()
             ? found->get_ptr<const nlohmann::json::string_t*>()
             : nullptr;
}

// Returns the human's messages with the lengths of the answers that followed.
Sample turns_of(const nlohmann::json& conversation, const DatasetOptions& options) {
  Sample sample;
  const auto messages = conversation.find("conversations");
  if (messages == conversation.end() || !messages->is_array()) return sample;
  for (size_t i = 0; i + 1 < messages->size(); ++i) {
    const auto& question = (*messages)[i];
    const auto& answer = (*messages)[i + 1];
    if (!question.is_object() || !answer.is_object()) break;
    const std::string* from = text_of(question, "from");
    const std::string* text = text_of(question, "value");
    const std::string* reply = text_of(answer, "value");
    if (text == nullptr || reply == nullptr) break;
    if (from != nullptr && (*from == "gpt" || *from == "assistant" || *from == "system")) continue;
    Turn turn;
    turn.text = *text;
    turn.input_len = estimate_tokens(*text);
    turn.output_len = options.has_output_len ? options.output_len : estimate_tokens(*reply);
    turn.delay_s = sample.turns.empty() ? 0 : options.turn_delay_s;
    sample.turns.push_back(std::move(turn));
  }
  return sample;
}

bool is_usable(const Turn& turn, bool has_output_len) {
  return turn.input_len >= kMinTokens && (turn.output_len >= kMinTokens || has_output_len) &&
         turn.input_len <= kMaxPromptTokens && turn.input_len + turn.output_len <= kMaxTotalTokens;
}

}  // namespace

Expected<std::unique_ptr<Dataset>> read_conversations(const DatasetOptions& options) {
  SLUICE_TRY(const std::string text, read_file(options.path));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) {
    return make_error(ErrorCode::kDataLoss,
                      options.path + " is no JSON list of ShareGPT conversations");
  }
  std::vector<Sample> samples;
  for (const auto& conversation : json) {
    if (!conversation.is_object()) continue;
    Sample sample = turns_of(conversation, options);
    if (options.name == "sharegpt" && sample.turns.size() > 1) sample.turns.resize(1);
    const bool usable = std::all_of(sample.turns.begin(), sample.turns.end(), [&](const Turn& t) {
      return is_usable(t, options.has_output_len);
    });
    if (usable && !sample.turns.empty()) samples.push_back(std::move(sample));
  }
  return make_list(std::move(samples), options);
}

Expected<std::unique_ptr<Dataset>> read_custom(const DatasetOptions& options) {
  SLUICE_TRY(const std::string text, read_file(options.path));
  std::vector<Sample> samples;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const std::string* prompt = json.is_object() ? text_of(json, "prompt") : nullptr;
    if (prompt == nullptr) {
      return make_error(ErrorCode::kDataLoss,
                        options.path + ":" + std::to_string(number) +
                            ": needs a JSON object with a string \"prompt\"");
    }
    Turn turn;
    turn.text = *prompt;
    turn.input_len = estimate_tokens(*prompt);
    turn.output_len = options.has_output_len ? options.output_len : kDefaultOutputLen;
    const auto tokens = json.find("output_tokens");
    if (!options.has_output_len && tokens != json.end()) {
      if (!tokens->is_number_integer() || *tokens < 1 || *tokens > (1 << 24)) {
        return make_error(ErrorCode::kDataLoss,
                          options.path + ":" + std::to_string(number) +
                              ": output_tokens must be an integer from 1 to 16777216");
      }
      turn.output_len = tokens->get<int32_t>();
    }
    samples.push_back({{std::move(turn)}});
  }
  return make_list(std::move(samples), options);
}

}  // namespace sluice::load
