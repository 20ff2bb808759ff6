// SPDX-License-Identifier: Apache-2.0
// Every field that other writers put into quantization_config, as fields.json of
// tests/golden/quantization has them from their sources: the values that are read or refused.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/weights/quant_methods.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

Expected<Quantization> read_with(const Json& row, const std::string& field, const Json& value) {
  Json config = row["base"];
  config[Json::json_pointer(row["at"].get<std::string>())][field] = value;
  const char* const usual = config.contains("quant_method") ? "" : "modelopt";
  return read_quantization(config, "config.json: quantization_config", usual);
}

TEST(Writers, EveryFieldIsReadOrRefusedByName) {
  std::ifstream file(golden_folder() + "/quantization/fields.json");
  const Json table = Json::parse(file);
  size_t num_fields = 0;
  for (const auto& [writer, row] : table.items()) {
    for (const auto& [field, values] : row["fields"].items()) {
      const std::string name = writer + ": " + field;
      ++num_fields;
      ASSERT_TRUE(values.contains("takes") && !values["takes"].empty())
          << name << " is new: fields.json needs values that are read, and those that are refused";
      for (const Json& value : values["takes"]) {
        const auto found = read_with(row, field, value);
        EXPECT_TRUE(found.has_value()) << name << ": " << found.error().message;
      }
      for (const Json& value : values.value("refuses", Json::array())) {
        const auto found = read_with(row, field, value);
        ASSERT_FALSE(found.has_value()) << name << " " << value;
        EXPECT_NE(found.error().message.find(field), std::string::npos)
            << name << ": " << found.error().message;
      }
    }
  }
  EXPECT_GT(num_fields, 200U);
}

}  // namespace
}  // namespace sluice
