# SPDX-License-Identifier: Apache-2.0
"""The sentencepiece package as the oracle of SentencePiece models: a model file made of the tokens,
types and scores of a vocabulary. GGUF's rule for special tokens is applied around it: the text
between two of them is tokenized by itself."""

import re


class Encoding:
    def __init__(self, ids):
        self.ids = ids


class Oracle:
    def __init__(self, vocabulary):
        import sentencepiece
        from sentencepiece import sentencepiece_model_pb2 as pb

        self.vocabulary = vocabulary
        model = pb.ModelProto()
        scores = vocabulary["scores"]
        for token, kind, score in zip(vocabulary["tokens"], vocabulary["types"], scores):
            model.pieces.add(piece=token, score=score, type=kind)
        is_unigram = vocabulary["model"] == "t5"
        model.trainer_spec.model_type = pb.TrainerSpec.UNIGRAM if is_unigram else pb.TrainerSpec.BPE
        model.trainer_spec.byte_fallback = 6 in vocabulary["types"]
        model.trainer_spec.vocab_size = len(scores)
        spec = model.normalizer_spec
        spec.name = "identity"
        spec.add_dummy_prefix = bool(vocabulary["add_space_prefix"])
        spec.remove_extra_whitespaces = bool(vocabulary.get("remove_extra_whitespaces"))
        spec.escape_whitespaces = True
        if vocabulary.get("precompiled_charsmap"):
            spec.precompiled_charsmap = vocabulary["precompiled_charsmap"]
        self.processor = sentencepiece.SentencePieceProcessor(
            model_proto=model.SerializeToString()
        )
        self.encode_special_tokens = False

    def encode(self, text, add_special_tokens=False):
        kinds = (2, 3) if not self.encode_special_tokens else ()
        table = self.vocabulary
        names = {
            t: i
            for i, (t, kind) in enumerate(zip(table["tokens"], table["types"]))
            if kind in kinds or (kind == 4 and "\u2581" not in t)
        }
        if not names:
            return Encoding(self.processor.encode(text))
        longest_first = sorted(names, key=len, reverse=True)
        ids = []
        position = 0
        for match in re.finditer("|".join(map(re.escape, longest_first)), text):
            ids += self.processor.encode(text[position : match.start()])
            ids.append(names[match[0]])
            position = match.end()
        return Encoding(ids + self.processor.encode(text[position:]))


def build(vocabulary):
    return Oracle(vocabulary)
