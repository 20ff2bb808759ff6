// SPDX-License-Identifier: Apache-2.0
#include "server/api/routes.h"

#include <array>
#include <vector>

#include "server/front/front_end.h"
#include "server/front/metrics.h"

namespace sluice {
namespace {

constexpr std::array kRoutes = {
    Route{"POST", "/v1/chat/completions", handle_chat_completions, RouteAuth::kKey},
    Route{"POST", "/chat/completions", handle_chat_completions, RouteAuth::kKey},
    Route{"POST", "/v1/completions", handle_completions, RouteAuth::kKey},
    Route{"POST", "/completions", handle_completions, RouteAuth::kKey},
    Route{"POST", "/v1/responses", handle_responses, RouteAuth::kKey, ErrorForm::kOpenAi, true},
    Route{"POST",
          "/v1/responses/input_tokens",
          handle_count_response_tokens,
          RouteAuth::kKey,
          ErrorForm::kOpenAi,
          true},
    Route{"POST", "/v1/responses/compact", handle_compact_response, RouteAuth::kKey},
    Route{"POST", "/v1/responses/*/cancel", handle_cancel_response, RouteAuth::kKey},
    Route{"GET", "/v1/responses/*/input_items", handle_response_items, RouteAuth::kKey},
    Route{"GET", "/v1/responses/*", handle_response, RouteAuth::kKey},
    Route{"DELETE", "/v1/responses/*", handle_delete_response, RouteAuth::kKey},
    Route{"POST", "/v1/messages", handle_messages, RouteAuth::kKey, ErrorForm::kAnthropic},
    Route{"POST",
          "/v1/messages/count_tokens",
          handle_count_tokens,
          RouteAuth::kKey,
          ErrorForm::kAnthropic},
    Route{"POST", "/v1/chat/completions/render", handle_render_chat, RouteAuth::kKey},
    Route{"POST", "/v1/completions/render", handle_render_completion, RouteAuth::kKey},
    Route{"POST", "/v1/embeddings", handle_embeddings, RouteAuth::kKey},
    Route{"POST", "/embeddings", handle_embeddings, RouteAuth::kKey},
    Route{"POST", "/pooling", handle_pooling, RouteAuth::kKey},
    Route{"POST", "/v1/rerank", handle_rerank, RouteAuth::kKey, ErrorForm::kCohere},
    Route{"POST", "/v2/rerank", handle_rerank, RouteAuth::kKey, ErrorForm::kCohere},
    Route{"POST", "/rerank", handle_rerank, RouteAuth::kKey, ErrorForm::kCohere},
    Route{"POST", "/v1/reranking", handle_rerank, RouteAuth::kKey, ErrorForm::kCohere},
    Route{"POST", "/reranking", handle_rerank, RouteAuth::kKey, ErrorForm::kCohere},
    Route{"POST", "/v1/score", handle_score, RouteAuth::kKey},
    Route{"POST", "/score", handle_score, RouteAuth::kKey},
    Route{"POST", "/classify", handle_classify, RouteAuth::kKey},
    Route{"POST", "/v2/embed", handle_cohere_embed, RouteAuth::kKey, ErrorForm::kCohere},
    Route{"POST", "/v1/embed", handle_cohere_embed, RouteAuth::kKey, ErrorForm::kCohere},
    Route{"POST", "/", handle_tei_embed, RouteAuth::kKey, ErrorForm::kTei},
    Route{"POST", "/embed", handle_tei_embed, RouteAuth::kKey, ErrorForm::kTei},
    Route{"POST", "/embed_all", handle_tei_embed_all, RouteAuth::kKey, ErrorForm::kTei},
    Route{"POST", "/similarity", handle_tei_similarity, RouteAuth::kKey, ErrorForm::kTei},
    Route{"POST", "/predict", handle_tei_predict, RouteAuth::kKey, ErrorForm::kTei},
    Route{"GET", "/info", handle_tei_info, RouteAuth::kOpen},
    Route{"GET", "/v1/models", handle_models, RouteAuth::kKey},
    Route{"GET", "/v1/models/**", handle_model, RouteAuth::kKey},
    Route{"GET", "/health", handle_health, RouteAuth::kProbe},
    Route{"GET", "/ready", handle_health, RouteAuth::kProbe},
    Route{"GET", "/ping", handle_health, RouteAuth::kProbe},
    Route{"POST", "/ping", handle_health, RouteAuth::kProbe},
    Route{"GET", "/query", handle_query, RouteAuth::kOpen},
    Route{"GET", "/server_info", handle_server_info, RouteAuth::kOpen},
    Route{"GET", "/get_server_info", handle_server_info, RouteAuth::kOpen},
    Route{"GET", "/model_info", handle_model_info, RouteAuth::kOpen},
    Route{"GET", "/get_model_info", handle_model_info, RouteAuth::kOpen},
    Route{"GET", "/version", handle_version, RouteAuth::kProbe},
    Route{"GET", "/metrics", handle_metrics, RouteAuth::kProbe},
    Route{"GET", "/load", handle_load, RouteAuth::kProbe},
    Route{"GET", "/debug/state", handle_debug_state, RouteAuth::kKey},
    Route{"GET", "/debug/trace", handle_debug_trace, RouteAuth::kKey},
    Route{"GET", "/openapi.json", handle_openapi, RouteAuth::kOpen},
    Route{"GET", "/", handle_page, RouteAuth::kOpen},
    Route{"GET", "/docs", handle_page, RouteAuth::kOpen},
    Route{"GET", "/tokenizer_info", handle_tokenizer_info, RouteAuth::kKey},
    Route{"POST", "/tokenize", handle_tokenize, RouteAuth::kKey},
    Route{"POST", "/detokenize", handle_detokenize, RouteAuth::kKey},
    Route{"POST", "/decode", handle_tei_decode, RouteAuth::kKey, ErrorForm::kTei},
};
static_assert(kRoutes.size() < kMaxRoutes);

}  // namespace

std::span<const Route> routes() { return kRoutes; }

std::span<const Route> probe_routes() {
  static const std::vector<Route> probes = [] {
    std::vector<Route> found;
    for (const Route& route : kRoutes) {
      if (route.auth == RouteAuth::kProbe) found.push_back(route);
    }
    return found;
  }();
  return probes;
}

}  // namespace sluice
