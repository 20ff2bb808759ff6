#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Modules of sentence-transformers in a cache that others have filled. usage: hub_modules_test.py BINARY MODEL.gguf"""
import json
import os

from hub_test import WEIGHTS, Case, directory_files, main
from mock_hub import COMMIT, REPO

MODULES = {"modules.json": b"[]", "1_Pooling/config.json": b'{"pooling_mode_mean_tokens":true}'}


def modules_that_were_never_asked_for_are_fetched(binary, _):
    files = directory_files(WEIGHTS) | MODULES | {"config.json": b'{"architectures":["BertModel"]}'}
    with Case(binary, files) as case:
        path = case.fetch()
        for file in MODULES:
            os.unlink(os.path.join(path, file))
        assert case.fetch(HF_HUB_OFFLINE="1") == path
        assert "org/tiny" in case.err and "modules.json" in case.err, case.err
        assert case.fetch(HF_ENDPOINT="http://localhost:9") == path
        assert "modules.json" in case.err and "localhost:9" in case.err, case.err
        # The files of another commit are not those of the snapshot.
        case.hub.info = json.dumps({"sha": COMMIT[1:] + COMMIT[:1], "siblings": []}).encode()
        assert case.fetch() == path and "modules.json" in case.err, case.err
        case.hub.info = None
        case.hub.log.clear()
        assert case.fetch() == path
        asked = [request[2] for request in case.hub.log if "/api/" in request[2]]
        assert asked == [f"/api/models/{REPO}/revision/{COMMIT}"], asked
        assert not case.hub.requests("storage", "GET", "safetensors")
        for file, data in MODULES.items():
            with open(os.path.join(path, file), "rb") as stored:
                assert stored.read() == data, file
        case.hub.log.clear()
        assert case.fetch() == path and case.hub.log == [] and case.err == "", case.err


# Those of zerank-2, whose class generates text.
JUDGE = {"config.json": b'{"architectures":["Qwen3ForCausalLM"]}',
         "modules.json": b'[{"type":"a.Transformer","path":""},{"type":"a.LogitScore","path":"1_LogitScore"},'
                         b'{"type":"a.Normalize","path":"2_Normalize"}]',
         "1_LogitScore/config.json": b'{"true_token_id":1}'}


def modules_of_a_model_that_generates_are_fetched_where_scores_are_asked_for(binary, _):
    with Case(binary, directory_files(WEIGHTS) | JUDGE) as case:
        path = case.fetch()
        for file in ("modules.json", "1_LogitScore/config.json"):
            os.unlink(os.path.join(path, file))
        case.hub.log.clear()
        assert case.fetch() == path and case.hub.log == []
        for flags in (("--convert", "classify"), ("--runner", "pooling"), ("--pooling", "last")):
            assert case.fetch(REPO, *flags, HF_HUB_OFFLINE="1") == path and "modules.json" in case.err, case.err
        assert case.fetch(REPO, "--convert", "classify") == path
        for lost in (None, "1_LogitScore/config.json"):
            if lost is not None:
                os.unlink(os.path.join(path, lost))
                assert case.fetch(HF_HUB_OFFLINE="1", model=REPO) == path and case.err == "", case.err
                assert case.fetch(REPO, "--convert", "classify", HF_HUB_OFFLINE="1") == path
                assert lost in case.err, case.err
                assert case.fetch(REPO, "--convert", "classify") == path
            for file in JUDGE:
                with open(os.path.join(path, file), "rb") as stored:
                    assert stored.read() == JUDGE[file], file
            case.hub.log.clear()
            assert case.fetch(REPO, "--convert", "classify") == path and case.hub.log == [], case.hub.log


def models_without_modules_are_asked_about_once(binary, _):
    for architecture, asked in (("BertModel", True), ("Qwen3ForCausalLM", False)):
        config = json.dumps({"architectures": [architecture]}).encode()
        with Case(binary, directory_files(WEIGHTS) | {"config.json": config}) as case:
            path = case.fetch()
            mark = case.path(".no_exist", COMMIT, "modules.json")
            os.unlink(mark)  # as other clients leave it
            for has_log in (asked, False):
                case.hub.log.clear()
                assert case.fetch() == path and bool(case.hub.log) == has_log, case.hub.log
                assert os.path.exists(mark) == asked and "modules.json" not in case.err


CASES = [
    modules_that_were_never_asked_for_are_fetched,
    modules_of_a_model_that_generates_are_fetched_where_scores_are_asked_for,
    models_without_modules_are_asked_about_once,
]

if __name__ == "__main__":
    main(CASES)
