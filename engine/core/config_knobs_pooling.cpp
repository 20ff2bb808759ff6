// SPDX-License-Identifier: Apache-2.0
// The rows of the knobs of models that make vectors and scores.
#include "engine/core/config.h"
#include "engine/core/knob_rows.h"

namespace sluice {

std::vector<Knob> make_pooling_knobs() {
  return {
      choice<&Config::runner>("runner",
                              "model",
                              "",
                              "auto|generate|pooling",
                              "Whether the model generates tokens or makes vectors and scores; "
                              "auto: as its files say."),
      choice<&Config::convert>("convert",
                               "model",
                               "",
                               "auto|none|embed|classify",
                               "What a pooling model answers with: embed: vectors of texts, "
                               "classify: scores; auto: as its files say."),
      choice<&Config::pooling>("pooling",
                               "model",
                               "",
                               "auto|mean|cls|last|rank",
                               "Which tokens' states make a text's vector; rank: scores. auto: as "
                               "the model's files say."),
      string<&Config::hf_overrides>(
          "hf-overrides",
          "model",
          "JSON object put over what config.json says of vectors and scores: architectures, "
          "is_matryoshka, matryoshka_dimensions, classifier_from_token with method, "
          "is_original_qwen3_reranker; of prompts: default_prompt_name; of attention: is_causal; "
          "and "
          "of the model: rope_parameters or rope_scaling, rope_theta, max_position_embeddings and "
          "other keys that are read. Of a GGUF file: what says how positions are rotated, and "
          "max_position_embeddings."),
      integer<&Config::max_client_batch_size>(
          "max-client-batch-size",
          "model",
          "texts",
          {1, 1 << 20},
          "Texts of one request for embeddings or scores at most."),
      boolean<&Config::auto_truncate>(
          "auto-truncate",
          "model",
          "Cut texts for embeddings or scores that are longer than the model's limit; off: 400."),
  };
}

}  // namespace sluice
