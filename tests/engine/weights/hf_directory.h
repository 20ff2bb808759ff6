// SPDX-License-Identifier: Apache-2.0
// Hand-made safetensors files, and a directory in Hugging Face's layout that a test changes.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace sluice {

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string safetensors(const std::string& header, size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(data_bytes, '\0');
}

inline std::string tensor(const std::string& name, const std::string& fields) {
  return "\"" + name + "\":{" + fields + "}";
}

inline const std::string kGood = R"("dtype":"F32","shape":[2,2],"data_offsets":[0,16])";

// A file with a tensor of 4 floats per name, one after the other.
inline std::string shard_of(const std::vector<std::string>& names) {
  std::string header;
  for (size_t i = 0; i < names.size(); ++i) {
    header += (i == 0 ? "" : ",") +
              tensor(names[i],
                     R"("dtype":"F32","shape":[2,2],"data_offsets":[)" + std::to_string(16 * i) +
                         "," + std::to_string(16 * i + 16) + "]");
  }
  return safetensors("{" + header + "}", 16 * names.size());
}

// A file of tensors with chosen bytes.
class SafetensorsBuilder {
 public:
  SafetensorsBuilder& add(const std::string& name,
                          const std::string& dtype,
                          const std::string& shape,
                          const std::string& bytes) {
    header_ += (header_.empty() ? "" : ",") +
               tensor(name,
                      R"("dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[)" +
                          std::to_string(data_.size()) + "," +
                          std::to_string(data_.size() + bytes.size()) + "]");
    data_ += bytes;
    return *this;
  }

  [[nodiscard]] std::string file() const {
    std::string file = safetensors("{" + header_ + "}", 0);
    return file + data_;
  }

 private:
  std::string header_;
  std::string data_;
};

template <typename T>
std::string raw_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

class HfDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    write("config.json", R"({"model_type":"llama"})");
    write("model.safetensors", safetensors("{" + tensor("lm_head.weight", kGood) + "}", 16));
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
  }

  void remove(const std::string& name) const { std::filesystem::remove(folder_ + "/" + name); }

  [[nodiscard]] std::string error() const {
    const auto opened = Checkpoint::open(folder_);
    return opened ? "" : opened.error().message;
  }

  const testing::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

}  // namespace sluice
