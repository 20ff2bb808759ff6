// SPDX-License-Identifier: Apache-2.0
// Raw little-endian goldens of tests/golden/quant.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/golden_folder.h"

namespace sluice {

template <typename T>
std::vector<T> read_golden(const std::string& name) {
  std::ifstream file(golden_folder() + "/quant/" + name, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_FALSE(bytes.empty()) << name;
  EXPECT_EQ(bytes.size() % sizeof(T), 0U) << name;
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace sluice
