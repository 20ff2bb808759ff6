// SPDX-License-Identifier: Apache-2.0
#include "server/load/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "tests/support/temporary_folder.h"

namespace sluice::load {
namespace {

std::string write_temporary(const std::string& name, const std::string& text) {
  static const testing::TemporaryFolder folder;
  std::string path = folder.at(name);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  std::fwrite(text.data(), 1, text.size(), file);
  std::fclose(file);
  return path;
}

std::unique_ptr<Dataset> make(const DatasetOptions& options) {
  auto dataset = create_dataset(options);
  if (!dataset) {
    ADD_FAILURE() << dataset.error().message;
    return nullptr;
  }
  return std::move(*dataset);
}

size_t count_words(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), ' ')) + 1;
}

TEST(RandomDataset, HasTheLengthsThatWereAskedForAndIsFixedByItsSeed) {
  DatasetOptions options;
  options.num_prompts = 300;
  options.input_len = 40;
  options.output_len = 20;
  options.range_ratio = 0.5;
  options.vocabulary.ids = {5, 9, 11};
  const auto dataset = make(options);
  std::set<int32_t> lengths;
  for (size_t i = 0; i < dataset->size(); ++i) {
    const Turn turn = dataset->sample(i).turns.at(0);
    EXPECT_EQ(turn.token_ids.size(), static_cast<size_t>(turn.input_len));
    EXPECT_GE(turn.input_len, 20);
    EXPECT_LE(turn.input_len, 60);
    EXPECT_GE(turn.output_len, 10);
    EXPECT_LE(turn.output_len, 30);
    lengths.insert(turn.input_len);
    EXPECT_EQ(turn.token_ids, dataset->sample(i).turns[0].token_ids);
    for (const int32_t id : turn.token_ids) EXPECT_TRUE(id == 5 || id == 9 || id == 11);
  }
  EXPECT_GT(lengths.size(), 35U);
  const auto first = dataset->sample(0).turns[0].token_ids;
  EXPECT_EQ(make(options)->sample(0).turns[0].token_ids, first);
  options.seed = 1;
  EXPECT_NE(make(options)->sample(0).turns[0].token_ids, first);
}

TEST(RandomDataset, MakesWordsWithoutAVocabularyAndSharesAPrefix) {
  DatasetOptions options;
  options.input_len = 10;
  options.prefix_len = 5;
  const auto dataset = make(options);
  const std::string first = dataset->sample(0).turns[0].text;
  const std::string second = dataset->sample(1).turns[0].text;
  EXPECT_EQ(count_words(first), 15U);
  EXPECT_NE(first, second);
  size_t same = 0;
  for (int words = 0; words < 5; ++words) same = first.find(' ', same) + 1;
  EXPECT_EQ(first.substr(0, same), second.substr(0, same));
}

TEST(PrefixRepetitionDataset, UsesEachPrefixEquallyOften) {
  DatasetOptions options;
  options.name = "prefix_repetition";
  options.num_prompts = 120;
  options.repetition_prefix_len = 8;
  options.repetition_suffix_len = 4;
  options.repetition_num_prefixes = 6;
  options.vocabulary.vocab_size = 50000;
  const auto dataset = make(options);
  std::map<std::vector<int32_t>, int> prefixes;
  for (size_t i = 0; i < dataset->size(); ++i) {
    auto ids = dataset->sample(i).turns[0].token_ids;
    ASSERT_EQ(ids.size(), 12U);
    ids.resize(8);
    ++prefixes[ids];
  }
  ASSERT_EQ(prefixes.size(), 6U);
  for (const auto& [prefix, count] : prefixes) EXPECT_EQ(count, 20);
}

TEST(ShareGptDataset, TakesTheFirstQuestionOrAllOfThem) {
  DatasetOptions options;
  options.name = "sharegpt";
  options.num_prompts = 4;
  options.path = write_temporary("sharegpt.json", R"([
    {"id": "a", "conversations": [
      {"from": "human", "value": "What is a sluice gate, please?"},
      {"from": "gpt", "value": "A gate that lets water through a channel."},
      {"from": "human", "value": "And what is a lock then?"},
      {"from": "gpt", "value": "A chamber between two gates, for boats."}]},
    {"id": "too short", "conversations": [{"from": "human", "value": "?"},
                                          {"from": "gpt", "value": "!"}]},
    {"id": "no answer", "conversations": [{"from": "human", "value": "Is anyone there at all?"}]},
    {"id": "broken"}, 5])");
  const auto one = make(options);
  EXPECT_EQ(one->size(), 4U);  // the one usable conversation, again and again
  EXPECT_EQ(one->sample(3).turns.size(), 1U);
  EXPECT_EQ(one->sample(3).turns[0].text, "What is a sluice gate, please?");
  EXPECT_EQ(one->sample(3).turns[0].output_len, 11);
  options.name = "multi_turn";
  EXPECT_EQ(make(options)->sample(0).turns.at(1).text, "And what is a lock then?");
}

TEST(CustomDataset, ReadsLinesAndNamesTheBrokenOne) {
  DatasetOptions options;
  options.name = "custom";
  options.num_prompts = 2;
  options.path = write_temporary(
      "custom.jsonl", "{\"prompt\": \"Hi\", \"output_tokens\": 7}\n\n{\"prompt\": \"Ho\"}\n");
  const auto dataset = make(options);
  std::map<std::string, int32_t> lengths;
  for (size_t i = 0; i < 2; ++i) {
    lengths[dataset->sample(i).turns[0].text] = dataset->sample(i).turns[0].output_len;
  }
  EXPECT_EQ(lengths, (std::map<std::string, int32_t>{{"Hi", 7}, {"Ho", 256}}));
  for (const char* bad : {"{\"prompt\": \"a\"}\n{",
                          "{\"prompt\": 5}",
                          "{\"prompt\": \"a\", \"output_tokens\": -1}"}) {
    options.path = write_temporary("bad.jsonl", bad);
    EXPECT_FALSE(create_dataset(options)) << bad;
  }
}

TEST(MooncakeTrace, KeepsTimesAndSharesTheBlocksOfEqualHashes) {
  DatasetOptions options;
  options.name = "mooncake";
  options.vocabulary.vocab_size = 1000;
  options.trace_speedup = 2;
  options.path = write_temporary("mooncake.jsonl",
                                 "{\"timestamp\": 9000, \"input_length\": 1100, \"output_length\": "
                                 "3, \"hash_ids\": [4, 5, 6]}\n"
                                 "{\"timestamp\": 3000, \"input_length\": 1030, \"output_length\": "
                                 "2, \"hash_ids\": [4, 5, 9]}\n");
  const auto dataset = make(options);
  EXPECT_EQ(dataset->arrivals(), (std::vector<double>{0, 3}));
  const auto first = dataset->sample(0).turns[0];
  const auto second = dataset->sample(1).turns[0];
  EXPECT_EQ(first.output_len, 2);
  ASSERT_EQ(first.token_ids.size(), 1030U);
  ASSERT_EQ(second.token_ids.size(), 1100U);
  const auto shared =
      std::mismatch(first.token_ids.begin(), first.token_ids.end(), second.token_ids.begin())
          .first -
      first.token_ids.begin();
  EXPECT_GE(shared, 1024);
  EXPECT_LT(shared, 1030);
}

TEST(CsvTraces, ReadAzureAndBurstGpt) {
  DatasetOptions options;
  options.name = "azure";
  options.path = write_temporary("azure.csv",
                                 "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                                 "2023-11-30 23:59:59.5000000,374,44\r\n"
                                 "2023-12-01 00:00:01.2500000,12,9\r\n");
  const auto azure = make(options);
  EXPECT_EQ(azure->arrivals(), (std::vector<double>{0, 1.75}));
  EXPECT_EQ(azure->sample(0).turns[0].input_len, 374);
  EXPECT_EQ(azure->sample(1).turns[0].output_len, 9);

  options.name = "burstgpt";
  options.path = write_temporary(
      "burstgpt.csv",
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n6,GPT-4,10,0,10,API log\n45,GPT-4,30,4,34,API log\n");
  const auto burst = make(options);
  EXPECT_EQ(burst->size(), 2U);  // the failed request is left out
  EXPECT_EQ(burst->arrivals(), (std::vector<double>{0, 40}));
  EXPECT_EQ(burst->sample(1).turns[0].input_len, 30);

  options.path = write_temporary("bad.csv", "Timestamp,Request tokens\n1,2\n");
  EXPECT_FALSE(create_dataset(options));
  options.path = write_temporary("bad.csv", "Timestamp,Request tokens,Response tokens\n1,2\n");
  const auto bad = create_dataset(options);
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find(":2: "), std::string::npos);
}

TEST(Datasets, AMissingFileIsAnError) {
  DatasetOptions options;
  options.name = "sharegpt";
  EXPECT_EQ(create_dataset(options).error().code, ErrorCode::kInvalidArgument);
  options.path = "/nonexistent/file";
  EXPECT_EQ(create_dataset(options).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace sluice::load
