# SPDX-License-Identifier: Apache-2.0
"""Clients of vectors and scores. The server has the model tests/golden/embeddings/bert-mean."""
import base64
import json
import pathlib
import re
import struct

from cases import MODEL, OPENAI, URL, case, version_of

TESTS = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = json.loads((TESTS / "golden/embeddings/bert-mean.json").read_text())
TEXTS = GOLDEN["texts"][:4]  # those that no limit cuts


def check_close(vectors, worst=1e-5):
    assert len(vectors) == len(TEXTS)
    for found, wanted in zip(vectors, GOLDEN["vectors"]):
        assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= worst


def check_page_block(package):
    """The lines of the page that use the package, word by word."""
    page = (TESTS.parent / "deploy/retrieval.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    [block] = [each for each in blocks if re.search(rf"^(?:from|import) {package}\b", each, re.M)]
    names = {"ROOT": URL, "BASE": OPENAI["base_url"], "MODEL": MODEL}
    exec(block, names)
    assert len(names["vectors"]) == 2 and all(len(vector) == 32 for vector in names["vectors"]), names["vectors"]


@case("openai-embeddings", lambda: version_of("openai"))
def openai_embeddings():
    import openai as sdk
    client = sdk.OpenAI(**OPENAI)
    for form in ({}, {"encoding_format": "float"}):
        check_close([row.embedding for row in client.embeddings.create(model=MODEL, input=TEXTS, **form).data])
    check_page_block("openai")


@case("cohere")
def cohere():
    import cohere as sdk
    client = sdk.ClientV2(api_key="none", base_url=URL)
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    answer = client.embed(model=MODEL, texts=TEXTS, input_type="search_query", embedding_types=types)
    found = answer.embeddings
    check_close(found.float_)
    check_close([[x / 127 for x in vector] for vector in found.int8], 0.5 / 127 + 1e-5)
    assert [[x - 128 for x in vector] for vector in found.uint8] == found.int8
    bits = [[int("".join("1" if x > 0 else "0" for x in vector[i:i + 8]), 2) for i in range(0, len(vector), 8)]
            for vector in found.float_]
    assert found.ubinary == bits and [[x + 128 for x in vector] for vector in found.binary] == bits
    check_close([struct.unpack(f"<{len(found.float_[0])}f", base64.b64decode(each)) for each in found.base64])
    assert answer.texts == TEXTS and answer.meta.billed_units.input_tokens > 0
    long = "the cat sat on the mat " * 100
    first, last = (client.embed(model=MODEL, texts=[long], input_type="classification", truncate=side,
                                embedding_types=["float"]).embeddings.float_[0] for side in ("END", "START"))
    assert first != last
    try:
        client.embed(model=MODEL, texts=[long], input_type="clustering", truncate="NONE", embedding_types=["float"])
    except sdk.BadRequestError as error:
        assert "maximum context length" in str(error.body), error.body
    else:
        raise AssertionError("a text that is too long was taken")
    check_page_block("cohere")


@case("langchain-cohere")
def langchain_cohere():
    """The client of Cohere's first version: /v1/embed, and /v2/rerank by the vectors' cosine."""
    from langchain_cohere import CohereEmbeddings, CohereRerank
    embeddings = CohereEmbeddings(model=MODEL, cohere_api_key="none", base_url=URL)
    check_close(embeddings.embed_documents(TEXTS))
    assert len(embeddings.embed_query(TEXTS[0])) == len(GOLDEN["vectors"][0])
    rerank = CohereRerank(model=MODEL, cohere_api_key="none", base_url=URL, top_n=2)
    ranked = rerank.rerank(TEXTS, TEXTS[1])
    assert [row["index"] for row in ranked][0] == 1 and len(ranked) == 2, ranked
    import cohere as sdk
    bare = sdk.Client(api_key="none", base_url=URL).embed(texts=TEXTS, model=MODEL, input_type="search_document")
    check_close(bare.embeddings)
    check_page_block("langchain_cohere")


@case("langchain-embeddings", lambda: version_of("langchain-openai"))
def langchain_embeddings():
    check_page_block("langchain_openai")


@case("llama-index-embeddings-openai-like")
def llama_index_embeddings():
    check_page_block("llama_index")


@case("huggingface_hub")
def huggingface_hub():
    from huggingface_hub import InferenceClient
    found = InferenceClient(model=URL + "/embed").feature_extraction(TEXTS)
    check_close([list(map(float, vector)) for vector in found])
    scores = InferenceClient(model=URL + "/similarity").sentence_similarity(TEXTS[0], TEXTS)
    assert abs(scores[0] - 1) < 1e-6 and all(score < 1 for score in scores[1:]), scores
    found = InferenceClient(model=URL).feature_extraction(TEXTS)  # as with text-embeddings-inference
    check_close([list(map(float, vector)) for vector in found])
    check_page_block("huggingface_hub")
