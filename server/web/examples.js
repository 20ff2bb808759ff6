// What /docs says of each operation: a sentence, and a request that can be sent as it is. In the
// examples MODEL stands for the model that is chosen in the chat.

const MESSAGES = [{ role: "user", content: "Say hello in three languages." }];
const TEXTS = ["Paris is in France.", "Bread is made of flour."];
const RANKED = { query: "Where is Paris?", documents: TEXTS };
const ALIAS = (path) => `The same as ${path}.`;

const EXAMPLES = {
  "post /v1/chat/completions": [
    "Answers a conversation, in OpenAI's form; with stream, piece by piece.",
    { model: "MODEL", messages: MESSAGES, max_tokens: 64, stream: true },
  ],
  "post /chat/completions": [
    ALIAS("/v1/chat/completions"),
    { model: "MODEL", messages: MESSAGES, max_tokens: 64 },
  ],
  "post /v1/completions": [
    "Continues a text, without the chat template.",
    { model: "MODEL", prompt: "Once upon a time", max_tokens: 32 },
  ],
  "post /completions": [
    ALIAS("/v1/completions"),
    { model: "MODEL", prompt: "Once upon a time", max_tokens: 32 },
  ],
  "post /v1/responses": [
    "Answers in the form of OpenAI's Responses API, and keeps the answer unless store is false.",
    { model: "MODEL", input: "Say hello in three languages.", max_output_tokens: 64 },
  ],
  "post /v1/responses/input_tokens": [
    "Counts the tokens that a request of /v1/responses would have.",
    { model: "MODEL", input: "Say hello in three languages." },
  ],
  "post /v1/responses/compact": [
    "Is not offered; the error says what to send instead.",
    { model: "MODEL", input: "Say hello in three languages." },
  ],
  "post /v1/responses/{id}/cancel": ["Ends an answer that is made in the background."],
  "get /v1/responses/{id}/input_items": ["Lists what a kept answer was asked."],
  "get /v1/responses/{id}": ["Returns a kept answer; with ?stream=true as events."],
  "delete /v1/responses/{id}": ["Forgets a kept answer."],
  "post /v1/messages": [
    "Answers a conversation, in Anthropic's form.",
    { model: "MODEL", max_tokens: 64, messages: MESSAGES },
  ],
  "post /v1/messages/count_tokens": [
    "Counts the tokens that a request of /v1/messages would have.",
    { model: "MODEL", messages: MESSAGES },
  ],
  "post /v1/chat/completions/render": [
    "Returns the prompt that the chat template makes of a conversation, as tokens.",
    { model: "MODEL", messages: MESSAGES },
  ],
  "post /v1/completions/render": [
    "Returns the tokens that a request of /v1/completions would have.",
    { model: "MODEL", prompt: "Once upon a time" },
  ],
  "post /v1/embeddings": [
    "Makes a vector of each text, if the model is one for that.",
    { model: "MODEL", input: TEXTS },
  ],
  "post /embeddings": [ALIAS("/v1/embeddings"), { model: "MODEL", input: TEXTS }],
  "post /pooling": [
    "Returns the numbers that the model's pooling makes of each text.",
    { model: "MODEL", input: TEXTS },
  ],
  "post /v1/rerank": [
    "Orders documents by how well they answer a query, if the model is one for that.",
    { model: "MODEL", ...RANKED },
  ],
  "post /v2/rerank": [ALIAS("/v1/rerank"), { model: "MODEL", ...RANKED }],
  "post /rerank": [ALIAS("/v1/rerank"), { model: "MODEL", ...RANKED }],
  "post /v1/reranking": [ALIAS("/v1/rerank"), { model: "MODEL", ...RANKED }],
  "post /reranking": [ALIAS("/v1/rerank"), { model: "MODEL", ...RANKED }],
  "post /v1/score": [
    "Says how well texts belong together, pair by pair.",
    { model: "MODEL", text_1: "Where is Paris?", text_2: TEXTS },
  ],
  "post /score": [
    ALIAS("/v1/score"),
    { model: "MODEL", text_1: "Where is Paris?", text_2: TEXTS },
  ],
  "post /classify": [
    "Returns the probability of each of the model's labels.",
    { model: "MODEL", input: TEXTS },
  ],
  "post /v2/embed": [
    "Makes a vector of each text, as floats or smaller numbers, in Cohere's form.",
    { model: "MODEL", texts: TEXTS, input_type: "search_document", embedding_types: ["float"] },
  ],
  "post /v1/embed": [
    "Makes a vector of each text, in the first version of Cohere's form.",
    { model: "MODEL", texts: TEXTS, input_type: "search_document" },
  ],
  "post /": ["Does what /embed, /rerank or /predict does, by the model's kind.", { inputs: TEXTS }],
  "post /embed": ["Makes a vector of each text, in the form of other servers.", { inputs: TEXTS }],
  "post /embed_all": ["Makes a vector of each token of each text.", { inputs: TEXTS }],
  "post /similarity": [
    "Returns how near each of some texts is to one, by their vectors.",
    { inputs: { source_sentence: TEXTS[0], sentences: TEXTS } },
  ],
  "post /predict": ["Returns the probability of each of the model's labels.", { inputs: TEXTS }],
  "get /info": ["Describes the model, for clients of servers of embeddings."],
  "post /tokenize": ["Splits a text into tokens.", { model: "MODEL", prompt: "Hello, world" }],
  "post /detokenize": ["Makes a text of tokens.", { model: "MODEL", tokens: [1, 2, 3] }],
  "post /decode": ["Makes texts of lists of tokens, in the form of other servers.", { ids: [[1, 2]] }],
  "get /tokenizer_info": ["Describes the tokenizer, if --enable-tokenizer-info-endpoint is set."],
  "get /v1/models": ["Lists the names by which requests may ask for the model."],
  "get /v1/models/{id}": ["Describes the model of one name."],
  "get /health": ["Answers 200 while the server takes requests."],
  "get /ready": [ALIAS("/health")],
  "get /ping": [ALIAS("/health")],
  "post /ping": [ALIAS("/health")],
  "get /query": ["Names the engine, for proxies that pair workers of prefill and decode."],
  "get /server_info": ["Describes the server and its configuration, without secrets."],
  "get /get_server_info": [ALIAS("/server_info")],
  "get /model_info": ["Describes the model that is served."],
  "get /get_model_info": [ALIAS("/model_info")],
  "get /version": ["Returns the server's version."],
  "get /metrics": ["Returns the server's figures, for Prometheus."],
  "get /load": ["Returns how much the server has to do."],
  "get /debug/state": ["Returns the requests under way, the KV cache and the last steps."],
  "get /debug/trace": ["Returns the last steps as a trace, for a viewer of Chrome's traces."],
  "get /openapi.json": ["Returns the document that this page is made of."],
};
