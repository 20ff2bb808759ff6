// SPDX-License-Identifier: Apache-2.0
#include "server/cli/quantize_flags.h"

#include <CLI/CLI.hpp>

namespace sluice {
namespace {

constexpr const char* kSchemes =
    "Schemes of a directory: int8, fp8, fp8-tensor, fp8-block, nvfp4 (ModelOpt's layout), "
    "nvfp4-ct,\n"
    "mxfp4, int4, int4-asym (compressed-tensors), bf16, f16, f32. Of a GGUF file: Q2_K, Q3_K_S,\n"
    "Q3_K_M, Q3_K_L, Q4_0, Q4_1, Q4_K_S, Q4_K_M, Q5_0, Q5_1, Q5_K_S, Q5_K_M, Q6_K, Q8_0, IQ4_NL,\n"
    "IQ4_XS, mxfp4, bf16, f16, f32; those that both have become a file where OUT ends in .gguf. "
    "IN\n"
    "may be of either kind. What is no matrix, and routers, stay as they are; of a directory's\n"
    "schemes the embedding and the head too. A recipe is a JSON object of {\"expression\":\n"
    "\"scheme\"}, searched for in the names of tensors, the first that matches wins; \"keep\" "
    "leaves\n"
    "a tensor.";

}  // namespace

void add_quantize_flags(CLI::App& app, QuantizeCommandOptions& options) {
  QuantizeOptions& quantize = options.quantize;
  quantize.calibrate_by_default = true;
  app.add_option("IN", quantize.input, "GGUF file or model directory")->required()->type_name("");
  app.add_option("OUT", quantize.output, "What to write, a new name")->required()->type_name("");
  app.add_option("--to", quantize.to, "Scheme of the matrices, see below")->type_name("SCHEME");
  app.add_option("--recipe", options.recipe_file, "JSON file of schemes by name, before --to")
      ->type_name("FILE");
  app.add_option("--include",
                 quantize.include,
                 "Matrices that would be left, by their names; again for more")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->type_name("REGEX");
  app.add_option("--exclude", quantize.exclude, "Tensors to leave, by their names; again for more")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->type_name("REGEX");
  app.add_flag("!--no-search",
               quantize.search,
               "Scales of the largest magnitude instead of those of least error");
  app.add_option("--target-bits",
                 quantize.target_bits,
                 "Bits per weight in mean: matrices that lose most get more than --to has")
      ->check(CLI::Range(1.0, 32.0))
      ->type_name("N");
  app.add_option(
         "--calibrate", options.calibrate_file, "Text by which errors count, 16k tokens of it")
      ->type_name("FILE");
  app.add_flag("!--no-calibrate",
               quantize.calibrate_by_default,
               "Do not calibrate int4, nvfp4 and mxfp4 by a shipped text");
  app.add_flag("!--no-gptq", quantize.gptq, "With a calibration: each weight to the nearest code");
  app.add_option("--evaluate",
                 options.evaluate_file,
                 "Text on which predictions are compared with the input's, 8k tokens of it")
      ->type_name("FILE");
  app.add_flag("--verify", quantize.verify, "Read the output back and compare each weight");
  app.add_option("--report", options.report_file, "Write each tensor's error as JSON")
      ->type_name("FILE");
  app.add_option("--threads", quantize.threads, "Threads; bytes do not depend on them [auto]")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app.footer(kSchemes);
}

}  // namespace sluice
